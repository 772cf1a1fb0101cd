#pragma once

#include "device/operands.h"
#include "mx/half_sums.h"
#include "reference/recipe/recipe.h"

namespace mxfa::testing {

/// As a backward of half scores wants them.
inline void lower_for_half_scores(const reference::HeadInputs& inputs,
                                  reference::recipe::Operands& operands) {
  reference::recipe::requantize(inputs.q, device::kLoweredQ, operands.q, false, mx::kHalfSumsQ);
  reference::recipe::requantize(inputs.k, device::kLoweredK, operands.k, true, mx::kHalfSumsK);
  reference::recipe::requantize(inputs.v, device::kLoweredV, operands.v);
  reference::recipe::requantize(inputs.dout, device::kLoweredDout, operands.dout, false,
                                mx::kHalfSumsDout);
}

}  // namespace mxfa::testing
