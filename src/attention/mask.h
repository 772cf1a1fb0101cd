#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "mxfa/types.h"

/// Which keys a query sees, as integers only: the definition that all machines share.
namespace mxfa::attention {

struct Mask {
  bool causal = false;
  CausalAlignment alignment = CausalAlignment::kBottomRight;
  int window_left = -1;   ///< keys further left than this are hidden; -1 = unbounded
  int window_right = -1;  ///< keys further right than this are hidden; -1 = unbounded
};

/// Keys [begin, end); empty where end <= begin.
struct KeyRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  MXFA_HOST_DEVICE constexpr bool empty() const { return end <= begin; }
  friend constexpr bool operator==(const KeyRange&, const KeyRange&) = default;
};

/// The keys that query `row` of one sequence sees. Causal and window count from the diagonal
/// `row` (top left) or `row + seqlen_k - seqlen_q` (bottom right).
MXFA_HOST_DEVICE constexpr KeyRange visible_keys(const Mask& mask, std::int64_t seqlen_q,
                                                 std::int64_t seqlen_k, std::int64_t row) {
  const std::int64_t diagonal =
      mask.alignment == CausalAlignment::kBottomRight ? row + seqlen_k - seqlen_q : row;
  std::int64_t begin = 0;
  std::int64_t end = seqlen_k;
  if (mask.window_left >= 0 && diagonal - mask.window_left > begin) {
    begin = diagonal - mask.window_left;
  }
  if (mask.window_right >= 0 && diagonal + mask.window_right + 1 < end) {
    end = diagonal + mask.window_right + 1;
  }
  if (mask.causal && diagonal + 1 < end) end = diagonal + 1;
  if (end <= begin) return {0, 0};
  return {begin, end};
}

}  // namespace mxfa::attention
