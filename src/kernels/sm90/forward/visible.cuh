#pragma once

#include <cmath>
#include <cstdint>

/// Scores that a row does not see.
namespace mxfa::sm90::forward {

/// Columns [begin, end) of a row that are visible, counted from this thread's first one, of which
/// it has two in each eight.
struct VisibleColumns {
  int begin;
  int end;

  /// Bit i of word 0 (1): column 8 i (8 i + 1).
  struct Bits {
    std::uint32_t even, odd;
  };
  __device__ Bits bits() const {
    return {below(end + 7) & ~below(begin + 7), below(end + 6) & ~below(begin + 6)};
  }

 private:
  /// `columns` / 8 bits.
  __device__ static std::uint32_t below(int columns) {
    const int count = columns < 0 ? 0 : columns >> 3;
    return count > 31 ? ~0u : (1u << count) - 1;
  }
};

/// Bytes of x as the selector says; 8 more than a byte's number takes its sign, eight times.
template <unsigned kSelector>
__device__ inline std::uint32_t prmt(std::uint32_t x) {
  std::uint32_t d;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(d) : "r"(x), "n"(kSelector));
  return d;
}

/// Hidden scores of row h become -infinity.
template <int kCount>
__device__ inline void hide_scores(float (&s)[kCount], int h, const VisibleColumns& visible) {
  const VisibleColumns::Bits bits = visible.bits();
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    if ((bits.even >> j & 1) == 0) s[4 * j + 2 * h] = -INFINITY;
    if ((bits.odd >> j & 1) == 0) s[4 * j + 2 * h + 1] = -INFINITY;
  }
}
/// The same of half scores. A prmt spreads the signs of two bytes, one of an even column and one of
/// the odd column beside it, over the halves of a word.
__device__ inline void hide_scores(std::uint32_t (&s)[32], int h, const VisibleColumns& visible) {
  constexpr std::uint32_t kMinusInfinities = 0xFC00FC00;
  const VisibleColumns::Bits bits = visible.bits();
  // Bytes: even columns of the first eight pairs, odd ones of these, even and odd of the others.
  const std::uint32_t pairs = __byte_perm(bits.even, bits.odd, 0x5140);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const std::uint32_t at_signs = pairs << (7 - i);
    const std::uint32_t first = prmt<0x9988>(at_signs), second = prmt<0xBBAA>(at_signs);
    std::uint32_t &low = s[2 * i + h], &high = s[2 * (8 + i) + h];
    low = (low & first) | (kMinusInfinities & ~first);
    high = (high & second) | (kMinusInfinities & ~second);
  }
}

}  // namespace mxfa::sm90::forward
