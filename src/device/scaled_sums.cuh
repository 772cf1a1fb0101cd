#pragma once

#include <cstdint>

#include "device/fp8.cuh"
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
  /// Values of the sums of packed rows row_of(i); counts those that overflowed. kHalf: FP16 sums.
  /// The common case, all of them finite, is told by their largest.
  template <bool kHalf, int kCount, class RowOf>
  __device__ void finish(float (&values)[kCount], RowOf row_of, unsigned& overflows) const {
    constexpr float kF16Max = 65504.0f;
    float most = 0.0f;
#pragma unroll
    for (const float value : values) most = max_nan(most, fabsf(value));
    if (!mx::is_finite(most)) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (mx::is_finite(values[i]) || explained(row_of(i))) continue;
        ++overflows;
        if (kHalf) values[i] = values[i] < 0.0f ? -kF16Max : kF16Max;  // a NaN: positive
      }
    }
    if constexpr (kHalf) {
#pragma unroll
      for (float& value : values) value *= factor;
    }
  }
  /// By whole warps.
  __device__ void report(unsigned overflows) const {
    if (sums->overflows == nullptr) return;
    const unsigned all = __reduce_add_sync(~0u, overflows);
    if (all != 0 && threadIdx.x % 32 == 0) {
      atomicAdd(sums->overflows, static_cast<unsigned long long>(all));
    }
  }
};

}  // namespace mxfa::device
