#pragma once

#include <cstdint>

/// FP32 arithmetic that sm_100a has beyond sm_90a: two numbers an instruction, maxima of three.
namespace mxfa::ptx {

/// Two FP32 numbers in a pair of registers.
struct F32x2 {
  std::uint64_t bits;
};

__device__ inline F32x2 pack_f32(float low, float high) {
  F32x2 d;
  asm("mov.b64 %0, {%1, %2};" : "=l"(d.bits) : "f"(low), "f"(high));
  return d;
}
__device__ inline void unpack_f32(F32x2 x, float& low, float& high) {
  asm("mov.b64 {%0, %1}, %2;" : "=f"(low), "=f"(high) : "l"(x.bits));
}
__device__ inline F32x2 fma_f32x2(F32x2 a, F32x2 b, F32x2 c) {
  F32x2 d;
  asm("fma.rn.f32x2 %0, %1, %2, %3;" : "=l"(d.bits) : "l"(a.bits), "l"(b.bits), "l"(c.bits));
  return d;
}
__device__ inline F32x2 mul_f32x2(F32x2 a, F32x2 b) {
  F32x2 d;
  asm("mul.rn.f32x2 %0, %1, %2;" : "=l"(d.bits) : "l"(a.bits), "l"(b.bits));
  return d;
}
__device__ inline F32x2 add_f32x2(F32x2 a, F32x2 b) {
  F32x2 d;
  asm("add.rn.f32x2 %0, %1, %2;" : "=l"(d.bits) : "l"(a.bits), "l"(b.bits));
  return d;
}

/// The largest; a NaN counts only where all are NaN.
__device__ inline float max3(float a, float b, float c) {
  float d;
  asm("max.f32 %0, %1, %2, %3;" : "=f"(d) : "f"(a), "f"(b), "f"(c));
  return d;
}
/// The larger; a NaN wins.
__device__ inline float max_nan(float a, float b) {
  float d;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
  return d;
}
/// The largest; any NaN wins.
__device__ inline float max3_nan(float a, float b, float c) {
  float d;
  asm("max.NaN.f32 %0, %1, %2, %3;" : "=f"(d) : "f"(a), "f"(b), "f"(c));
  return d;
}

/// Four E4M3 codes, `a` in the lowest byte.
__device__ inline std::uint32_t e4m3_quad(float a, float b, float c, float d) {
  std::uint32_t codes;
  asm("{\n.reg .b16 l, h;\n"
      "cvt.rn.satfinite.e4m3x2.f32 l, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 h, %4, %3;\n"
      "mov.b32 %0, {l, h};\n}"
      : "=r"(codes)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return codes;
}

}  // namespace mxfa::ptx
