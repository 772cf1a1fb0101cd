#pragma once

#include <utility>

#include "device/operands.h"
#include "mx/lower.h"
#include "reference/recipe/recipe.h"

namespace mxfa::testing {

/// The operand's payload from its values, `binades` lower, `coarse` in steps of 4 binades; columns
/// of 32 tokens then add up to `half_sums` at most, if that is not 0.
inline void requantize(const reference::Matrix<float>& values, int binades,
                       reference::recipe::Operand& operand, bool coarse = false,
                       float half_sums = 0) {
  const mx::FloatView view = mx::row_major(values.data.data(), values.rows, values.cols);
  auto matrix = mx::lowered(std::move(operand.along_d), view, binades, coarse);
  if (half_sums > 0) matrix = mx::for_half_sums(std::move(matrix), view, half_sums, coarse);
  operand.along_d = operand.along_tokens = std::move(matrix);
}

/// As a backward of half scores wants them.
inline void lower_for_half_scores(const reference::HeadInputs& inputs,
                                  reference::recipe::Operands& operands) {
  requantize(inputs.q, device::kLoweredQ, operands.q, false, mx::kHalfSumsQ);
  requantize(inputs.k, device::kLoweredK, operands.k, true, mx::kHalfSumsK);
  requantize(inputs.v, device::kLoweredV, operands.v);
  requantize(inputs.dout, device::kLoweredDout, operands.dout, false, mx::kHalfSumsDout);
}

}  // namespace mxfa::testing
