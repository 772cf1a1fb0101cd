#include "ptx/source.h"

#include "ptx/debug_info.h"

namespace mxfa::emu::ptx {

Source::Source() = default;
Source::~Source() = default;

const DebugInfo& Source::debug_info() const {
  std::call_once(debug_info_made_, [&] { debug_info_ = std::make_unique<const DebugInfo>(*this); });
  return *debug_info_;
}

std::string_view Source::line(std::uint32_t number) const {
  std::call_once(lines_made_, [&] {
    lines_.push_back(0);
    for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos;) {
      lines_.push_back(++at);
    }
  });
  if (number == 0 || number > lines_.size()) return {};
  const std::size_t begin = lines_[number - 1];
  return std::string_view(text).substr(begin, text.find('\n', begin) - begin);
}

std::string Source::line_text(std::uint32_t number) const {
  std::string_view view = line(number);
  view = view.substr(0, view.find("//"));
  const std::string_view blanks = " \t\r";
  const std::size_t first = view.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  view = view.substr(first, view.find_last_not_of(blanks) - first + 1);
  std::string result;
  for (const char c : view.substr(0, 160)) {
    result += c >= ' ' && c != 127 ? c : ' ';
  }
  return result;
}

void Source::fail(std::uint32_t line, const std::string& reason, ErrorKind kind) const {
  throw PtxError({name, line, line_text(line)}, reason, kind);
}

}  // namespace mxfa::emu::ptx
