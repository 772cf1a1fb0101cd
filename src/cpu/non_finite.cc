#include "cpu/non_finite.h"

#include "mx/bits.h"

namespace mxfa::cpu {
namespace {

constexpr std::uint16_t kExponentBits = 0x7F80;

bool is_finite(std::uint16_t bf16) { return (bf16 & kExponentBits) != kExponentBits; }

bool all_finite(const std::uint16_t* row, std::int64_t cols) {
  std::uint16_t any = 0;
  for (std::int64_t c = 0; c < cols; ++c) {
    any = static_cast<std::uint16_t>(any | (is_finite(row[c]) ? 0 : 1));
  }
  return any == 0;
}

}  // namespace

void NonFinite::take(std::uint16_t* rows, std::int64_t tokens, std::int64_t cols, std::int64_t ld) {
  for (std::int64_t token = 0; token < tokens; ++token) {
    std::uint16_t* const row = rows + token * ld;
    if (all_finite(row, cols)) continue;
    for (std::int64_t c = 0; c < cols; ++c) {
      if (is_finite(row[c])) continue;
      values_.push_back({token, c, mx::decode_bf16(row[c])});
      row[c] = 0;
    }
  }
}

}  // namespace mxfa::cpu
