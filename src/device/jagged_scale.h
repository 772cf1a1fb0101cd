#pragma once

#include <cstdint>

#include "device/quantize.h"

/// Scales between their compact and their tiled home (mx/jagged_scale.h): parameters that host and
/// kernel share.
namespace mxfa::device {

struct TileScalesParams {
  std::uint8_t* compact = nullptr;  ///< [scale rows, num_heads, scale columns]; only read to tile
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t col_stride = 1;
  std::uint8_t* tiled =
      nullptr;                  ///< [num_heads][tiles][ceil(head_dim / 128)][512]; 16-byte aligned
  std::int64_t head_bytes = 0;  ///< from head to head, a multiple of 16
  JaggedOffsetsView offsets = {};
  std::int32_t num_heads = 1;
  std::int32_t head_dim = 0;
  BlockShape block_shape = BlockShape::k32x32;
  ScaleAxis axis = ScaleAxis::kHeadDim;
};

}  // namespace mxfa::device
