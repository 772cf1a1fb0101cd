#include "ptx/scope.h"

#include <charconv>

namespace mxfa::emu::ptx {
namespace {

struct SplitName {
  std::string_view prefix;
  std::optional<std::uint32_t> number;
};

SplitName split(std::string_view name) {
  std::size_t digits = 0;
  while (digits < name.size() && name[name.size() - 1 - digits] >= '0' &&
         name[name.size() - 1 - digits] <= '9') {
    ++digits;
  }
  const std::size_t first = name.size() - digits;
  if (digits == 0 || digits > 9 || (digits > 1 && name[first] == '0')) return {name, {}};
  std::uint32_t number = 0;
  std::from_chars(name.data() + first, name.data() + name.size(), number);
  return {name.substr(0, first), number};
}

}  // namespace

std::optional<Symbol> ScopeStack::find(std::string_view name) const {
  const SplitName parts = split(name);
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const auto it = scope->find(name); it != scope->end()) {
      if (it->second.kind != Symbol::Kind::kRange) return it->second;
    }
    if (!parts.number) continue;
    const auto it = scope->find(parts.prefix);
    if (it != scope->end() && it->second.kind == Symbol::Kind::kRange &&
        *parts.number < it->second.count) {
      return Symbol{Symbol::Kind::kRegister, it->second.index + *parts.number, 0, false};
    }
  }
  return {};
}

const Symbol* ScopeStack::find_label_here(std::string_view name) const {
  const auto it = scopes_.back().find(name);
  return it != scopes_.back().end() && it->second.kind == Symbol::Kind::kLabel ? &it->second
                                                                               : nullptr;
}

}  // namespace mxfa::emu::ptx
