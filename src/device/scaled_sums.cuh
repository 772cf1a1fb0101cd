#pragma once

#include <cstdint>

#include "device/quantize.h"
#include "mx/bits.h"

/// What becomes of sums: device side of ScaledSums.
namespace mxfa::device {

/// The sums of one (sequence, head).
struct SumsOfHead {
  const ScaledSums* sums;
  std::int64_t row_values;  ///< offset of the head's row 0 in lse and delta
  float factor;             ///< 2^-exponent

  __device__ SumsOfHead(const ScaledSums& all, int sequence, int num_heads, int head)
      : sums(&all), row_values(head * all.head_stride) {
    const int exponent = all.exponents == nullptr
                             ? all.exponent
                             : all.exponents[std::int64_t{sequence} * num_heads + head];
    factor = __int_as_float((127 - min(max(exponent, -64), 64)) << 23);
  }

  __device__ bool explained(std::int64_t row) const {
    return (sums->lse != nullptr && mx::is_nan(sums->lse[row_values + row])) ||
           (sums->delta != nullptr && mx::is_nan(sums->delta[row_values + row]));
  }
  /// Counts a sum of packed row `row` that overflowed.
  __device__ bool overflowed(float sum, std::int64_t row, unsigned& overflows) const {
    const bool counted = !mx::is_finite(sum) && !explained(row);
    if (counted) ++overflows;
    return counted;
  }
  /// The value of an FP16 sum in packed row `row`; counts what overflowed.
  __device__ float finish(float sum, std::int64_t row, unsigned& overflows) const {
    constexpr float kF16Max = 65504.0f;
    if (overflowed(sum, row, overflows)) {
      sum = sum < 0.0f ? -kF16Max : kF16Max;  // a NaN is no sign: positive
    }
    return sum * factor;
  }
  __device__ void report(unsigned overflows) const {
    if (overflows != 0 && sums->overflows != nullptr) {
      atomicAdd(sums->overflows, static_cast<unsigned long long>(overflows));
    }
  }
};

}  // namespace mxfa::device
