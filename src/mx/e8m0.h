#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "mx/bits.h"
#include "mx/fp8.h"
#include "mxfa/types.h"

/// E8M0 scales of OCP MX v1.0: byte b is 2^(b-127), 255 is NaN, there is no zero.
namespace mxfa::mx {

inline constexpr std::uint8_t kE8M0Nan = 0xFF;
inline constexpr int kE8M0Bias = 127;

MXFA_HOST_DEVICE constexpr float decode_e8m0(std::uint8_t scale) {
  if (scale == kE8M0Nan) return bits_float(0x7FC00000u);
  if (scale == 0) return bits_float(0x00400000u);  // 2^-127 is subnormal in FP32
  return bits_float(static_cast<std::uint32_t>(scale) << 23);
}

/// 2^(127-scale), the exact reciprocal of decode_e8m0; scale 254 gives the subnormal 2^-127.
MXFA_HOST_DEVICE constexpr float inverse_e8m0(std::uint8_t scale) {
  if (scale == kE8M0Nan) return bits_float(0x7FC00000u);
  if (scale == 254) return bits_float(0x00400000u);
  return bits_float(static_cast<std::uint32_t>(254 - scale) << 23);
}

/// The scale of a block with largest magnitude `amax`, from its FP32 bits: no log2, no division.
/// kRoundUp is the smallest e with amax <= kMaxValue * 2^(e-127): both formats end at mantissa
/// 1.75, hence the comparison with 0x600000. NaN and infinity give 0xFF, zero gives 0.
template <class Format>
MXFA_HOST_DEVICE constexpr std::uint8_t scale_from_amax(float amax, ScaleRule rule) {
  const std::uint32_t bits = float_bits(amax) & 0x7FFFFFFFu;
  if (bits >= 0x7F800000u) return kE8M0Nan;
  const int exponent = static_cast<int>(bits >> 23);
  const int carry = rule == ScaleRule::kRoundUp && (bits & 0x7FFFFFu) > 0x600000u ? 1 : 0;
  const int scale = exponent - Format::kMaxExponent + carry;
  return static_cast<std::uint8_t>(scale < 0 ? 0 : scale);
}

/// The code of `value` under `scale`. The product is exact unless it falls below 2^-126, where
/// every code is zero, or overflows, which saturates like any large value. A NaN scale has a NaN
/// inverse and so turns the whole block into NaN codes: an MMA that reads payload without scales
/// must not see finite numbers in a poisoned block. Under a finite scale that was not derived from
/// `value` (a constant one), an infinity saturates to the largest code.
template <class Format>
MXFA_HOST_DEVICE constexpr std::uint8_t encode_scaled(float value, std::uint8_t scale) {
  return encode_fp8<Format>(value * inverse_e8m0(scale));
}

/// The least scale that is at least this one and stands on the grid of steps of 4 binades: the
/// exponents .., -10, -6, -2, .. of payload up to 448. Values of size 1 lie in the middle of one.
/// So most blocks of a tensor share a scale although each takes its own. 0xFF stays.
MXFA_HOST_DEVICE constexpr std::uint8_t coarse_scale(int scale) {
  const int coarse = ((scale + 2) & ~3) + 1;
  return static_cast<std::uint8_t>(coarse < kE8M0Nan ? coarse : scale);
}

/// The scale that is so many binades larger, at most the largest one; NaN stays NaN.
MXFA_HOST_DEVICE constexpr std::uint8_t raised_scale(int scale, int binades) {
  if (scale == kE8M0Nan) return kE8M0Nan;
  const int raised = scale + binades;
  return static_cast<std::uint8_t>(raised < kE8M0Nan ? raised : kE8M0Nan - 1);
}

}  // namespace mxfa::mx
