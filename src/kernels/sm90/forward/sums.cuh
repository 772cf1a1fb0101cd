#pragma once

#include "kernels/sm90/forward/config.h"
#include "ptx/half2.cuh"

/// O of a warpgroup's 64 rows while keys are walked, in FP32 or in half; a thread's rows by index
/// 0 and 1 as everywhere.
namespace mxfa::sm90::forward {

/// Halves of both rows: what moved maxima make O so far worth. kNoRescale where none moved.
using Rescale = std::uint32_t;
inline constexpr Rescale kNoRescale = 0x3C003C00;

/// O of each row times its factor.
template <class Config>
__device__ inline void scale_sums(Rescale factors, typename Config::Sums& o) {
  const std::uint32_t of_row[2] = {ptx::half2_broadcast_low(factors),
                                   ptx::half2_broadcast_high(factors)};
#pragma unroll
  for (int i = 0; i < Config::kHeadDim / 4; ++i) o[i] = ptx::half2_mul(o[i], of_row[i & 1]);
}
template <class Config>
__device__ inline void scale_sums(const float (&factor)[2], typename Config::Sums& o) {
  if constexpr (Config::kHalfSums) {
    scale_sums<Config>(ptx::half2_pack(factor[0], factor[1]), o);
  } else {
#pragma unroll
    for (int i = 0; i < Config::kHeadDim / 2; ++i) o[i] *= factor[(i >> 1) & 1];
  }
}

/// Half sums: log2 of what P V of a block, which fits half (mx/half_sums.h), is divided by before
/// it is added, so that O of `blocks` of them fits too.
__device__ inline int half_sums_exponent(int blocks) { return 32 - __clz(blocks - 1); }

/// Half sums to FP32.
template <int kCount>
__device__ inline void widen_sums(const std::uint32_t (&halves)[kCount], float (&o)[2 * kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int at = 4 * (i >> 1) + 2 * (i & 1);
    o[at] = ptx::half2_low(halves[i]);
    o[at + 1] = ptx::half2_high(halves[i]);
  }
}

}  // namespace mxfa::sm90::forward
