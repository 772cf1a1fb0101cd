#pragma once

#include "device/fp8.cuh"
#include "device/mxfp8_rows.h"
#include "kernels/sm100/forward/config.h"
#include "mx/e8m0.h"

/// O in MXFP8.
namespace mxfa::sm100::forward {

/// 32 columns of O of a warp's 32 rows, which are one group of their sequence; a thread a row. In
/// halves of 16 columns, which are seen twice: 32 numbers at once are more than registers hold.
class Mxfp8Output {
 public:
  /// Columns [32 part, 32 part + 32); `row`: in the sequence.
  __device__ Mxfp8Output(const device::Mxfp8Rows& out, const TileRecord& tile, int row, int part)
      : out_(out), tile_(tile), row_(row), part_(part) {}

  __device__ void see(const float (&o)[16]) {
#pragma unroll
    for (const float value : o) amax_ = device::max_nan(amax_, fabsf(value));
  }

  /// Once both halves have been seen.
  __device__ void find_scale() {
    const bool square = out_.block_shape == BlockShape::k32x32;
    if (square) {
      // Of magnitudes, the order of bits is that of values, and NaN is above all of them.
      amax_ = __uint_as_float(__reduce_max_sync(~0u, exists() ? __float_as_uint(amax_) : 0u));
    }
    const std::uint8_t scale = mx::scale_from_amax<mx::E4M3>(amax_, ScaleRule::kRoundUp);
    inverse_ = mx::inverse_e8m0(scale);
    if (!exists() || (square && row_ % kScaleGroup != 0)) return;
    const std::int64_t scale_row =
        square ? std::int64_t{tile_.o_group} + row_ / kScaleGroup : tile_.o_begin + row_;
    out_.scales[scale_row * out_.scale_row_stride + tile_.head * out_.scale_head_stride + part_] =
        scale;
  }

  /// The half again; `columns` of the tensor.
  __device__ void store(int half, std::int32_t columns, const float (&o)[16]) const {
    if (!exists()) return;
    const int column = kScaleGroup * part_ + 16 * half;
    std::uint8_t* const codes = out_.codes + (tile_.o_begin + row_) * out_.token_stride +
                                tile_.head * out_.head_stride + column;
    const auto quad = [&](int j) {
      return device::encode_e4m3_quad(o[j] * inverse_, o[j + 1] * inverse_, o[j + 2] * inverse_,
                                      o[j + 3] * inverse_);
    };
#pragma unroll
    for (int i = 0; i < 16; i += 8) {
      if (column + i >= columns) break;
      *reinterpret_cast<uint2*>(codes + i) = make_uint2(quad(i), quad(i + 4));
    }
  }

 private:
  __device__ bool exists() const { return row_ < tile_.seqlen_q; }

  const device::Mxfp8Rows& out_;
  const TileRecord& tile_;
  int row_, part_;
  float amax_ = 0.0f;
  float inverse_ = 0.0f;
};

}  // namespace mxfa::sm100::forward
