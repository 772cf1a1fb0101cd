#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "mx/e8m0.h"
#include "mx/fp8.h"

/// Payload for kernels that keep sums over tokens in half: the magnitudes of a column's 32 codes
/// add up to a bound at most, so that a sum of them times what they are multiplied by stays below
/// 65504. What values add up to, codes exceed by 17/16, where every one was rounded up.
namespace mxfa::mx {

/// Of V in P V: 128 keys times P, at most 256.
inline constexpr float kHalfSumsV = 60.0f;
/// Of Q in dK (dS is at most 56), of dO in dV (P' is at most 256, and a code or two more does no
/// harm): 512 queries each; of K in dQ (dS is at most 112): 192 keys (docs/numerics.md).
inline constexpr float kHalfSumsQ = 56.0f;
inline constexpr float kHalfSumsK = 56.0f;
inline constexpr float kHalfSumsDout = 10.0f;

/// What a value adds to its column's sum. Less than itself, so that no sum overflows.
MXFA_HOST_DEVICE constexpr float half_sums_part(float value) {
  return (value < 0 ? -value : value) * 0x1p-8f;
}

/// The least scale of a group of 32 rows whose columns' parts sum up to `sum` at most: then values
/// sum up to `most`. NaN and infinity: see scale_from_amax.
MXFA_HOST_DEVICE constexpr std::uint8_t half_sums_scale(float sum, float most) {
  return raised_scale(scale_from_amax<E4M3>(sum * (448.0f / most), ScaleRule::kRoundUp), 8);
}

}  // namespace mxfa::mx
