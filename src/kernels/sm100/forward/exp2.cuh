#pragma once

#include "ptx/packed_f32.cuh"

/// Powers of two of the softmax.
namespace mxfa::sm100::forward {

/// By the special function unit; results below the normal range are 0.
__device__ inline float exp2_fast(float x) {
  float d;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(x));
  return d;
}

/// x[i] = 2^(x[i] * scale + base) for 32 scores.
__device__ inline void exp2_group(float scale, float base, float* x) {
  const ptx::F32x2 scales = ptx::pack_f32(scale, scale);
  const ptx::F32x2 bases = ptx::pack_f32(base, base);
#pragma unroll
  for (int i = 0; i < 32; i += 2) {
    float low, high;
    ptx::unpack_f32(ptx::fma_f32x2(ptx::pack_f32(x[i], x[i + 1]), scales, bases), low, high);
    x[i] = exp2_fast(low);
    x[i + 1] = exp2_fast(high);
  }
}

}  // namespace mxfa::sm100::forward
