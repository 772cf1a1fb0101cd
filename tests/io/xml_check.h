#pragma once

#include <cstddef>
#include <regex>
#include <string>
#include <vector>

namespace mxfa::io {

/// Empty where `text` is one well-formed XML element (tags nest, attributes are quoted, no stray
/// markup or control character), else what is wrong. Covers what SVG files of ours contain.
inline std::string xml_fault(const std::string& text) {
  static const std::string attribute =
      R"(\s+[A-Za-z:][A-Za-z0-9:-]*="[^"<&]*(?:&[a-z]+;[^"<&]*)*")";
  static const std::regex tag(R"(^<(/?)([A-Za-z][A-Za-z0-9]*)((?:)" + attribute + R"()*)\s*(/?)>)");
  static const std::regex entity("^&(amp|lt|gt|quot);");
  std::vector<std::string> open;
  std::size_t at = 0;
  int roots = 0;
  if (text.rfind("<?xml", 0) == 0) at = text.find("?>") + 2;
  std::smatch match;
  while (at < text.size()) {
    const auto begin = text.begin() + static_cast<std::ptrdiff_t>(at);
    if (text[at] == '<') {
      if (!std::regex_search(begin, text.end(), match, tag)) {
        return "no tag at: " + text.substr(at, 60);
      }
      if (!match[1].str().empty()) {
        if (open.empty() || open.back() != match[2]) return "unexpected </" + match[2].str() + ">";
        open.pop_back();
      } else {
        if (open.empty()) ++roots;
        if (match[4].str().empty()) open.push_back(match[2]);
      }
      at += static_cast<std::size_t>(match.length(0));
      continue;
    }
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte < 0x20 && byte != '\n' && byte != '\t') return "a control character";
    if (byte == '&' && !std::regex_search(begin, text.end(), match, entity)) return "a bare &";
    if (open.empty() && byte != '\n') return "text outside the root";
    ++at;
  }
  if (!open.empty()) return "unclosed <" + open.back() + ">";
  return roots == 1 ? "" : "not one root element";
}

}  // namespace mxfa::io
