#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "ptx/lexer.h"

namespace mxfa::emu::ptx {

/// A cursor over the tokens of one text; what does not fit is an error with the line.
class TokenStream {
 public:
  explicit TokenStream(const Source& source) : source_(source), tokens_(tokenize(source)) {}

  const Token& peek(std::size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  const Token& take() {
    const Token& token = peek();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool at_end() const { return peek().kind == TokenKind::kEnd; }

  bool accept(char c) {
    if (!peek().is(c)) return false;
    take();
    return true;
  }
  bool accept(std::string_view word) {
    if (!peek().is(word)) return false;
    take();
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(fmt::format("expected '{}'", c));
  }
  std::string_view expect_word(std::string_view what) {
    if (peek().kind != TokenKind::kWord) fail(fmt::format("expected {}", what));
    return take().text;
  }
  /// A non-negative integer of at most `limit`.
  std::uint64_t expect_integer(std::string_view what, std::uint64_t limit) {
    if (peek().kind != TokenKind::kInteger) fail(fmt::format("expected {}", what));
    if (peek().value > limit) fail(fmt::format("{} above {}", what, limit));
    return take().value;
  }
  void skip_line() {
    const std::uint32_t line = peek().line;
    while (!at_end() && peek().line == line) take();
  }

  [[noreturn]] void fail(const std::string& reason) const {
    const Token& token = peek();
    source_.fail(token.line, at_end() ? fmt::format("{} before the end of the text", reason)
                                      : fmt::format("{} at '{}'", reason, token.text));
  }
  [[noreturn]] void fail_at(std::uint32_t line, const std::string& reason) const {
    source_.fail(line, reason);
  }

 private:
  const Source& source_;
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
};

}  // namespace mxfa::emu::ptx
