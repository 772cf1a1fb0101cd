#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "ptx/source.h"

namespace mxfa::emu::ptx {

enum class TokenKind : std::uint8_t {
  kWord,       ///< names, registers and whole opcodes: add.s32, %tid.x, shared::cta
  kDirective,  ///< .reg, .b32
  kInteger,
  kFloat32,  ///< 0fXXXXXXXX; `value` holds the bits
  kFloat64,  ///< 0dXXXXXXXXXXXXXXXX or a decimal fraction; `value` holds the bits
  kString,   ///< without its quotes
  kPunct,    ///< one character
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::uint32_t line = 0;
  std::string_view text;
  std::uint64_t value = 0;

  bool is(char c) const { return kind == TokenKind::kPunct && text[0] == c; }
  bool is(std::string_view word) const {
    return (kind == TokenKind::kWord || kind == TokenKind::kDirective) && text == word;
  }
};

/// All tokens of the text, the last one kEnd. Comments are dropped.
std::vector<Token> tokenize(const Source& source);

}  // namespace mxfa::emu::ptx
