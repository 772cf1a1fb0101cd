#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "mx/bits.h"

/// The 8-bit float formats of OCP "8-bit Floating Point Specification" 1.0, as code tables:
/// encode rounds to nearest even and saturates (cvt.rn.satfinite), decode is exact.
namespace mxfa::mx {

struct E4M3 {
  static constexpr int kMantissaBits = 3;
  static constexpr int kBias = 7;
  static constexpr int kMaxExponent = 8;          ///< of the largest normal value, 448
  static constexpr std::uint8_t kMaxCode = 0x7E;  ///< 448
  static constexpr std::uint8_t kNanCode = 0x7F;  ///< the only NaN but for its sign
  static constexpr float kMaxValue = 448.0f;
};

struct E5M2 {
  static constexpr int kMantissaBits = 2;
  static constexpr int kBias = 15;
  static constexpr int kMaxExponent = 15;         ///< of the largest normal value, 57344
  static constexpr std::uint8_t kMaxCode = 0x7B;  ///< 57344; 0x7C is infinity
  static constexpr std::uint8_t kNanCode = 0x7F;
  static constexpr float kMaxValue = 57344.0f;
};

/// FP32 to an 8-bit code: nearest even, magnitudes above the maximum and infinities become the
/// maximum, NaN becomes the positive NaN code.
template <class Format>
MXFA_HOST_DEVICE constexpr std::uint8_t encode_fp8(float value) {
  const std::uint32_t bits = float_bits(value);
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  const std::uint32_t abs = bits & 0x7FFFFFFFu;
  if (abs > 0x7F800000u) return Format::kNanCode;
  if (abs >= float_bits(Format::kMaxValue)) {
    return static_cast<std::uint8_t>(sign | Format::kMaxCode);
  }
  constexpr int kDropped = 23 - Format::kMantissaBits;
  constexpr int kMinExponent = 1 - Format::kBias;  // of the smallest normal value
  const int exponent = static_cast<int>(abs >> 23) - 127;
  if (exponent < kMinExponent) {
    // A subnormal code counts steps of 2^(kMinExponent - kMantissaBits).
    const int shift = kDropped + (kMinExponent - exponent);
    if (shift > 24) return static_cast<std::uint8_t>(sign);  // below half a step
    const std::uint32_t mantissa = (abs & 0x7FFFFFu) | 0x800000u;
    const std::uint32_t kept = mantissa >> shift;
    const std::uint32_t rest = mantissa & ((1u << shift) - 1u);
    const std::uint32_t half = 1u << (shift - 1);
    const std::uint32_t up = (rest > half || (rest == half && (kept & 1u))) ? 1u : 0u;
    return static_cast<std::uint8_t>(sign | (kept + up));
  }
  const std::uint32_t half = (1u << (kDropped - 1)) - 1u;
  const std::uint32_t rounded = abs + half + ((abs >> kDropped) & 1u);
  const std::uint32_t rebias = static_cast<std::uint32_t>(127 - Format::kBias) << 23;
  const std::uint32_t code = (rounded - rebias) >> kDropped;
  return static_cast<std::uint8_t>(sign | (code > Format::kMaxCode ? Format::kMaxCode : code));
}

/// The value of an 8-bit code, exactly.
template <class Format>
MXFA_HOST_DEVICE constexpr float decode_fp8(std::uint8_t code) {
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80u) << 24;
  const std::uint32_t abs = code & 0x7Fu;
  if (abs > Format::kMaxCode) {
    const bool infinity = abs == Format::kMaxCode + 1u && Format::kNanCode != abs;
    return bits_float(sign | (infinity ? 0x7F800000u : 0x7FC00000u));
  }
  const std::uint32_t exponent = abs >> Format::kMantissaBits;
  const std::uint32_t mantissa = abs & ((1u << Format::kMantissaBits) - 1u);
  if (exponent == 0) {
    // kMinExponent - kMantissaBits as an FP32 power of two times the step count: exact.
    const float step =
        bits_float(static_cast<std::uint32_t>(128 - Format::kBias - Format::kMantissaBits) << 23);
    const float result = static_cast<float>(mantissa) * step;
    return bits_float(sign | float_bits(result));
  }
  const std::uint32_t rebias = static_cast<std::uint32_t>(127 - Format::kBias);
  return bits_float(sign | ((exponent + rebias) << 23) |
                    (mantissa << (23 - Format::kMantissaBits)));
}

MXFA_HOST_DEVICE constexpr std::uint8_t encode_e4m3(float value) { return encode_fp8<E4M3>(value); }
MXFA_HOST_DEVICE constexpr float decode_e4m3(std::uint8_t code) { return decode_fp8<E4M3>(code); }
MXFA_HOST_DEVICE constexpr std::uint8_t encode_e5m2(float value) { return encode_fp8<E5M2>(value); }
MXFA_HOST_DEVICE constexpr float decode_e5m2(std::uint8_t code) { return decode_fp8<E5M2>(code); }

}  // namespace mxfa::mx
