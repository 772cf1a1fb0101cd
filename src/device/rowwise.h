#pragma once

#include <cstdint>

#include "device/quantize.h"

/// Element-wise kernels over packed rows [total, num_heads, head_dim], and delta: parameters that
/// host and kernel share. Four columns are one access: strides are multiples of 4 elements,
/// addresses of 4 elements, head_dim a multiple of 4 up to 128.
namespace mxfa::device {

/// Values or MXFP8 payload with compact scales.
struct RowsView {
  const void* data = nullptr;
  DType dtype = DType::kBF16;  ///< kBF16, kF32, or kE4M3 with `scales`
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
  const std::uint8_t* scales = nullptr;  ///< compact, of block_shape
  CompactStrides scale_strides = {};
  BlockShape block_shape = BlockShape::k32x32;
};

/// delta = rowsum(dout * (o - shift_v)), in double in the order of mx::row_dot, rounded once.
struct DeltaParams {
  RowsView dout = {};  ///< kF32 values are rounded to BF16 first, as GEMM operands are
  RowsView o = {};
  const float* shift_v = nullptr;  ///< [batch or 1, num_heads, head_dim] that O had added back
  std::int64_t shift_batch_stride = 0;
  float* delta = nullptr;  ///< [num_heads, total]
  std::int64_t delta_head_stride = 0;
  float* dout_sums = nullptr;  ///< likewise, the sum of |dout|, or null
  JaggedOffsetsView offsets = {};
  std::int32_t num_heads = 1;
  std::int32_t head_dim = 0;
};

/// Payload to BF16, rounded to nearest even: exact but where 2^e leaves the range of BF16.
struct DequantizeParams {
  RowsView input = {};           ///< kE4M3
  std::uint16_t* out = nullptr;  ///< BF16
  std::int64_t out_row_stride = 0;
  std::int64_t out_head_stride = 0;
  JaggedOffsetsView offsets = {};
  std::int32_t num_heads = 1;
  std::int32_t head_dim = 0;
};

/// Accumulated gradients to BF16.
struct FinishSumsParams {
  const void* data = nullptr;
  DType dtype = DType::kF32;  ///< kF32 or kF16
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
  bool padded_rows = false;  ///< sequence s begins at row 128 * tiles(s)
  ScaledSums sums = {};
  std::uint16_t* out = nullptr;  ///< BF16
  std::int64_t out_row_stride = 0;
  std::int64_t out_head_stride = 0;
  JaggedOffsetsView offsets = {};
  std::int32_t num_heads = 1;
  std::int32_t head_dim = 0;
};

}  // namespace mxfa::device
