#pragma once

#include <cstdint>

#include "attention/mask.h"
#include "core/host_device.h"

/// What a mask shows to a tile's rows, or to its keys, in 32 bits and two additions.
namespace mxfa::sm90 {

/// The i-th of a tile, counted from its first one, goes with [i + begin, i + end) of the other
/// side, clipped to [0, length), with none where that is empty. For lengths below 2^31 - kMargin,
/// and i up to kMargin, but that first() is right for everything behind the tile too.
struct Band {
  static constexpr std::int64_t kMargin = 1 << 10, kLimit = (std::int64_t{1} << 31) - kMargin;
  std::int32_t begin = 0;
  std::int32_t end = 0;

  MXFA_HOST_DEVICE constexpr std::int32_t first(std::int32_t i) const {
    return i + begin > 0 ? i + begin : 0;
  }
  MXFA_HOST_DEVICE constexpr std::int32_t end_of(std::int32_t i, std::int32_t length) const {
    return i + end < length ? i + end : length;
  }

  /// Keys that rows from `first_row` on see.
  MXFA_HOST_DEVICE static constexpr Band of_rows(const attention::Mask& mask, std::int32_t seqlen_q,
                                                 std::int32_t seqlen_k, std::int32_t first_row) {
    const std::int64_t diagonal = first_row + attention::diagonal_shift(mask, seqlen_q, seqlen_k);
    const std::int64_t begin = mask.window_left >= 0 ? diagonal - mask.window_left : -kLimit;
    std::int64_t end = mask.window_right >= 0 ? diagonal + mask.window_right + 1 : kLimit;
    if (mask.causal && diagonal + 1 < end) end = diagonal + 1;
    return {clamp(begin), clamp(end)};
  }
  /// Rows that see keys from `first_key` on.
  MXFA_HOST_DEVICE static constexpr Band of_keys(const attention::Mask& mask, std::int32_t seqlen_q,
                                                 std::int32_t seqlen_k, std::int32_t first_key) {
    const std::int64_t row = first_key - attention::diagonal_shift(mask, seqlen_q, seqlen_k);
    std::int64_t begin = mask.window_right >= 0 ? row - mask.window_right : -kLimit;
    if (mask.causal && row > begin) begin = row;
    const std::int64_t end = mask.window_left >= 0 ? row + 1 + mask.window_left : kLimit;
    return {clamp(begin), clamp(end)};
  }

 private:
  MXFA_HOST_DEVICE static constexpr std::int32_t clamp(std::int64_t x) {
    return static_cast<std::int32_t>(x < -kLimit ? -kLimit : x > kLimit ? kLimit : x);
  }
};

}  // namespace mxfa::sm90
