#include "cpu/matrix_reader.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "cpu/operand.h"
#include "mx/bits.h"
#include "mx/e8m0.h"
#include "mx/scale_grid.h"

namespace mxfa::cpu {

MatrixReader::MatrixReader(const MatrixOperand& operand, std::string_view name)
    : dtype_(operand.values.dtype), data_(operand.values.data), transposed_(operand.transposed) {
  const TensorView& values = operand.values;
  core::expect(values.rank == 2 || values.rank == 3, name,
               "[rows, cols] or [tokens, heads, head_dim]", values);
  const bool known = dtype_ == DType::kE4M3 || dtype_ == DType::kBF16 || dtype_ == DType::kF16 ||
                     dtype_ == DType::kF32;
  core::expect(known, name, "e4m3, bf16, f16 or f32", values);
  core::expect(data_ != nullptr || values.num_elements() == 0, name, "data", "a null pointer");
  const int last = values.rank - 1;
  rows_ = values.shape[0];
  head_dim_ = values.shape[last];
  cols_ = values.rank == 3 ? values.shape[1] * head_dim_ : head_dim_;
  row_stride_ = values.strides[0];
  head_stride_ = values.rank == 3 ? values.strides[1] : 0;
  col_stride_ = values.strides[last];
  offsets_ = operand.cu_seqlens.empty() ? mx::make_single_sequence(rows_)
                                        : mx::make_jagged_offsets(operand.cu_seqlens, rows_);
  if (dtype_ == DType::kE4M3) check_scales(operand, name);
}

void MatrixReader::check_scales(const MatrixOperand& operand, std::string_view name) {
  const TensorView& scales = operand.scales;
  const BlockShape shape = operand.block_shape;
  const int ranks = operand.values.rank - (mx::block_cols(shape) == 0 ? 1 : 0);
  const std::int64_t heads = head_dim_ > 0 ? cols_ / head_dim_ : 0;
  const std::int64_t needed = mx::block_rows(shape) == 1 ? rows_ : offsets_.scale_rows_total(shape);
  bool fits = scales.rank == ranks && (scales.dtype == DType::kE8M0 || scales.dtype == DType::kU8);
  fits = fits && scales.shape[0] >= needed;
  if (operand.values.rank == 3) fits = fits && scales.shape[1] == heads;
  if (mx::block_cols(shape) != 0) {
    fits = fits && scales.shape[ranks - 1] == mx::scale_cols(shape, head_dim_);
  }
  core::expect(fits, core::later("{}.scales", name),
               core::later("e8m0 scales of {} blocks of {}", block_shape_name(shape),
                           core::text(operand.values)),
               scales);
  scales_ = {static_cast<const std::uint8_t*>(scales.data), shape, scales.strides[0],
             operand.values.rank == 3 ? scales.strides[1] : 0,
             mx::block_cols(shape) == 0 ? 0 : scales.strides[ranks - 1]};
  anchor_ = -mx::kE8M0Bias;
  for (std::int64_t row = 0; row < offsets_.scale_rows_total(shape); ++row) {
    for (std::int64_t head = 0; head < heads; ++head) {
      for (std::int64_t c = 0; c < mx::scale_cols(shape, head_dim_); ++c) {
        const std::int64_t at =
            row * scales_.row_stride + head * scales_.head_stride + c * scales_.col_stride;
        anchor_ = std::max(anchor_, scale_exponent(scales_.data[at]));
      }
    }
  }
}

std::int64_t MatrixReader::scale_row(std::int64_t row) const {
  if (mx::block_rows(scales_.shape) == 1) return row;
  const auto& tokens = offsets_.tokens;
  const std::int64_t sequence =
      std::upper_bound(tokens.begin(), tokens.end(), row) - tokens.begin() - 1;
  return offsets_.scale_row(scales_.shape, sequence, row - tokens[sequence]);
}

void MatrixReader::read_row(std::int64_t row, const Region& region, const float* factors,
                            std::uint16_t* out) const {
  const Kernels& kernel = kernels();
  const std::int64_t end = std::min(region.col + region.cols, cols_);
  for (std::int64_t col = region.col; col < end;) {
    const std::int64_t head = col / head_dim_;
    const std::int64_t count = std::min((head + 1) * head_dim_, end) - col;
    const std::int64_t at =
        row * row_stride_ + head * head_stride_ + (col - head * head_dim_) * col_stride_;
    std::uint16_t* const to = out + (col - region.col);
    if (dtype_ == DType::kE4M3) {
      const auto* codes = static_cast<const std::uint8_t*>(data_) + at;
      const float* factor = factors + (col - region.col);
      if (col_stride_ == 1) {
        kernel.decode_e4m3(codes, factor, to, count);
      } else {
        for (std::int64_t i = 0; i < count; ++i) {
          kernel.decode_e4m3(codes + i * col_stride_, factor + i, to + i, 1);
        }
      }
    } else if (dtype_ == DType::kBF16) {
      const auto* from = static_cast<const std::uint16_t*>(data_) + at;
      for (std::int64_t i = 0; i < count; ++i) to[i] = from[i * col_stride_];
    } else if (dtype_ == DType::kF16) {
      const auto* from = static_cast<const std::uint16_t*>(data_) + at;
      for (std::int64_t i = 0; i < count; ++i) {
        to[i] = mx::encode_bf16(mx::decode_f16(from[i * col_stride_]));
      }
    } else {
      const float* from = static_cast<const float*>(data_) + at;
      if (col_stride_ == 1) {
        kernel.round_bf16(from, to, count);
      } else {
        for (std::int64_t i = 0; i < count; ++i) to[i] = mx::encode_bf16(from[i * col_stride_]);
      }
    }
    col += count;
  }
}

void MatrixReader::read(const Region& region, std::uint16_t* out, std::int64_t ld) const {
  const std::int64_t width = std::max<std::int64_t>(0, std::min(region.cols, cols_ - region.col));
  std::vector<float> factors(static_cast<std::size_t>(dtype_ == DType::kE4M3 ? width : 0));
  std::int64_t factors_row = -1;
  for (std::int64_t r = 0; r < region.rows; ++r) {
    const std::int64_t row = region.row + r;
    std::uint16_t* const to = out + r * ld;
    const bool real = row < offsets_.tokens.back();
    if (real && dtype_ == DType::kE4M3 && scale_row(row) != factors_row) {
      factors_row = scale_row(row);
      for (std::int64_t i = 0; i < width; ++i) {
        const std::int64_t col = region.col + i;
        const std::uint8_t byte = scales_.at(factors_row, col / head_dim_, col % head_dim_);
        factors[static_cast<std::size_t>(i)] =
            byte == mx::kE8M0Nan ? std::nanf("") : power_of_two(scale_exponent(byte) - anchor_);
      }
    }
    if (real) read_row(row, region, factors.data(), to);
    std::fill(to + (real ? width : 0), to + region.cols, std::uint16_t{0});
  }
}

}  // namespace mxfa::cpu
