#include "ptx/source.h"

namespace mxfa::emu::ptx {

std::string Source::line_text(std::uint32_t line) const {
  std::size_t begin = 0;
  for (std::uint32_t i = 1; i < line; ++i) {
    begin = text.find('\n', begin);
    if (begin == std::string::npos) return {};
    ++begin;
  }
  std::string_view view(text);
  view = view.substr(begin, view.find('\n', begin) - begin);
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
