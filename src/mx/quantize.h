#pragma once

#include <cstdint>
#include <vector>

#include "mx/scale_grid.h"
#include "mxfa/types.h"

/// Whole-matrix quantization to MXFP8 with any BlockShape, equal bit for bit to quantize_block on
/// each block. Short blocks at the right and bottom edge count missing values as 0.
namespace mxfa::mx {

struct QuantizeSpec {
  BlockShape block_shape = BlockShape::k32x32;
  ScaleRule rule = ScaleRule::kRoundUp;
  DType format = DType::kE4M3;  ///< kE4M3 or kE5M2
};

/// A strided FP32 matrix [rows, cols]; strides count elements.
struct FloatView {
  const float* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t row_stride = 0;
  std::int64_t col_stride = 1;

  /// The same matrix with rows and columns exchanged.
  constexpr FloatView transposed() const { return {data, cols, rows, col_stride, row_stride}; }
};
/// Row-major without gaps.
constexpr FloatView row_major(const float* data, std::int64_t rows, std::int64_t cols) {
  return {data, rows, cols, cols, 1};
}

struct QuantizedMatrix {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  BlockShape block_shape = BlockShape::k32x32;
  DType format = DType::kE4M3;
  std::vector<std::uint8_t> codes;   ///< [rows, cols]
  std::vector<std::uint8_t> scales;  ///< E8M0, compact: ScaleGrid

  ScaleGrid grid() const { return {block_shape, rows, cols}; }
  std::uint8_t code(std::int64_t row, std::int64_t col) const { return codes[row * cols + col]; }
  std::uint8_t scale(std::int64_t row, std::int64_t col) const {
    return scales[grid().index(row, col)];
  }
  float value(std::int64_t row, std::int64_t col) const;
};

/// Throws Error where the spec's format is not an FP8 format.
QuantizedMatrix quantize(const FloatView& matrix, const QuantizeSpec& spec);
/// The same into `result`, whose storage is reused.
void quantize(const FloatView& matrix, const QuantizeSpec& spec, QuantizedMatrix& result);

/// Row-major [rows, cols].
std::vector<float> dequantize(const QuantizedMatrix& matrix);

/// values[c] = 2^(scale - 127) of column c, from one row of compact scales [scale_cols].
void expand_scales(BlockShape shape, const std::uint8_t* scales, float* values, std::int64_t cols);

/// Quantizes one group of up to 32 rows at a time: the unit that callers spread over threads and
/// over the sequences of a packed tensor. Holds scratch, so one object for each thread.
class RowGroupQuantizer {
 public:
  RowGroupQuantizer(const QuantizeSpec& spec, std::int64_t cols);

  /// `values`: `rows` <= 32 rows of contiguous columns, `row_stride` apart. Writes the payload rows
  /// `code_stride` apart and the group's compact scales, [scale_rows, scale_cols] without gaps.
  void run(const float* values, std::int64_t row_stride, int rows, std::uint8_t* codes,
           std::int64_t code_stride, std::uint8_t* scales);

 private:
  std::uint8_t scale_of(std::uint32_t amax_bits) const;
  void find_row_scales(const float* values, std::uint8_t* scales) const;
  void find_group_scales(const float* values, std::int64_t row_stride, int rows,
                         std::uint8_t* scales);

  QuantizeSpec spec_;
  std::int64_t cols_;
  std::int64_t block_width_;
  std::vector<std::uint32_t> amax_;  ///< [cols], FP32 bits
  std::vector<float> inverse_;       ///< [cols], 1 / scale of each column
};

}  // namespace mxfa::mx
