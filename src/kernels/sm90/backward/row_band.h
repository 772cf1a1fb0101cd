#pragma once

#include <cstdint>

#include "attention/mask.h"
#include "core/host_device.h"

namespace mxfa::sm90::backward {

/// Which queries see the keys of a tile, in 32 bits: its i-th key, where it exists, is seen by the
/// rows [i + begin, i + end) that are in [0, seqlen_q), by none where that is empty. For lengths
/// below 2^31 - kMargin, and i up to kMargin, but that first_row() is right for every later key of
/// the sequence.
struct RowBand {
  static constexpr std::int64_t kMargin = 1 << 10, kLimit = (std::int64_t{1} << 31) - kMargin;
  std::int32_t begin = 0;
  std::int32_t end = 0;

  MXFA_HOST_DEVICE static constexpr RowBand of(const attention::Mask& mask, std::int32_t seqlen_q,
                                               std::int32_t seqlen_k, std::int32_t first_key) {
    const std::int64_t row = first_key - shift_of(mask, seqlen_q, seqlen_k);
    std::int64_t begin = mask.window_right >= 0 ? row - mask.window_right : -kLimit;
    if (mask.causal && row > begin) begin = row;
    const std::int64_t end = mask.window_left >= 0 ? row + 1 + mask.window_left : kLimit;
    return {clamp(begin), clamp(end)};
  }
  MXFA_HOST_DEVICE constexpr std::int32_t first_row(std::int32_t key) const {
    return key + begin > 0 ? key + begin : 0;
  }
  MXFA_HOST_DEVICE constexpr std::int32_t end_row(std::int32_t key, std::int32_t seqlen_q) const {
    return key + end < seqlen_q ? key + end : seqlen_q;
  }

 private:
  MXFA_HOST_DEVICE static constexpr std::int64_t shift_of(const attention::Mask& mask,
                                                          std::int32_t seqlen_q,
                                                          std::int32_t seqlen_k) {
    const bool bottom_right = mask.alignment == CausalAlignment::kBottomRight;
    return bottom_right ? std::int64_t{seqlen_k} - seqlen_q : 0;
  }
  MXFA_HOST_DEVICE static constexpr std::int32_t clamp(std::int64_t x) {
    return static_cast<std::int32_t>(x < -kLimit ? -kLimit : x > kLimit ? kLimit : x);
  }
};

}  // namespace mxfa::sm90::backward
