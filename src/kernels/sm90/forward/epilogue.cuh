#pragma once

#include "device/fp8.cuh"
#include "kernels/sm90/common/mma.cuh"
#include "kernels/sm90/forward/config.h"
#include "kernels/sm90/forward/params.h"
#include "kernels/sm90/forward/softmax.cuh"

/// O, LSE and row maximum of a warpgroup's 64 rows.
namespace mxfa::sm90::forward {

/// Lane p of four gets word p of each of them, in their order.
__device__ inline void transpose_quad(std::uint32_t (&words)[4], int lane) {
#pragma unroll
  for (int step = 1; step <= 2; ++step) {
    const bool upper = (lane & step) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & step) != 0) continue;
      const std::uint32_t low = words[i], high = words[i + step];
      const std::uint32_t other = __shfl_xor_sync(~0u, upper ? low : high, step);
      words[i] = upper ? other : low;
      words[i + step] = upper ? high : other;
    }
  }
}

/// Sum of a row whose columns four lanes share.
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

/// A row of O in BF16: each lane of four gets whole 16 bytes.
template <class Config>
__device__ inline void store_bf16(const ForwardParams& params, std::uint16_t* row, bool inside,
                                  float factor, const float* o, int pair) {
  constexpr int kParts = Config::kHeadDim / 32;
  std::uint32_t words[kParts][4];
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float* const x = o + 4 * (4 * part + j);
      words[part][j] = device::encode_bf16_pair(x[0] * factor, x[1] * factor);
    }
    transpose_quad(words[part], pair);
  }
  if (!inside) return;
  row += 8 * pair;
  const int columns = params.columns - 8 * pair;
  if (params.o_aligned) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const std::uint32_t(&w)[4] = words[part];
      if (32 * part < columns)
        *reinterpret_cast<uint4*>(row + 32 * part) = {w[0], w[1], w[2], w[3]};
    }
    return;
  }
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (32 * part >= columns) break;
      reinterpret_cast<std::uint32_t*>(row + 32 * part)[j] = words[part][j];
    }
  }
}

/// The row's anchor in O itself where the factor below could not hold it: rare, the same for all
/// threads of a warp.
template <class Config>
__device__ inline int apply_far_anchor(int anchor, float (&o)[Config::kHeadDim / 2]) {
  if (anchor == kNoAnchor) return 0;
  constexpr int kNear = 60;
  if (anchor >= -kNear && anchor <= kNear) return anchor;
  const int near = anchor < 0 ? -kNear : kNear;
  // The payload's sums reach 2^9 * 2^8 * keys, so O is not near either end of the range yet.
  const float factor = power_of_two(anchor - near);
#pragma unroll
  for (float& x : o) x *= factor;
  return near;
}

/// A row whose sum is 0 saw no key: O = 0, LSE = -infinity.
template <class Config>
__device__ inline void store_rows(const ForwardParams& params, const TileRecord& tile,
                                  const RowState& rows, float (&o)[Config::kHeadDim / 2],
                                  int first_row, int lane) {
  const int pair = lane % 4;
  const int anchor = apply_far_anchor<Config>(rows.anchor, o);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float sum = quad_sum(rows.sum[h]);
    const int row = first_row + lane / 4 + 8 * h;
    const bool inside = row < tile.seqlen_q;
    const std::int64_t o_row = tile.o_begin + row;
    const bool seen = sum != 0.0f;
    store_bf16<Config>(params,
                       params.o + o_row * params.o_token_stride + tile.head * params.o_head_stride,
                       inside, seen ? 1.0f / sum * power_of_two(anchor) : 0.0f, o + 2 * h, pair);
    if (!inside || pair != 0) continue;
    constexpr float kLn2 = 0.693147182f;
    const std::int64_t at = tile.head * params.lse_head_stride + o_row;
    params.lse[at] = seen ? (__log2f(sum) - rows.base[h]) * kLn2 : -INFINITY;
    if (params.row_max != nullptr) params.row_max[at] = seen ? kOffset - rows.base[h] : -INFINITY;
  }
}

}  // namespace mxfa::sm90::forward
