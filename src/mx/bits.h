#pragma once

#include <cstdint>

#include "core/host_device.h"

/// FP32, BF16 and FP16 as bit patterns. Rounding is integer arithmetic, so the host, the device and
/// any compiler flag give the same bits.
namespace mxfa::mx {

MXFA_HOST_DEVICE constexpr std::uint32_t float_bits(float value) {
  return __builtin_bit_cast(std::uint32_t, value);
}
MXFA_HOST_DEVICE constexpr float bits_float(std::uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}
MXFA_HOST_DEVICE constexpr bool is_nan(float value) {
  return (float_bits(value) & 0x7FFFFFFFu) > 0x7F800000u;
}
MXFA_HOST_DEVICE constexpr bool is_finite(float value) {
  return (float_bits(value) & 0x7F800000u) != 0x7F800000u;
}
MXFA_HOST_DEVICE constexpr float magnitude(float value) {
  return bits_float(float_bits(value) & 0x7FFFFFFFu);
}

/// FP32 to BF16, round to nearest even; NaN becomes the quiet NaN of the same sign.
MXFA_HOST_DEVICE constexpr std::uint16_t encode_bf16(float value) {
  const std::uint32_t bits = float_bits(value);
  if (is_nan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x0040u);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}
MXFA_HOST_DEVICE constexpr float decode_bf16(std::uint16_t code) {
  return bits_float(static_cast<std::uint32_t>(code) << 16);
}
/// The nearest BF16 value, as FP32.
MXFA_HOST_DEVICE constexpr float round_bf16(float value) { return decode_bf16(encode_bf16(value)); }

/// FP32 to FP16, round to nearest even, overflow to infinity (as a hardware FP16 add does).
MXFA_HOST_DEVICE constexpr std::uint16_t encode_f16(float value) {
  const std::uint32_t bits = float_bits(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t abs = bits & 0x7FFFFFFFu;
  if (abs > 0x7F800000u) return static_cast<std::uint16_t>(sign | 0x7E00u);
  if (abs >= 0x477FF000u) return static_cast<std::uint16_t>(sign | 0x7C00u);  // >= 65520
  if (abs < 0x38800000u) {  // below 2^-14: the subnormal step is 2^-24
    const int shift = 126 - static_cast<int>(abs >> 23);
    if (shift > 24) return static_cast<std::uint16_t>(sign);
    const std::uint32_t mantissa = (abs & 0x7FFFFFu) | 0x800000u;
    const std::uint32_t kept = mantissa >> shift;
    const std::uint32_t rest = mantissa & ((1u << shift) - 1u);
    const std::uint32_t half = 1u << (shift - 1);
    const std::uint32_t up = (rest > half || (rest == half && (kept & 1u))) ? 1u : 0u;
    return static_cast<std::uint16_t>(sign | (kept + up));
  }
  const std::uint32_t rounded = abs + 0x0FFFu + ((abs >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}
MXFA_HOST_DEVICE constexpr float decode_f16(std::uint16_t code) {
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x8000u) << 16;
  const std::uint32_t exponent = (code >> 10) & 0x1Fu;
  const std::uint32_t mantissa = code & 0x3FFu;
  if (exponent == 0x1Fu) return bits_float(sign | 0x7F800000u | (mantissa << 13));
  if (exponent != 0) return bits_float(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float steps = static_cast<float>(mantissa) * bits_float(0x33800000u);  // of 2^-24: exact
  return bits_float(sign | float_bits(steps));
}
MXFA_HOST_DEVICE constexpr float round_f16(float value) { return decode_f16(encode_f16(value)); }

}  // namespace mxfa::mx
