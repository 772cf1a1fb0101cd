#pragma once

#include <algorithm>

#include "mx/e8m0.h"
#include "mx/fp8.h"
#include "mx/half_sums.h"
#include "mx/quantize.h"

namespace mxfa::mx {

/// Payload of an E4M3 tensor with the same values, `binades` smaller than the format allows:
/// operands of kernels that keep scores in half (device/operands.h). `coarse`: its scales in steps
/// of 4 binades first.
inline QuantizedMatrix lowered(QuantizedMatrix matrix, const FloatView& values, int binades,
                               bool coarse = false) {
  if (binades == 0 && !coarse) return matrix;
  for (std::uint8_t& scale : matrix.scales) {
    scale = raised_scale(coarse ? coarse_scale(scale) : scale, binades);
  }
  for (std::int64_t row = 0; row < values.rows; ++row) {
    for (std::int64_t col = 0; col < values.cols; ++col) {
      const std::uint8_t scale = matrix.scale(row, col);
      if (scale == kE8M0Nan) continue;
      const float value = values.data[row * values.row_stride + col * values.col_stride];
      matrix.codes[row * values.cols + col] = encode_scaled<E4M3>(value, scale);
    }
  }
  return matrix;
}

/// Payload in blocks of 32xD with the same values, the magnitudes of whose columns add up to `most`
/// in each group, or less (mx/half_sums.h). `coarse`: its scales in steps of 4 binades again.
inline QuantizedMatrix for_half_sums(QuantizedMatrix matrix, const FloatView& values, float most,
                                     bool coarse = false) {
  const auto value = [&](std::int64_t row, std::int64_t col) {
    return values.data[row * values.row_stride + col * values.col_stride];
  };
  for (std::int64_t group = 0; group < values.rows; group += kScaleBlock) {
    float largest = 0;
    for (std::int64_t col = 0; col < values.cols; ++col) {
      float sums[2] = {};
      for (std::int64_t row = group; row < std::min(group + kScaleBlock, values.rows); ++row) {
        sums[row % 2] += half_sums_part(value(row, col));
      }
      largest = std::max(largest, sums[0] + sums[1]);
    }
    std::uint8_t& scale = matrix.scales[static_cast<std::size_t>(matrix.grid().index(group, 0))];
    scale = std::max(scale, half_sums_scale(largest, most));
    if (coarse) scale = coarse_scale(scale);
    if (scale == kE8M0Nan) continue;
    for (std::int64_t row = group; row < std::min(group + kScaleBlock, values.rows); ++row) {
      for (std::int64_t col = 0; col < values.cols; ++col) {
        matrix.codes[row * values.cols + col] = encode_scaled<E4M3>(value(row, col), scale);
      }
    }
  }
  return matrix;
}

}  // namespace mxfa::mx
