#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace mxfa::emu::ptx {

struct Symbol {
  enum class Kind : std::uint8_t { kRegister, kRange, kVariable, kLabel, kFunction };
  Kind kind = Kind::kRegister;
  std::uint32_t index = 0;  ///< of the register, of a range's first, of the variable, ...
  std::uint32_t count = 0;  ///< registers in a range
  bool module_scope = false;
};

/// Nested name tables. Inline assembly opens a scope for each statement, with the same names again.
class ScopeStack {
 public:
  ScopeStack() { push(); }
  void push() { scopes_.emplace_back(); }
  void pop() { scopes_.pop_back(); }
  std::size_t depth() const { return scopes_.size(); }

  /// False where the innermost scope has the name already.
  bool declare(std::string_view name, const Symbol& symbol) {
    return scopes_.back().emplace(name, symbol).second;
  }
  /// The innermost meaning of a name; of a name like %r12, also as the 12th of a range %r<20>.
  std::optional<Symbol> find(std::string_view name) const;
  const Symbol* find_label_here(std::string_view name) const;

 private:
  std::vector<std::unordered_map<std::string_view, Symbol>> scopes_;
};

}  // namespace mxfa::emu::ptx
