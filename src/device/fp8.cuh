#pragma once

#include <cstdint>

#include "mx/e8m0.h"

/// FP8 arithmetic of the kernels: the instructions behind mx/fp8.h, equal to it on every input.
namespace mxfa::device {

__device__ inline float bf16_low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ inline float bf16_high(unsigned pair) { return __uint_as_float(pair & 0xFFFF0000u); }

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

}  // namespace mxfa::device
