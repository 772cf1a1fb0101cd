#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>

#include "attention/mask.h"
#include "cpu/operand.h"

/// What the forward and the backward share.
namespace mxfa::cpu {

inline constexpr std::int64_t kTileKeys = 128;
inline constexpr double kLog2eDouble = 1.4426950408889634;
inline constexpr float kLog2e = 1.44269504f;
inline constexpr float kLn2 = 0.693147182f;
/// Below it a folded payload is 0 either way (2^8 * 2^-32 rounds to 0), and P' must not underflow.
inline constexpr int kLeastFold = -32;

/// value * 2^exponent with the exponent clamped to +-126; finite where value is.
inline float folded(float value, int exponent) {
  const float result = value * power_of_two(std::clamp(exponent, -126, 126));
  return std::isinf(result) && std::isfinite(value) ? std::copysign(FLT_MAX, value) : result;
}

/// A row of sums whose tiles lie in pieces: out = sums * a * b, rounded twice.
void scale_row(const float* sums, const SumLayout& layout, float a, float b, std::int64_t cols,
               float* out);

/// Asks for memory that will be written. Other cores may hold its lines since the call before, and
/// stores wait for one line after the other.
void prefetch_to_write(const void* memory, std::int64_t bytes);

/// `range` relative to `first`, clipped to [0, count).
inline attention::KeyRange within(attention::KeyRange range, std::int64_t first,
                                  std::int64_t count) {
  const std::int64_t begin = std::clamp<std::int64_t>(range.begin - first, 0, count);
  return {begin, std::clamp<std::int64_t>(range.end - first, begin, count)};
}

}  // namespace mxfa::cpu
