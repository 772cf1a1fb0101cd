#pragma once

#include "kernels/sm100/forward/exp2_share.h"
#include "ptx/packed_f32.cuh"

/// Powers of two of the softmax.
namespace mxfa::sm100::forward {

/// By the special function unit; results below the normal range are 0.
__device__ inline float exp2_fast(float x) {
  float d;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(x));
  return d;
}

/// By a polynomial, for x up to 128; below -127.5 it is 0, NaN stays NaN.
__device__ inline ptx::F32x2 exp2_polynomial(float low, float high) {
  const auto both = [](float x) { return ptx::pack_f32(x, x); };
  const ptx::F32x2 x = ptx::pack_f32(ptx::max_nan(low, kExp2Least), ptx::max_nan(high, kExp2Least));
  const ptx::F32x2 shifted = ptx::add_f32x2(x, both(kExp2Shift));
  const ptx::F32x2 whole = ptx::add_f32x2(shifted, both(-kExp2Shift));
  const ptx::F32x2 rest = ptx::fma_f32x2(whole, both(-1.0f), x);
  ptx::F32x2 sum = both(kExp2Factor4);
  sum = ptx::fma_f32x2(sum, rest, both(kExp2Factor3));
  sum = ptx::fma_f32x2(sum, rest, both(kExp2Factor2));
  sum = ptx::fma_f32x2(sum, rest, both(kExp2Factor1));
  sum = ptx::fma_f32x2(sum, rest, both(1.0f));
  float a, b;
  ptx::unpack_f32(shifted, a, b);
  return ptx::mul_f32x2(sum, ptx::pack_f32(__uint_as_float(__float_as_uint(a) << 23),
                                           __uint_as_float(__float_as_uint(b) << 23)));
}

/// x[i] = 2^(x[i] * scale + base) for 32 scores.
__device__ inline void exp2_group(float scale, float base, float* x) {
#if defined(__CUDA_ARCH__)
  constexpr int kPairs = polynomial_pairs(__CUDA_ARCH__);
#else
  constexpr int kPairs = 0;
#endif
  const ptx::F32x2 scales = ptx::pack_f32(scale, scale);
  const ptx::F32x2 bases = ptx::pack_f32(base, base);
#pragma unroll
  for (int i = 0; i < 32; i += 2) {
    float low, high;
    ptx::unpack_f32(ptx::fma_f32x2(ptx::pack_f32(x[i], x[i + 1]), scales, bases), low, high);
    if (is_polynomial(i / 2, kPairs)) {
      ptx::unpack_f32(exp2_polynomial(low, high), x[i], x[i + 1]);
    } else {
      x[i] = exp2_fast(low);
      x[i + 1] = exp2_fast(high);
    }
  }
}

}  // namespace mxfa::sm100::forward
