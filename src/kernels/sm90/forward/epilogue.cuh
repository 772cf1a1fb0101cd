#pragma once

#include "kernels/sm90/forward/config.h"
#include "kernels/sm90/forward/params.h"
#include "kernels/sm90/forward/softmax.cuh"

/// O, LSE and row maximum of a warpgroup's 64 rows.
namespace mxfa::sm90::forward {

/// 2^exponent for |exponent| < 254, the subnormal results included.
__device__ inline float wide_power_of_two(float x, int exponent) {
  const int half = exponent / 2;
  const auto power = [](int e) { return __int_as_float((e + 127) << 23); };
  return x * power(half) * power(exponent - half);
}

__device__ inline std::uint32_t bf16_pair(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

/// A row whose sum is 0 saw no key: O = 0, LSE = -infinity.
template <class Config>
__device__ inline void store_rows(const ForwardParams& params, const TileRecord& tile,
                                  const RowState& rows, const float (&o)[Config::kHeadDim / 2],
                                  int first_row, int lane) {
  const int quad = lane / 4, pair = lane % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sum = rows.sum[h];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    const int row = first_row + quad + 8 * h;
    if (row >= tile.seqlen_q) continue;
    const bool seen = sum != 0.0f;
    const float inverse = seen ? 1.0f / sum : 0.0f;
    const int anchor = rows.anchor == kNoAnchor ? 0 : rows.anchor;
    const std::int64_t o_row = tile.o_begin + row;
    std::uint16_t* const out =
        params.o + o_row * params.o_token_stride + tile.head * params.o_head_stride + 2 * pair;
#pragma unroll
    for (int j = 0; j < Config::kHeadDim / 8; ++j) {
      if (8 * j >= params.columns) break;
      const float low = seen ? wide_power_of_two(o[4 * j + 2 * h] * inverse, anchor) : 0.0f;
      const float high = seen ? wide_power_of_two(o[4 * j + 2 * h + 1] * inverse, anchor) : 0.0f;
      *reinterpret_cast<std::uint32_t*>(out + 8 * j) = bf16_pair(low, high);
    }
    if (pair != 0) continue;
    constexpr float kLn2 = 0.693147182f;
    const std::int64_t at = tile.head * params.lse_head_stride + o_row;
    params.lse[at] = seen ? (__log2f(sum) - rows.base[h]) * kLn2 : -INFINITY;
    if (params.row_max != nullptr) params.row_max[at] = seen ? kOffset - rows.base[h] : -INFINITY;
  }
}

}  // namespace mxfa::sm90::forward
