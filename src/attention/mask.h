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

/// Causal and window count from the diagonal: key `row + diagonal_shift` of query `row`.
MXFA_HOST_DEVICE constexpr std::int64_t diagonal_shift(const Mask& mask, std::int64_t seqlen_q,
                                                       std::int64_t seqlen_k) {
  return mask.alignment == CausalAlignment::kBottomRight ? seqlen_k - seqlen_q : 0;
}

/// The keys that query `row` of one sequence sees.
MXFA_HOST_DEVICE constexpr KeyRange visible_keys(const Mask& mask, std::int64_t seqlen_q,
                                                 std::int64_t seqlen_k, std::int64_t row) {
  const std::int64_t diagonal = row + diagonal_shift(mask, seqlen_q, seqlen_k);
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

/// Rows [row_begin, row_end) x columns [col_begin, col_end) of one sequence's score matrix; it may
/// reach past the sequence.
struct Tile {
  std::int64_t row_begin = 0;
  std::int64_t row_end = 0;
  std::int64_t col_begin = 0;
  std::int64_t col_end = 0;
};

enum class TileKind : std::uint8_t {
  kSkip,     ///< no query of the tile sees a key of it
  kFull,     ///< every query of the tile sees every column of it, so no mask is needed
  kPartial,  ///< anything else: apply visible_keys() row by row
};

/// The smallest range that holds every key seen by the rows [row_begin, row_end), clipped to the
/// sequence. Each of its keys is seen by at least one row: the ranges of consecutive rows touch,
/// for each holds its diagonal (before the clip to [0, seqlen_k)) and moves by one.
MXFA_HOST_DEVICE constexpr KeyRange visible_span(const Mask& mask, std::int64_t seqlen_q,
                                                 std::int64_t seqlen_k, std::int64_t row_begin,
                                                 std::int64_t row_end) {
  if (row_begin < 0) row_begin = 0;
  if (row_end > seqlen_q) row_end = seqlen_q;
  if (row_begin >= row_end) return {0, 0};
  const std::int64_t shift = diagonal_shift(mask, seqlen_q, seqlen_k);
  const std::int64_t last_diagonal = row_end - 1 + shift;
  std::int64_t begin = 0;
  std::int64_t end = seqlen_k;
  if (mask.window_left >= 0 && row_begin + shift - mask.window_left > begin) {
    begin = row_begin + shift - mask.window_left;
  }
  if (mask.window_right >= 0 && last_diagonal + mask.window_right + 1 < end) {
    end = last_diagonal + mask.window_right + 1;
  }
  if (mask.causal && last_diagonal + 1 < end) end = last_diagonal + 1;
  if (end <= begin) return {0, 0};
  return {begin, end};
}

/// The queries that see at least one key of [col_begin, col_end); empty where there is none.
MXFA_HOST_DEVICE constexpr KeyRange seeing_rows(const Mask& mask, std::int64_t seqlen_q,
                                                std::int64_t seqlen_k, std::int64_t col_begin,
                                                std::int64_t col_end) {
  if (col_begin < 0) col_begin = 0;
  if (col_end > seqlen_k) col_end = seqlen_k;
  if (col_begin >= col_end) return {0, 0};
  const std::int64_t shift = diagonal_shift(mask, seqlen_q, seqlen_k);
  std::int64_t begin = 0;
  std::int64_t end = seqlen_q;
  if (mask.causal && col_begin - shift > begin) begin = col_begin - shift;
  if (mask.window_right >= 0 && col_begin - shift - mask.window_right > begin) {
    begin = col_begin - shift - mask.window_right;
  }
  if (mask.window_left >= 0 && col_end - shift + mask.window_left < end) {
    end = col_end - shift + mask.window_left;
  }
  if (end <= begin) return {0, 0};
  return {begin, end};
}

/// Whether a tile can be skipped, needs no mask, or needs one. Rows past the sequence do not count
/// (their results are never stored); columns past it are hidden, so such a tile is never full.
MXFA_HOST_DEVICE constexpr TileKind classify(const Mask& mask, std::int64_t seqlen_q,
                                             std::int64_t seqlen_k, const Tile& tile) {
  const std::int64_t row_begin = tile.row_begin > 0 ? tile.row_begin : 0;
  const std::int64_t row_end = tile.row_end < seqlen_q ? tile.row_end : seqlen_q;
  if (row_begin >= row_end || tile.col_begin >= tile.col_end) return TileKind::kSkip;
  const KeyRange any = visible_span(mask, seqlen_q, seqlen_k, row_begin, row_end);
  if (any.empty() || any.begin >= tile.col_end || any.end <= tile.col_begin) {
    return TileKind::kSkip;
  }
  // Both ends of a row's range only grow with the row.
  const KeyRange first = visible_keys(mask, seqlen_q, seqlen_k, row_begin);
  const KeyRange last = visible_keys(mask, seqlen_q, seqlen_k, row_end - 1);
  const bool full =
      !first.empty() && !last.empty() && last.begin <= tile.col_begin && first.end >= tile.col_end;
  return full ? TileKind::kFull : TileKind::kPartial;
}

}  // namespace mxfa::attention
