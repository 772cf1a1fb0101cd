#pragma once

#include <cstdint>

/// Packed half arithmetic on bits, and what leaves it. `low` and `high` name the halves of a
/// register.
namespace mxfa::ptx {

__device__ inline std::uint32_t half2_fma(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
__device__ inline std::uint32_t half2_mul(std::uint32_t a, std::uint32_t b) {
  std::uint32_t d;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
__device__ inline std::uint32_t half2_add(std::uint32_t a, std::uint32_t b) {
  std::uint32_t d;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
/// Passes over NaN, as min does. Two in a row become one instruction.
__device__ inline std::uint32_t half2_max(std::uint32_t a, std::uint32_t b) {
  std::uint32_t d;
  asm("max.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
__device__ inline std::uint32_t half2_min(std::uint32_t a, std::uint32_t b) {
  std::uint32_t d;
  asm("min.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
/// The larger magnitudes, under some sign; passes over NaN.
__device__ inline std::uint32_t half2_max_magnitude(std::uint32_t a, std::uint32_t b) {
  std::uint32_t d;
  asm("max.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
__device__ inline std::uint32_t half2_pack(float low, float high) {
  std::uint32_t d;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}
__device__ inline float half2_low(std::uint32_t x) {
  float d;
  asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %1;\ncvt.f32.f16 %0, l;\n}" : "=f"(d) : "r"(x));
  return d;
}
__device__ inline float half2_high(std::uint32_t x) {
  float d;
  asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %1;\ncvt.f32.f16 %0, h;\n}" : "=f"(d) : "r"(x));
  return d;
}
/// 2^x. The halves are joined by prmt: ex2.approx.f16x2 joins them once for each of its uses.
__device__ inline std::uint32_t half2_exp2(std::uint32_t x) {
  std::uint32_t d;
  asm("{\n.reg .b16 a, b, l, h;\n.reg .b32 u, v;\n"
      "mov.b32 {a, b}, %1;\n"
      "ex2.approx.f16 l, a;\nex2.approx.f16 h, b;\n"
      "cvt.u32.u16 u, l;\ncvt.u32.u16 v, h;\n"
      "prmt.b32 %0, u, v, 0x5410;\n}"
      : "=r"(d)
      : "r"(x));
  return d;
}
/// A move of halves, which the instruction that uses it reads in place; a prmt stays one.
__device__ inline std::uint32_t half2_broadcast_low(std::uint32_t x) {
  std::uint32_t d;
  asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %1;\nmov.b32 %0, {l, l};\n}" : "=r"(d) : "r"(x));
  return d;
}
__device__ inline std::uint32_t half2_broadcast_high(std::uint32_t x) {
  std::uint32_t d;
  asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %1;\nmov.b32 %0, {h, h};\n}" : "=r"(d) : "r"(x));
  return d;
}

/// 2^x, results below the normal range flushed to 0.
__device__ inline float exp2_approx(float x) {
  float d;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(x));
  return d;
}

/// Four E4M3 codes, `a`'s low half in the low byte. kPath only keeps code of different paths apart:
/// merged by the compiler, their conversions lose the form that fills half a register in place.
template <int kPath>
__device__ inline std::uint32_t e4m3_from_half2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t d;
  asm("{\n.reg .b16 l, h;  // path %3\n"
      "cvt.rn.satfinite.e4m3x2.f16x2 l, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f16x2 h, %2;\n"
      "mov.b32 %0, {l, h};\n}"
      : "=r"(d)
      : "r"(a), "r"(b), "n"(kPath));
  return d;
}

}  // namespace mxfa::ptx
