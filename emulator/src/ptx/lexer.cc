#include "ptx/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>

namespace mxfa::emu::ptx {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' || c == '%';
}
bool is_word(char c) { return is_word_start(c) || is_digit(c); }

int digit_value(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return 99;
}

class Lexer {
 public:
  explicit Lexer(const Source& source) : source_(source), text_(source.text) {}

  std::vector<Token> run() {
    tokens_.reserve(text_.size() / 4 + 1);
    for (;;) {
      skip_blanks();
      if (at_ >= text_.size()) break;
      next();
    }
    tokens_.push_back({TokenKind::kEnd, line_, {}, 0});
    return std::move(tokens_);
  }

 private:
  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }

  void skip_blanks() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\n') {
        ++line_;
        ++at_;
      } else if (c == ' ' || c == '\t' || c == '\r') {
        ++at_;
      } else if (c == '/' && peek(1) == '/') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (c == '/' && peek(1) == '*') {
        const std::size_t end = text_.find("*/", at_ + 2);
        if (end == std::string_view::npos) source_.fail(line_, "comment without end");
        for (; at_ < end; ++at_) line_ += text_[at_] == '\n' ? 1u : 0u;
        at_ += 2;
      } else {
        return;
      }
    }
  }

  void next() {
    const char c = peek();
    if (is_word_start(c)) {
      word(TokenKind::kWord, at_);
    } else if (c == '.' && is_word_start(peek(1))) {
      const std::size_t begin = at_++;
      directive(begin);
    } else if (is_digit(c)) {
      number();
    } else if (c == '"') {
      string();
    } else if (std::string_view("{}[]()<>,;:@!|+-*/=~&^?").find(c) != std::string_view::npos) {
      ++at_;
      push(TokenKind::kPunct, at_ - 1, at_);
    } else {
      source_.fail(line_, fmt::format("unexpected character 0x{:02x}",
                                      static_cast<unsigned>(static_cast<unsigned char>(c))));
    }
  }

  void push(TokenKind kind, std::size_t begin, std::size_t end, std::uint64_t value = 0) {
    tokens_.push_back({kind, line_, text_.substr(begin, end - begin), value});
  }

  // Dots and :: belong to opcodes and special registers; a single colon ends a label.
  void word(TokenKind kind, std::size_t begin) {
    for (;;) {
      if (is_word(peek())) {
        ++at_;
      } else if (peek() == '.' && is_word(peek(1))) {
        ++at_;
      } else if (peek() == ':' && peek(1) == ':' && is_word(peek(2))) {
        at_ += 2;
      } else {
        break;
      }
    }
    push(kind, begin, at_);
  }

  void directive(std::size_t begin) {
    while (is_word(peek())) ++at_;
    push(TokenKind::kDirective, begin, at_);
  }

  void string() {
    const std::size_t begin = ++at_;
    while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\n') ++at_;
    if (peek() != '"') source_.fail(line_, "string without end");
    push(TokenKind::kString, begin, at_);
    ++at_;
  }

  std::uint64_t digits(int base, int max_digits, std::size_t begin) {
    std::uint64_t value = 0;
    int count = 0;
    for (; digit_value(peek()) < base; ++at_, ++count) {
      const std::uint64_t scaled = value * static_cast<std::uint64_t>(base);
      if (count >= max_digits || scaled / static_cast<std::uint64_t>(base) != value) {
        source_.fail(line_,
                     fmt::format("number out of range: {}...",
                                 text_.substr(begin, std::min<std::size_t>(at_ - begin, 24))));
      }
      value = scaled + static_cast<std::uint64_t>(digit_value(peek()));
    }
    if (count == 0) source_.fail(line_, "number without digits");
    return value;
  }

  void number() {
    const std::size_t begin = at_;
    const char marker = peek() == '0' ? peek(1) : '\0';
    if (marker == 'f' || marker == 'F' || marker == 'd' || marker == 'D') {
      const bool single = marker == 'f' || marker == 'F';
      at_ += 2;
      const std::size_t first = at_;
      const std::uint64_t bits = digits(16, 16, begin);
      if (at_ - first != (single ? 8u : 16u)) source_.fail(line_, "float with wrong digit count");
      push(single ? TokenKind::kFloat32 : TokenKind::kFloat64, begin, at_, bits);
      return;
    }
    std::uint64_t value = 0;
    if (marker == 'x' || marker == 'X') {
      at_ += 2;
      value = digits(16, 16, begin);
    } else if (marker == 'b' || marker == 'B') {
      at_ += 2;
      value = digits(2, 64, begin);
    } else {
      value = digits(10, 20, begin);
      if (peek() == '.' && is_digit(peek(1))) return decimal(begin);
      if (marker >= '0' && marker <= '7') {  // octal, as in C
        at_ = begin;
        value = digits(8, 23, begin);
      }
    }
    if (peek() == 'U') ++at_;
    push(TokenKind::kInteger, begin, at_, value);
  }

  void decimal(std::size_t begin) {
    ++at_;
    while (is_digit(peek())) ++at_;
    double value = 0;
    std::from_chars(text_.data() + begin, text_.data() + at_, value);
    push(TokenKind::kFloat64, begin, at_, std::bit_cast<std::uint64_t>(value));
  }

  const Source& source_;
  std::string_view text_;
  std::size_t at_ = 0;
  std::uint32_t line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(const Source& source) { return Lexer(source).run(); }

}  // namespace mxfa::emu::ptx
