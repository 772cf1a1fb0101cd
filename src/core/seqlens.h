#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/check.h"

namespace mxfa::core {

/// Checks offsets of packed sequences: `cu_seqlens` int32 [batch + 1], sequence s owns the rows
/// [cu_seqlens[s], cu_seqlens[s + 1]) of a tensor with `total` rows. It starts at 0, never
/// decreases and ends at `total` or before it; rows behind its end are slack that belongs to no
/// sequence. `max_seqlen` >= 0 also bounds each length. Throws Error with `name` and the position.
inline void check_cu_seqlens(std::span<const std::int32_t> cu_seqlens, std::string_view name,
                             std::int64_t total, std::int64_t max_seqlen = -1) {
  expect(!cu_seqlens.empty(), name, "batch + 1 offsets", "none");
  expect(cu_seqlens[0] == 0, later("{}[0]", name), "0", cu_seqlens[0]);
  for (std::size_t s = 1; s < cu_seqlens.size(); ++s) {
    const std::int64_t length = std::int64_t{cu_seqlens[s]} - cu_seqlens[s - 1];
    if (length >= 0 && (max_seqlen < 0 || length <= max_seqlen) && cu_seqlens[s] <= total) continue;
    const std::string position = fmt::format("{}[{}]", name, s);
    expect(length >= 0, position, later("at least {}", cu_seqlens[s - 1]), cu_seqlens[s]);
    expect(cu_seqlens[s] <= total, position, later("at most {} (the rows given)", total),
           cu_seqlens[s]);
    expect(false, position, later("a sequence of at most {} rows", max_seqlen),
           later("one of {}", length));
  }
}

}  // namespace mxfa::core
