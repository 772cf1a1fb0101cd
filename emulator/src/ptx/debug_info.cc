#include "ptx/debug_info.h"

#include <algorithm>
#include <charconv>

namespace mxfa::emu::ptx {
namespace {

std::string_view take_word(std::string_view& text) {
  const std::size_t begin = std::min(text.find_first_not_of(" \t"), text.size());
  text.remove_prefix(begin);
  const std::size_t end = std::min(text.find_first_of(" \t,"), text.size());
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(end);
  return word;
}

std::uint32_t number(std::string_view word) {
  std::uint32_t value = 0;
  std::from_chars(word.data(), word.data() + word.size(), value);
  return value;
}

}  // namespace

// Positions do not outlive their function: where braces are closed again, none holds.
DebugInfo::DebugInfo(const Source& source) {
  std::string_view text = source.text;
  int depth = 0;
  for (std::uint32_t line = 1; !text.empty(); ++line) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view rest = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    rest = rest.substr(0, rest.find("//"));
    const std::string_view whole = rest;
    const std::string_view word = take_word(rest);
    if (word == ".loc") {
      const std::uint32_t file = number(take_word(rest));
      locations_.push_back({line, file, number(take_word(rest))});
    } else if (word == ".file") {
      const std::uint32_t file = number(take_word(rest));
      const std::size_t open = rest.find('"');
      const std::size_t close = rest.rfind('"');
      if (open != std::string_view::npos && open < close) {
        files_[file] = std::string(rest.substr(open + 1, close - open - 1));
      }
    } else {
      const auto count = [&](char c) { return static_cast<int>(std::ranges::count(whole, c)); };
      const int before = depth;
      depth += count('{') - count('}');
      if (before > 0 && depth <= 0) locations_.push_back({line + 1, 0, 0});
    }
  }
}

SourcePosition DebugInfo::at(std::uint32_t ptx_line) const {
  const auto after = std::ranges::upper_bound(locations_, ptx_line, {}, &Location::ptx_line);
  if (after == locations_.begin()) return {};
  const Location& location = *std::prev(after);
  const auto file = files_.find(location.file);
  if (location.line == 0 || file == files_.end()) return {};
  return {file->second, location.line};
}

}  // namespace mxfa::emu::ptx
