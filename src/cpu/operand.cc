#include "cpu/operand.h"

#include <algorithm>
#include <cmath>

#include "cpu/units.h"
#include "mx/bits.h"
#include "mx/convert.h"
#include "mx/e8m0.h"
#include "mx/fp8.h"
#include "mx/quantize.h"

namespace mxfa::cpu {
namespace {

constexpr std::int64_t kRowsAhead = 8;
constexpr std::int64_t kLineBytes = 64;

}  // namespace

float power_of_two(int exponent) {
  return mx::bits_float(static_cast<std::uint32_t>(std::clamp(exponent, -126, 127) + 127) << 23);
}

HeadRows::HeadRows(const Operand& operand, std::int64_t sequence, std::int64_t head)
    : operand_(operand),
      sequence_(operand.sequence_of(sequence)),
      head_(head),
      first_token_(operand.offsets->tokens[sequence_]),
      seqlen_(operand.offsets->seqlen(sequence_)) {
  if (!operand.quantized()) return;
  factors_.resize(static_cast<std::size_t>(operand.head_dim));
  const BlockShape shape = operand.scales.shape;
  const std::int64_t step = std::max(mx::block_cols(shape), 1);
  anchor_ = -mx::kE8M0Bias;
  for (std::int64_t row = 0; row < seqlen_; row += mx::block_rows(shape)) {
    for (std::int64_t col = 0; col < operand.head_dim; col += step) {
      anchor_ = std::max(anchor_, scale_exponent(scale(row, col)));
      if (mx::block_cols(shape) == 0) break;
    }
  }
}

std::int64_t HeadRows::element(std::int64_t row) const {
  return (first_token_ + row) * operand_.token_stride + head_ * operand_.head_stride;
}

std::uint8_t HeadRows::scale(std::int64_t row, std::int64_t col) const {
  const auto& scales = operand_.scales;
  return scales.at(operand_.offsets->scale_row(scales.shape, sequence_, row), head_, col);
}

/// Rows of one head lie apart: the hardware does not see them coming.
void HeadRows::prefetch(std::int64_t row) const {
  if (row >= seqlen_) return;
  const auto size = static_cast<std::int64_t>(dtype_size(operand_.dtype));
  const char* const from = static_cast<const char*>(operand_.data) + element(row) * size;
  for (std::int64_t byte = 0; byte < operand_.head_dim * size; byte += kLineBytes) {
    __builtin_prefetch(from + byte);
  }
}

int HeadRows::exponent(std::int64_t row) const {
  return operand_.quantized() ? scale_exponent(scale(row, 0)) : 0;
}

const float* HeadRows::factors(std::int64_t row, int anchor) {
  const std::int64_t scale_row = operand_.offsets->scale_row(operand_.scales.shape, sequence_, row);
  if (scale_row == factors_row_ && anchor == factors_anchor_) return factors_.data();
  factors_row_ = scale_row;
  factors_anchor_ = anchor;
  const int width = mx::block_cols(operand_.scales.shape);
  const std::int64_t dim = operand_.head_dim;
  for (std::int64_t col = 0; col < dim; col += width == 0 ? dim : width) {
    const std::uint8_t byte = scale(row, col);
    const float factor =
        byte == mx::kE8M0Nan ? std::nanf("") : power_of_two(scale_exponent(byte) - anchor);
    std::fill_n(factors_.begin() + col, std::min<std::int64_t>(width == 0 ? dim : width, dim - col),
                factor);
  }
  return factors_.data();
}

void HeadRows::read(std::int64_t row, std::int64_t rows, std::int64_t cols, std::uint16_t* out,
                    std::int64_t ld) {
  for (std::int64_t r = 0; r < rows; ++r) read_row(row + r, cols, out + r * ld);
}

void HeadRows::read_row(std::int64_t token, std::int64_t cols, std::uint16_t* out) {
  const Kernels& kernel = kernels();
  const std::int64_t dim = operand_.head_dim;
  std::int64_t filled = 0;
  if (token < seqlen_) {
    filled = dim;
    const std::int64_t at = element(token);
    prefetch(token + kRowsAhead);
    if (operand_.dtype == DType::kE4M3) {
      kernel.decode_e4m3(static_cast<const std::uint8_t*>(operand_.data) + at,
                         factors(token, anchor_), out, dim);
    } else if (operand_.dtype == DType::kBF16) {
      std::copy_n(static_cast<const std::uint16_t*>(operand_.data) + at, dim, out);
    } else {
      kernel.round_bf16(static_cast<const float*>(operand_.data) + at, out, dim);
    }
  }
  std::fill(out + filled, out + cols, std::uint16_t{0});
}

void HeadRows::read_pieces(std::int64_t row, std::int64_t rows, std::uint16_t* out) {
  const std::int64_t cols = round_up(operand_.head_dim, kTileDepth);
  const LeftLayout layout = LeftLayout::pieces(cols);
  Buffer<std::uint16_t> plain(cols);
  for (std::int64_t r = 0; r < rows; ++r) {
    read_row(row + r, cols, plain.data());
    for (std::int64_t c = 0; c < cols; c += kTileDepth) {
      std::copy_n(plain.data() + c, kTileDepth, out + layout.at(r, c));
    }
  }
}

void HeadRows::read_payload(std::int64_t row, std::int64_t rows, std::int64_t cols,
                            int min_exponent, std::uint16_t* out, std::int64_t ld) {
  const std::vector<float> ones(static_cast<std::size_t>(operand_.head_dim), 1.0f);
  for (std::int64_t r = 0; r < rows; ++r) {
    std::uint16_t* to = out + r * ld;
    const std::int64_t token = row + r;
    std::int64_t filled = 0;
    if (token < seqlen_) {
      filled = operand_.head_dim;
      const auto* codes = static_cast<const std::uint8_t*>(operand_.data) + element(token);
      const std::uint8_t byte = scale(token, 0);
      const int low = byte == mx::kE8M0Nan ? 0 : min_exponent - scale_exponent(byte);
      if (low <= 0 && byte != mx::kE8M0Nan) {
        kernels().decode_e4m3(codes, ones.data(), to, filled);
      } else {
        for (std::int64_t c = 0; c < filled; ++c) {
          const float value = mx::decode_e4m3(codes[c]) * power_of_two(-low);
          const float raised = mx::decode_e4m3(mx::encode_e4m3(value));
          to[c] = mx::encode_bf16(byte == mx::kE8M0Nan ? std::nanf("") : raised);
        }
      }
    }
    std::fill(to + filled, to + cols, std::uint16_t{0});
  }
}

void HeadRows::read_float(std::int64_t row, bool as_operand, float* out) {
  const std::int64_t dim = operand_.head_dim;
  const std::int64_t at = element(row);
  prefetch(row + kRowsAhead);
  if (operand_.dtype == DType::kE4M3) {
    mx::decode_row(DType::kE4M3, static_cast<const std::uint8_t*>(operand_.data) + at,
                   factors(row, 0), out, dim);
  } else if (operand_.dtype == DType::kBF16) {
    mx::decode_bf16_row(static_cast<const std::uint16_t*>(operand_.data) + at, out, dim);
  } else {
    std::copy_n(static_cast<const float*>(operand_.data) + at, dim, out);
    for (std::int64_t c = 0; as_operand && c < dim; ++c) out[c] = mx::round_bf16(out[c]);
  }
}

void pack_columns(const Kernels& kernel, const std::uint16_t* rows_data, std::int64_t ld,
                  std::int64_t rows, std::int64_t cols, std::uint16_t* panels) {
  for (std::int64_t row = 0; row < rows; row += kPanel) {
    kernel.transpose_pairs(rows_data + row * ld, ld, panels + row * cols, 2 * kPanel, kPanel,
                           cols / 2);
  }
}

void pack_rows(const Kernels& kernel, const std::uint16_t* rows_data, std::int64_t ld,
               std::int64_t rows, std::int64_t cols, std::uint16_t* panels,
               std::int64_t panel_stride) {
  for (std::int64_t col = 0; col < cols; col += kPanel) {
    std::uint16_t* panel = panels + col / kPanel * panel_stride;
    for (std::int64_t row = 0; row < rows; row += 2) {
      const std::uint16_t* even = rows_data + row * ld + col;
      kernel.interleave(even, even + ld, panel + row * kPanel, kPanel);
    }
  }
}

namespace {

void write_quantized(const Target& target, mx::SequenceHead which, std::int64_t row,
                     std::int64_t rows, const float* values, std::int64_t ld) {
  const mx::CompactScales<std::uint8_t>& scales = target.scales;
  const std::int64_t cols = target.head_dim;
  const std::int64_t grid_cols = mx::scale_cols(scales.shape, cols);
  mx::RowGroupQuantizer quantizer({.block_shape = scales.shape, .rule = target.rule}, cols);
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(kScaleBlock * cols));
  std::vector<std::uint8_t> group(static_cast<std::size_t>(kScaleBlock * grid_cols));
  auto* const payload = static_cast<std::uint8_t*>(target.data);
  for (std::int64_t r = 0; r < rows; r += kScaleBlock) {
    const int count = static_cast<int>(std::min<std::int64_t>(kScaleBlock, rows - r));
    quantizer.run(values + r * ld, ld, count, codes.data(), cols, group.data());
    const std::int64_t token = target.offsets->tokens[which.sequence] + row + r;
    for (std::int64_t i = 0; i < count; ++i) {
      std::uint8_t* to =
          payload + (token + i) * target.token_stride + which.head * target.head_stride;
      for (std::int64_t c = 0; c < cols; ++c) to[c * target.dim_stride] = codes[i * cols + c];
    }
    const std::int64_t first = target.offsets->scale_row(scales.shape, which.sequence, row + r);
    for (std::int64_t i = 0; i < mx::scale_rows(scales.shape, count); ++i) {
      for (std::int64_t c = 0; c < grid_cols; ++c) {
        scales.data[(first + i) * scales.row_stride + which.head * scales.head_stride +
                    c * scales.col_stride] = group[i * grid_cols + c];
      }
    }
  }
}

}  // namespace

void write_rows(const Target& target, mx::SequenceHead which, std::int64_t row, std::int64_t rows,
                const float* values, std::int64_t ld) {
  if (target.data == nullptr) return;
  if (target.dtype == DType::kE4M3) return write_quantized(target, which, row, rows, values, ld);
  const std::int64_t token = target.offsets->tokens[which.sequence] + row;
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* from = values + r * ld;
    const std::int64_t at = (token + r) * target.token_stride + which.head * target.head_stride;
    if (target.dtype == DType::kF32) {
      float* to = static_cast<float*>(target.data) + at;
      for (std::int64_t c = 0; c < target.head_dim; ++c) to[c * target.dim_stride] = from[c];
    } else {
      auto* to = static_cast<std::uint16_t*>(target.data) + at;
      if (target.dim_stride == 1) {
        kernels().round_bf16(from, to, target.head_dim);
      } else {
        for (std::int64_t c = 0; c < target.head_dim; ++c) {
          to[c * target.dim_stride] = mx::encode_bf16(from[c]);
        }
      }
    }
  }
}

}  // namespace mxfa::cpu
