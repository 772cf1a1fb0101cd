#pragma once

#include "mx/e8m0.h"

namespace mxfa::mx {

/// E8M0 to an exponent. A NaN block has NaN codes, so any exponent serves: the least.
MXFA_HOST_DEVICE constexpr int scale_exponent(std::uint8_t scale) {
  return scale == kE8M0Nan ? -kE8M0Bias : int{scale} - kE8M0Bias;
}

}  // namespace mxfa::mx
