#pragma once

#include <cstdint>

#include "attention/mask.h"
#include "core/host_device.h"

namespace mxfa::sm90::forward {

/// What a mask shows to rows counted from a tile's first one, in 32 bits and two additions: row r
/// sees keys [max(0, r + begin), min(seqlen_k, r + end)), none where that is empty. For lengths
/// below 2^31 - kMargin, and rows up to kMargin.
struct KeyBand {
  static constexpr std::int64_t kMargin = 1 << 10, kLimit = (std::int64_t{1} << 31) - kMargin;
  std::int32_t begin = 0;
  std::int32_t end = 0;

  MXFA_HOST_DEVICE static constexpr KeyBand of(const attention::Mask& mask, std::int32_t seqlen_q,
                                               std::int32_t seqlen_k, std::int32_t first_row) {
    const bool bottom_right = mask.alignment == CausalAlignment::kBottomRight;
    const std::int64_t diagonal =
        std::int64_t{first_row} + (bottom_right ? std::int64_t{seqlen_k} - seqlen_q : 0);
    const std::int64_t begin = mask.window_left >= 0 ? diagonal - mask.window_left : -kLimit;
    std::int64_t end = mask.window_right >= 0 ? diagonal + mask.window_right + 1 : kLimit;
    if (mask.causal && diagonal + 1 < end) end = diagonal + 1;
    return {clamp(begin), clamp(end)};
  }
  MXFA_HOST_DEVICE constexpr std::int32_t first_key(std::int32_t row) const {
    return row + begin > 0 ? row + begin : 0;
  }
  MXFA_HOST_DEVICE constexpr std::int32_t end_key(std::int32_t row, std::int32_t seqlen_k) const {
    return row + end < seqlen_k ? row + end : seqlen_k;
  }

 private:
  MXFA_HOST_DEVICE static constexpr std::int32_t clamp(std::int64_t x) {
    return static_cast<std::int32_t>(x < -kLimit ? -kLimit : x > kLimit ? kLimit : x);
  }
};

}  // namespace mxfa::sm90::forward
