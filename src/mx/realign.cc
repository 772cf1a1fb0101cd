#include "mx/realign.h"

#include <algorithm>

#include "core/check.h"
#include "mx/convert.h"
#include "mx/e8m0.h"

namespace mxfa::mx {

void RealignReport::add(const RealignReport& other) {
  blocks += other.blocks;
  blocks_shifted += other.blocks_shifted;
  blocks_far += other.blocks_far;
  values_flushed += other.values_flushed;
  groups_poisoned += other.groups_poisoned;
  max_shift = std::max(max_shift, other.max_shift);
}

GroupRealigner::GroupRealigner(BlockShape source_shape, DType format, std::int64_t cols)
    : shape_(source_shape),
      format_(format),
      cols_(cols),
      block_width_(block_cols(source_shape) == 0 ? std::max<std::int64_t>(cols, 1)
                                                 : block_cols(source_shape)),
      ones_(static_cast<std::size_t>(cols), 1.0f),
      factors_(static_cast<std::size_t>(cols)),
      values_(static_cast<std::size_t>(cols)),
      shifted_(static_cast<std::size_t>(cols)) {
  core::expect(format == DType::kE4M3 || format == DType::kE5M2, "format", "e4m3 or e5m2",
               dtype_name(format));
}

GroupRealigner::Block GroupRealigner::inspect(const std::uint8_t* codes, std::int64_t stride,
                                              int rows, std::int64_t cols) const {
  const std::uint8_t max_code = format_ == DType::kE4M3 ? E4M3::kMaxCode : E5M2::kMaxCode;
  std::uint8_t top = 0;
  for (int row = 0; row < rows; ++row) {
    for (std::int64_t col = 0; col < cols; ++col) {
      top = std::max(top, static_cast<std::uint8_t>(codes[row * stride + col] & 0x7F));
    }
  }
  return {.zero = top == 0, .poisoned = top > max_code};
}

void GroupRealigner::inspect_group(const std::uint8_t* codes, std::int64_t stride, int rows,
                                   const std::uint8_t* scales) {
  const int height = block_rows(shape_);
  blocks_.clear();
  for (int row = 0; row < rows; row += height) {
    for (std::int64_t col = 0; col < cols_; col += block_width_) {
      Block block = inspect(codes + row * stride + col, stride, std::min(height, rows - row),
                            std::min(block_width_, cols_ - col));
      block.scale = scales[blocks_.size()];
      block.poisoned = block.poisoned || block.scale == kE8M0Nan;
      blocks_.push_back(block);
    }
  }
}

std::uint8_t GroupRealigner::group_scale() {
  std::uint8_t scale = 0;
  bool poisoned = false;
  for (const Block& block : blocks_) {
    if (!block.zero) scale = std::max(scale, block.scale);
    poisoned = poisoned || block.poisoned;
  }
  if (poisoned) {
    ++report_.groups_poisoned;
    return kE8M0Nan;
  }
  for (const Block& block : blocks_) {
    if (block.zero) continue;
    const int shift = scale - block.scale;
    ++report_.blocks;
    report_.blocks_shifted += shift > 0 ? 1 : 0;
    report_.blocks_far += shift > kTolerableShift ? 1 : 0;
    report_.max_shift = std::max(report_.max_shift, shift);
  }
  return scale;
}

void GroupRealigner::shift_row(const std::uint8_t* codes, const Block* row_blocks,
                               std::uint8_t scale, std::uint8_t* out) {
  // Beyond 64 binades every code of both formats is zero: the factor stays a normal number.
  constexpr int kMaxShift = 64;
  for (std::int64_t begin = 0, j = 0; begin < cols_; begin += block_width_, ++j) {
    const Block& block = row_blocks[j];
    const int shift = block.zero ? 0 : std::min(scale - block.scale, kMaxShift);
    std::fill(factors_.begin() + begin, factors_.begin() + std::min(begin + block_width_, cols_),
              decode_e8m0(static_cast<std::uint8_t>(kE8M0Bias - shift)));
  }
  decode_row(format_, codes, factors_.data(), values_.data(), cols_);
  encode_row(format_, values_.data(), ones_.data(), shifted_.data(), cols_);
  for (std::int64_t col = 0; col < cols_; ++col) {
    const bool flushed = (codes[col] & 0x7F) != 0 && (shifted_[col] & 0x7F) == 0;
    report_.values_flushed += flushed ? 1 : 0;
  }
  std::copy(shifted_.begin(), shifted_.end(), out);
}

std::uint8_t GroupRealigner::run(const std::uint8_t* codes, std::int64_t stride, int rows,
                                 const std::uint8_t* scales, std::uint8_t* out,
                                 std::int64_t out_stride) {
  inspect_group(codes, stride, rows, scales);
  const std::uint8_t scale = group_scale();
  const std::int64_t blocks_a_row = scale_cols(shape_, cols_);
  for (int row = 0; row < rows; ++row) {
    if (scale == kE8M0Nan) {
      std::fill(out + row * out_stride, out + row * out_stride + cols_, E4M3::kNanCode);
      continue;
    }
    shift_row(codes + row * stride, blocks_.data() + row / block_rows(shape_) * blocks_a_row, scale,
              out + row * out_stride);
  }
  return scale;
}

QuantizedMatrix realign(const QuantizedMatrix& matrix, RealignReport* report) {
  QuantizedMatrix result{matrix.rows,
                         matrix.cols,
                         BlockShape::k32xD,
                         matrix.format,
                         std::vector<std::uint8_t>(matrix.codes.size()),
                         {}};
  result.scales.resize(static_cast<std::size_t>(result.grid().size()));
  GroupRealigner realigner(matrix.block_shape, matrix.format, matrix.cols);
  for (std::int64_t first = 0, group = 0; first < matrix.rows; first += kScaleBlock, ++group) {
    const int rows = static_cast<int>(std::min<std::int64_t>(kScaleBlock, matrix.rows - first));
    if (matrix.cols == 0) break;
    result.scales[group] = realigner.run(matrix.codes.data() + first * matrix.cols, matrix.cols,
                                         rows, matrix.scales.data() + matrix.grid().index(first, 0),
                                         result.codes.data() + first * matrix.cols, matrix.cols);
  }
  if (report != nullptr) *report = realigner.report();
  return result;
}

}  // namespace mxfa::mx
