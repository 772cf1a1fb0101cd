#pragma once

#include "device/fp8.cuh"
#include "kernels/sm90/common/mma.cuh"
#include "kernels/sm90/common/mxfp8.cuh"
#include "kernels/sm90/forward/config.h"
#include "kernels/sm90/forward/params.h"
#include "kernels/sm90/forward/softmax.cuh"
#include "mx/e8m0.h"
#include "ptx/lane.cuh"

/// O, LSE and row maximum of a warpgroup's 64 rows.
namespace mxfa::sm90::forward {

/// Sum of a row whose columns four lanes share.
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

/// A row of O in BF16. Each lane of four has whole 16 bytes of it (value_map()): stores of 4 bytes
/// would clog the way out (98 cycles each).
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
  }
  if (!inside) return;
  row += 8 * pair;
  const int columns = params.columns - 8 * pair;
  if (params.o_aligned) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const std::uint32_t(&w)[4] = words[part];
      if (32 * part < columns) {
        *reinterpret_cast<uint4*>(row + 32 * part) = {w[0], w[1], w[2], w[3]};
      }
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

/// Two rows of O in MXFP8: values, not yet scaled, of a warp's 16 rows.
template <class Config>
class Mxfp8Store {
 public:
  /// `amax`: of the warpgroup's four warps, shared.
  __device__ Mxfp8Store(const ForwardParams& params, const TileRecord& tile,
                        float (&amax)[4][Config::kHeadDim / 32], int warp_row)
      : out_(params.o_mxfp8),
        columns_(params.columns),
        tile_(tile),
        amax_(amax),
        first_row_(tile.m_block * Config::kTileM + warp_row),
        warp_row_(warp_row) {}

  __device__ void run(float (&o)[Config::kHeadDim / 2], const float (&factors)[2]) const {
    // Rows behind the sequence must not count in a group's magnitude.
    const bool inside[2] = {row(0) < tile_.seqlen_q, row(1) < tile_.seqlen_q};
#pragma unroll
    for (int i = 0; i < Config::kHeadDim / 2; ++i) {
      const int h = (i >> 1) & 1;
      o[i] = inside[h] ? o[i] * factors[h] : 0.0f;
    }
    const bool square = out_.block_shape == BlockShape::k32x32;
    if (square) share_amax(o);
      // A loop that stays one, for want of registers.
#pragma unroll 1
    for (int part = 0; 32 * part < columns_; ++part) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float amax = square ? group_amax(part) : row_amax(o, h);
        store(o, part, h, mx::scale_from_amax<mx::E4M3>(amax, ScaleRule::kRoundUp));
      }
#pragma unroll
      for (int k = 16; k < Config::kHeadDim / 2; ++k) o[k - 16] = o[k];
    }
    if (square) sync();
  }

 private:
  static constexpr int kParts = Config::kHeadDim / 32;

  __device__ int row(int h) const { return first_row_ + ptx::lane_now() / 4 + 8 * h; }

  /// Of 32 rows, which two warps share.
  __device__ void share_amax(const float (&o)[Config::kHeadDim / 2]) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const float amax = rows_amax(o + 16 * part);
      if (ptx::lane_now() == 0) amax_[warp()][part] = amax;
    }
    sync();
  }
  __device__ float group_amax(int part) const {
    return device::max_nan(amax_[warp()][part], amax_[warp() ^ 1][part]);
  }
  __device__ int warp() const { return warp_row_ / 16 % 4; }
  __device__ void sync() const {
    constexpr int kFirstBarrier = 1 + Config::kConsumers;  // behind those of the merger
    sync_threads(kFirstBarrier + warp_row_ / kScaleGroup, 64);
  }

  /// Of the part that `o` begins with.
  __device__ void store(const float (&o)[Config::kHeadDim / 2], int part, int h,
                        std::uint8_t scale) const {
    if (row(h) >= tile_.seqlen_q) return;
    const float inverse = mx::inverse_e8m0(scale);
    const std::int64_t o_row = tile_.o_begin + row(h);
    const int column = 32 * part + 8 * (ptx::lane_now() % 4);
    std::uint8_t* const codes =
        out_.codes + o_row * out_.token_stride + tile_.head * out_.head_stride + column;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (column >= columns_) break;
      const float* const x = o + 4 * j + 2 * h;
      *reinterpret_cast<std::uint16_t*>(codes + 2 * j) =
          static_cast<std::uint16_t>(device::encode_e4m3_pair(x[0] * inverse, x[1] * inverse));
    }
    const bool square = out_.block_shape == BlockShape::k32x32;
    if (ptx::lane_now() % 4 != 0 || (square && row(h) % kScaleGroup != 0)) return;
    const std::int64_t scale_row = square ? tile_.o_group + row(h) / kScaleGroup : o_row;
    out_.scales[scale_row * out_.scale_row_stride + tile_.head * out_.scale_head_stride + part] =
        scale;
  }

  const device::Mxfp8Rows& out_;
  int columns_;
  const TileRecord& tile_;
  float (&amax_)[4][Config::kHeadDim / 32];
  int first_row_, warp_row_;
};

/// A row whose sum is 0 saw no key: O = 0, LSE = -infinity. `warp_row`: of the warp in the tile.
template <class Config, class Rows>
__device__ inline void store_rows(const ForwardParams& params, const TileRecord& tile,
                                  const typename Rows::State& rows,
                                  float (&o)[Config::kHeadDim / 2],
                                  float (&amax)[4][Config::kHeadDim / 32], int warp_row) {
  const int lane = ptx::lane_now(), pair = lane % 4;
  const int anchor = apply_far_anchor<Config>(rows.anchor, o);
  float sum[2], factor[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    sum[h] = quad_sum(rows.sum[h]);
    factor[h] = sum[h] != 0.0f ? 1.0f / sum[h] * power_of_two(anchor) : 0.0f;
  }
  // First, so that what it reads is not kept beside O's own. A lane of four for each row.
  const int which = pair & 1;
  const int row = tile.m_block * Config::kTileM + warp_row + lane / 4 + 8 * which;
  if (pair < 2 && row < tile.seqlen_q) {
    constexpr float kLn2 = 0.693147182f;
    const std::int64_t at = tile.head * params.lse_head_stride + tile.o_begin + row;
    const float divisor = which == 0 ? sum[0] : sum[1];
    const bool seen = divisor != 0.0f;
    // O is divided by what is summed, as P's payload is made of the same numbers.
    const float whole = Rows::whole_sum(rows, which, divisor);
    const float base = which == 0 ? rows.base[0] : rows.base[1];
    params.lse[at] = seen ? (__log2f(whole) - base) * kLn2 : -INFINITY;
    if (params.row_max != nullptr) {
      const float most = which == 0 ? Rows::row_max(rows, 0) : Rows::row_max(rows, 1);
      params.row_max[at] = seen ? most : -INFINITY;
    }
  }
  if (params.o_mxfp8.codes != nullptr) {
    Mxfp8Store<Config>(params, tile, amax, warp_row).run(o, factor);
    return;
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = tile.m_block * Config::kTileM + warp_row + lane / 4 + 8 * h;
    std::uint16_t* const out =
        params.o + tile.o_offset + row * params.o_token_stride + tile.head * params.o_head_stride;
    store_bf16<Config>(params, out, row < tile.seqlen_q, factor[h], o + 2 * h, pair);
  }
}

}  // namespace mxfa::sm90::forward
