#pragma once

#include <cstdint>

#include "mx/e8m0.h"

/// FP8 arithmetic of the kernels: the instructions behind mx/fp8.h, equal to it on every input.
namespace mxfa::device {

__device__ inline float bf16_low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ inline float bf16_high(unsigned pair) { return __uint_as_float(pair & 0xFFFF0000u); }

__device__ inline float f16_low(unsigned pair) {
  float result;
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low; }"
      : "=f"(result)
      : "r"(pair));
  return result;
}
__device__ inline float f16_high(unsigned pair) { return f16_low(pair >> 16); }

/// Two BF16 codes, `low` in the low half; every NaN becomes the positive canonical one.
__device__ inline unsigned encode_bf16_pair(float low, float high) {
  unsigned result;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}

/// The nearest BF16 value, ties to even.
__device__ inline float round_bf16(float value) {
  unsigned result;
  asm("{ .reg .b16 code; cvt.rn.bf16.f32 code, %1; mov.b32 %0, {0, code}; }"
      : "=r"(result)
      : "f"(value));
  return __uint_as_float(result);
}

/// NaN wins and keeps magnitude bits above infinity's, as mx::block_amax wants.
__device__ inline float max_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

/// Two E4M3 codes, `low` in the low byte.
__device__ inline unsigned encode_e4m3_pair(float low, float high) {
  std::uint16_t result;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(result) : "f"(high), "f"(low));
  return result;
}
__device__ inline unsigned encode_e4m3_quad(float a, float b, float c, float d) {
  return encode_e4m3_pair(a, b) | encode_e4m3_pair(c, d) << 16;
}

/// Two codes as the FP16 values that they are, and back with rounding; products of FP16 pairs.
template <class Format>
__device__ inline unsigned decode_half_pair(unsigned codes) {
  unsigned result;
  const auto pair = static_cast<std::uint16_t>(codes);
  if constexpr (Format::kMantissaBits == mx::E4M3::kMantissaBits) {
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(result) : "h"(pair));
  } else {
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(result) : "h"(pair));
  }
  return result;
}
template <class Format>
__device__ inline unsigned encode_half_pair(unsigned halves) {
  std::uint16_t result;
  if constexpr (Format::kMantissaBits == mx::E4M3::kMantissaBits) {
    asm("cvt.rn.satfinite.e4m3x2.f16x2 %0, %1;" : "=h"(result) : "r"(halves));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f16x2 %0, %1;" : "=h"(result) : "r"(halves));
  }
  return result;
}
__device__ inline unsigned multiply_half_pairs(unsigned a, unsigned b) {
  unsigned result;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}
__device__ inline unsigned encode_f16_pair(float low, float high) {
  unsigned result;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}

/// The exact values of four codes.
template <class Format>
__device__ inline void decode_quad(unsigned codes, float (&value)[4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const unsigned f16 = decode_half_pair<Format>(codes >> (16 * half));
    value[2 * half] = f16_low(f16);
    value[2 * half + 1] = f16_high(f16);
  }
}

}  // namespace mxfa::device
