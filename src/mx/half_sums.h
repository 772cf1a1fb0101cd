#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "mx/e8m0.h"
#include "mx/fp8.h"

/// Payload of V for kernels that keep sums of P V in half: the magnitudes of a column's 32 codes
/// add up to less than 64, so that those of 128 keys times P, at most 256, stay below 65504.
namespace mxfa::mx {

/// What a value adds to its column's sum. Less than itself, so that no sum overflows.
MXFA_HOST_DEVICE constexpr float half_sums_part(float value) {
  return (value < 0 ? -value : value) * 0x1p-8f;
}

/// The least scale of a group of 32 rows whose columns' parts sum up to `sum` at most: then values
/// sum up to 60 units, and to 63.8 when each is rounded up. NaN and infinity: see scale_from_amax.
MXFA_HOST_DEVICE constexpr std::uint8_t half_sums_scale(float sum) {
  return raised_scale(scale_from_amax<E4M3>(sum * (448.0f / 60.0f), ScaleRule::kRoundUp), 8);
}

}  // namespace mxfa::mx
