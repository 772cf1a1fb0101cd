#include "ptx/debug_info.h"

#include <fmt/format.h>

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
      add_location(line, rest);
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
      if (before > 0 && depth <= 0) locations_.push_back({line + 1, -1});
    }
  }
}

// "2 17 7", and where that was inlined: ", function_name LABEL, inlined_at 1 7 3".
void DebugInfo::add_location(std::uint32_t ptx_line, std::string_view words) {
  const auto take_key = [](std::string_view& rest) {
    Key key{};
    for (std::uint32_t& value : key) value = number(take_word(rest));
    return key;
  };
  constexpr std::string_view kInlined = "inlined_at";
  const Key own = take_key(words);
  std::int32_t from = -1;
  if (const std::size_t at = words.find(kInlined); at != std::string_view::npos) {
    words.remove_prefix(at + kInlined.size());
    from = caller(take_key(words));
  }
  last_[own] = static_cast<std::int32_t>(frames_.size());
  locations_.push_back({ptx_line, last_[own]});
  frames_.push_back({own[0], own[1], from});
}

// Compilers give the call's own position before that of what is inlined there.
std::int32_t DebugInfo::caller(const Key& key) {
  const auto known = last_.find(key);
  if (known != last_.end()) return known->second;
  frames_.push_back({key[0], key[1], -1});
  return last_[key] = static_cast<std::int32_t>(frames_.size()) - 1;
}

SourcePosition DebugInfo::at(std::uint32_t ptx_line) const {
  const auto after = std::ranges::upper_bound(locations_, ptx_line, {}, &Location::ptx_line);
  if (after == locations_.begin() || std::prev(after)->frame < 0) return {};
  const Frame* frame = &frames_[static_cast<std::size_t>(std::prev(after)->frame)];
  const auto file = files_.find(frame->file);
  if (frame->line == 0 || file == files_.end()) return {};
  SourcePosition position{file->second, frame->line, {}};
  while (frame->caller >= 0) {
    frame = &frames_[static_cast<std::size_t>(frame->caller)];
    const auto of_caller = files_.find(frame->file);
    if (of_caller == files_.end()) break;
    const std::string& path = of_caller->second;
    position.inlined_at += fmt::format("{}{}:{}", position.inlined_at.empty() ? "" : ", ",
                                       path.substr(path.rfind('/') + 1), frame->line);
  }
  return position;
}

}  // namespace mxfa::emu::ptx
