#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "mxfa/types.h"

/// Where the scale of an element lies among the compact scales of its matrix, for each BlockShape.
namespace mxfa::mx {

MXFA_HOST_DEVICE constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t divisor) {
  return value / divisor + (value % divisor != 0 ? 1 : 0);
}

/// Rows that share a scale: 32, or 1 where no two tokens share one.
MXFA_HOST_DEVICE constexpr int block_rows(BlockShape shape) {
  return shape == BlockShape::k1x32 || shape == BlockShape::k1xD ? 1 : kScaleBlock;
}
/// Columns that share a scale: 1, 32, or 0 for all of them.
MXFA_HOST_DEVICE constexpr int block_cols(BlockShape shape) {
  if (shape == BlockShape::k32x1) return 1;
  return shape == BlockShape::k1x32 || shape == BlockShape::k32x32 ? kScaleBlock : 0;
}

/// Scales of one row of blocks over `cols` columns: ceil(cols/32), cols, or 1 (0 for no columns).
MXFA_HOST_DEVICE constexpr std::int64_t scale_cols(BlockShape shape, std::int64_t cols) {
  const int width = block_cols(shape);
  if (width == 0) return cols > 0 ? 1 : 0;
  return ceil_div(cols, width);
}
/// Rows of blocks over `rows` rows: ceil(rows/32), or rows.
MXFA_HOST_DEVICE constexpr std::int64_t scale_rows(BlockShape shape, std::int64_t rows) {
  return ceil_div(rows, block_rows(shape));
}

/// Column of `col`'s scale in a row of scales.
MXFA_HOST_DEVICE constexpr std::int64_t scale_col(BlockShape shape, std::int64_t col) {
  const int width = block_cols(shape);
  return width == 0 ? 0 : col / width;
}

/// Compact scales of one [rows, cols] matrix, row-major [scale_rows, scale_cols]:
/// 1x32 [rows, ceil(cols/32)]; 32x1 [ceil(rows/32), cols]; 32x32 [ceil(rows/32), ceil(cols/32)];
/// 32xD [ceil(rows/32), 1]; 1xD [rows, 1].
struct ScaleGrid {
  BlockShape shape = BlockShape::k32x32;
  std::int64_t rows = 0;  ///< of the matrix
  std::int64_t cols = 0;

  MXFA_HOST_DEVICE constexpr std::int64_t grid_rows() const { return scale_rows(shape, rows); }
  MXFA_HOST_DEVICE constexpr std::int64_t grid_cols() const { return scale_cols(shape, cols); }
  MXFA_HOST_DEVICE constexpr std::int64_t size() const { return grid_rows() * grid_cols(); }
  /// Index of the scale of element (row, col).
  MXFA_HOST_DEVICE constexpr std::int64_t index(std::int64_t row, std::int64_t col) const {
    return row / block_rows(shape) * grid_cols() + scale_col(shape, col);
  }
};

}  // namespace mxfa::mx
