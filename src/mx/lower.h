#pragma once

#include <cmath>

#include "mx/e8m0.h"
#include "mx/fp8.h"
#include "mx/quantize.h"

namespace mxfa::mx {

/// Payload of an E4M3 tensor with the same values, `binades` smaller than the format allows:
/// operands of kernels that keep scores in half (device/operands.h).
inline QuantizedMatrix lowered(QuantizedMatrix matrix, const FloatView& values, int binades) {
  if (binades == 0) return matrix;
  for (std::uint8_t& scale : matrix.scales) {
    if (scale != kE8M0Nan) scale = static_cast<std::uint8_t>(scale + binades);
  }
  for (std::int64_t row = 0; row < values.rows; ++row) {
    for (std::int64_t col = 0; col < values.cols; ++col) {
      const std::uint8_t scale = matrix.scale(row, col);
      if (scale == kE8M0Nan) continue;
      const float value = values.data[row * values.row_stride + col * values.col_stride];
      matrix.codes[row * values.cols + col] = encode_e4m3(std::ldexp(value, 127 - scale));
    }
  }
  return matrix;
}

}  // namespace mxfa::mx
