#include "mx/quantize.h"

#include <algorithm>

#include "core/check.h"
#include "mx/block.h"
#include "mx/convert.h"

namespace mxfa::mx {
namespace {

/// per_column[c] = convert(scale of column c), for one row of compact scales.
template <class Convert>
void expand_converted(BlockShape shape, std::int64_t cols, const std::uint8_t* scales,
                      float* per_column, Convert convert) {
  const std::int64_t width = block_cols(shape) == 0 ? cols : block_cols(shape);
  for (std::int64_t begin = 0, block = 0; begin < cols; begin += width, ++block) {
    std::fill(per_column + begin, per_column + std::min(begin + width, cols),
              convert(scales[block]));
  }
}

/// Copies rows [first, first + rows) of a strided view to `out`, row-major.
void gather_rows(const FloatView& view, std::int64_t first, int rows, float* out) {
  const float* source = view.data + first * view.row_stride;
  if (view.row_stride != 1) {
    for (int row = 0; row < rows; ++row) {
      for (std::int64_t col = 0; col < view.cols; ++col) {
        out[row * view.cols + col] = source[row * view.row_stride + col * view.col_stride];
      }
    }
    return;
  }
  // A transposed matrix goes through a square tile: reads and writes are whole cache lines.
  float tile[kScaleBlock][kScaleBlock + 1];
  for (std::int64_t begin = 0; begin < view.cols; begin += kScaleBlock) {
    const std::int64_t width = std::min<std::int64_t>(kScaleBlock, view.cols - begin);
    for (std::int64_t col = 0; col < width; ++col) {
      for (int row = 0; row < rows; ++row) {
        tile[row][col] = source[(begin + col) * view.col_stride + row];
      }
    }
    for (int row = 0; row < rows; ++row) {
      std::copy(tile[row], tile[row] + width, out + row * view.cols + begin);
    }
  }
}

}  // namespace

RowGroupQuantizer::RowGroupQuantizer(const QuantizeSpec& spec, std::int64_t cols)
    : spec_(spec),
      cols_(cols),
      block_width_(block_cols(spec.block_shape) == 0 ? cols : block_cols(spec.block_shape)),
      amax_(static_cast<std::size_t>(cols)),
      inverse_(static_cast<std::size_t>(cols)) {
  core::expect(spec.format == DType::kE4M3 || spec.format == DType::kE5M2, "format", "e4m3 or e5m2",
               dtype_name(spec.format));
}

std::uint8_t RowGroupQuantizer::scale_of(std::uint32_t amax_bits) const {
  const float amax = bits_float(amax_bits);
  return spec_.format == DType::kE4M3 ? scale_from_amax<E4M3>(amax, spec_.rule)
                                      : scale_from_amax<E5M2>(amax, spec_.rule);
}

void RowGroupQuantizer::find_row_scales(const float* values, std::uint8_t* scales) const {
  for (std::int64_t begin = 0, block = 0; begin < cols_; begin += block_width_, ++block) {
    scales[block] = scale_of(max_magnitude(values + begin, std::min(block_width_, cols_ - begin)));
  }
}

void RowGroupQuantizer::find_group_scales(const float* values, std::int64_t row_stride, int rows,
                                          std::uint8_t* scales) {
  std::fill(amax_.begin(), amax_.end(), 0u);
  for (int row = 0; row < rows; ++row) {
    max_magnitude_columns(values + row * row_stride, amax_.data(), cols_);
  }
  for (std::int64_t begin = 0, block = 0; begin < cols_; begin += block_width_, ++block) {
    const std::int64_t end = std::min(begin + block_width_, cols_);
    scales[block] = scale_of(*std::max_element(amax_.begin() + begin, amax_.begin() + end));
  }
}

void RowGroupQuantizer::run(const float* values, std::int64_t row_stride, int rows,
                            std::uint8_t* codes, std::int64_t code_stride, std::uint8_t* scales) {
  const bool scale_per_row = block_rows(spec_.block_shape) == 1;
  if (!scale_per_row) find_group_scales(values, row_stride, rows, scales);
  for (int row = 0; row < rows; ++row) {
    const float* in = values + row * row_stride;
    std::uint8_t* row_scales = scales;
    if (scale_per_row) {
      row_scales += row * scale_cols(spec_.block_shape, cols_);
      find_row_scales(in, row_scales);
    }
    if (scale_per_row || row == 0) {
      expand_converted(spec_.block_shape, cols_, row_scales, inverse_.data(), inverse_e8m0);
    }
    encode_row(spec_.format, in, inverse_.data(), codes + row * code_stride, cols_);
  }
}

void expand_scales(BlockShape shape, const std::uint8_t* scales, float* values, std::int64_t cols) {
  expand_converted(shape, cols, scales, values, decode_e8m0);
}

float QuantizedMatrix::value(std::int64_t row, std::int64_t col) const {
  const std::uint8_t byte = code(row, col);
  return format == DType::kE4M3 ? mx::dequantize<E4M3>(byte, scale(row, col))
                                : mx::dequantize<E5M2>(byte, scale(row, col));
}

void quantize(const FloatView& matrix, const QuantizeSpec& spec, QuantizedMatrix& result) {
  RowGroupQuantizer quantizer(spec, matrix.cols);
  result.rows = matrix.rows;
  result.cols = matrix.cols;
  result.block_shape = spec.block_shape;
  result.format = spec.format;
  result.codes.resize(static_cast<std::size_t>(matrix.rows * matrix.cols));
  result.scales.resize(static_cast<std::size_t>(result.grid().size()));
  std::vector<float> gathered(matrix.col_stride == 1 ? 0 : kScaleBlock * matrix.cols);
  for (std::int64_t first = 0; first < matrix.rows; first += kScaleBlock) {
    const int rows = static_cast<int>(std::min<std::int64_t>(kScaleBlock, matrix.rows - first));
    const float* values = matrix.data + first * matrix.row_stride;
    std::int64_t row_stride = matrix.row_stride;
    if (matrix.col_stride != 1) {
      gather_rows(matrix, first, rows, gathered.data());
      values = gathered.data();
      row_stride = matrix.cols;
    }
    quantizer.run(values, row_stride, rows, result.codes.data() + first * matrix.cols, matrix.cols,
                  result.scales.data() + result.grid().index(first, 0));
  }
}

QuantizedMatrix quantize(const FloatView& matrix, const QuantizeSpec& spec) {
  QuantizedMatrix result;
  quantize(matrix, spec, result);
  return result;
}

std::vector<float> dequantize(const QuantizedMatrix& matrix) {
  const ScaleGrid grid = matrix.grid();
  std::vector<float> values(static_cast<std::size_t>(matrix.rows * matrix.cols));
  std::vector<float> scales(static_cast<std::size_t>(matrix.cols));
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    if (row % block_rows(matrix.block_shape) == 0) {
      expand_scales(matrix.block_shape, matrix.scales.data() + grid.index(row, 0), scales.data(),
                    matrix.cols);
    }
    const std::int64_t first = row * matrix.cols;
    decode_row(matrix.format, matrix.codes.data() + first, scales.data(), values.data() + first,
               matrix.cols);
  }
  return values;
}

}  // namespace mxfa::mx
