#pragma once

#include <cctype>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace mxfa::io {

struct XmlElement {
  std::string name;
  std::map<std::string, std::string> attributes;
  std::string text;  ///< what stands directly in it, escapes kept

  double number(const std::string& attribute) const { return std::stod(attributes.at(attribute)); }
};

/// Reads one well-formed XML element (tags nest, attributes are quoted, no stray markup or control
/// character) with all it contains. Covers what SVG files of ours hold.
class XmlReader {
 public:
  explicit XmlReader(std::string_view text) : text_(text) { fault_ = run(); }

  /// Empty where the text is well formed, else what is wrong.
  const std::string& fault() const { return fault_; }
  const std::vector<XmlElement>& elements() const { return elements_; }
  std::vector<XmlElement> named(std::string_view name) const {
    std::vector<XmlElement> found;
    for (const XmlElement& element : elements_) {
      if (element.name == name) found.push_back(element);
    }
    return found;
  }

 private:
  std::string run() {
    if (text_.substr(0, 5) == "<?xml") at_ = text_.find("?>") + 2;
    while (at_ < text_.size()) {
      const std::string fault = text_[at_] == '<' ? tag() : character();
      if (!fault.empty()) return fault;
    }
    if (!open_.empty()) return "unclosed <" + elements_[open_.back()].name + ">";
    return roots_ == 1 ? "" : "not one root element";
  }

  std::string tag() {
    ++at_;
    const bool closing = take('/');
    const std::string name = word();
    if (name.empty()) return "no tag name at: " + std::string(text_.substr(at_, 40));
    if (closing) {
      if (open_.empty() || elements_[open_.back()].name != name) return "stray </" + name + ">";
      open_.pop_back();
      return take('>') ? "" : "unended </" + name;
    }
    if (open_.empty()) ++roots_;
    XmlElement element{.name = name, .attributes = {}, .text = {}};
    while (take(' ')) {
      const std::string attribute = word();
      const std::string fault = value(element.attributes[attribute]);
      if (attribute.empty() || !fault.empty()) return "<" + name + " " + attribute + ": " + fault;
    }
    const bool empty = take('/');
    elements_.push_back(element);
    if (!empty) open_.push_back(elements_.size() - 1);
    return take('>') ? "" : "unended <" + name;
  }

  std::string value(std::string& out) {
    if (!take('=') || !take('"')) return "no quoted value";
    const std::size_t end = text_.find('"', at_);
    if (end == std::string_view::npos) return "no closing quote";
    out = text_.substr(at_, end - at_);
    at_ = end + 1;
    if (out.find('<') != std::string::npos) return "a < in a value";
    for (std::size_t i = out.find('&'); i != std::string::npos; i = out.find('&', i + 1)) {
      if (!escape_at(out, i)) return "a bare &";
    }
    return "";
  }

  std::string character() {
    const auto byte = static_cast<unsigned char>(text_[at_]);
    if (byte < 0x20 && byte != '\n') return "a control character";
    if (byte == '>') return "a bare >";
    if (byte == '&' && !escape_at(text_, at_)) return "a bare &";
    if (open_.empty() && byte != '\n') return "text outside the root";
    if (!open_.empty()) elements_[open_.back()].text += text_[at_];
    ++at_;
    return "";
  }

  static bool escape_at(std::string_view text, std::size_t at) {
    for (const std::string_view escape : {"&amp;", "&lt;", "&gt;", "&quot;"}) {
      if (text.substr(at, escape.size()) == escape) return true;
    }
    return false;
  }

  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  std::string word() {
    const std::size_t start = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 ||
                                  text_[at_] == '-' || text_[at_] == ':')) {
      ++at_;
    }
    return std::string(text_.substr(start, at_ - start));
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int roots_ = 0;
  std::vector<XmlElement> elements_;
  std::vector<std::size_t> open_;
  std::string fault_;
};

inline std::string xml_fault(std::string_view text) { return XmlReader(text).fault(); }

}  // namespace mxfa::io
