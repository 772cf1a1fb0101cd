#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "mx/scale_grid.h"
#include "mx/scale_layout.h"
#include "mxfa/types.h"

/// Scales of packed sequences. Payload stays at its packed rows; only scales, 32x smaller, move
/// between two homes:
/// - compact: one row of scales for each token (1x32, 1xD) at its packed row, or for each group of
///   32 tokens at the prefix sum of ceil(seqlen/32). Groups start at a sequence's first row and
///   never cross its end.
/// - tiled: each sequence is padded to whole 128x4 atoms, which are numbered by the prefix sum of
///   ceil(seqlen/128). A tile of 128 tokens x 128 columns has one atom in either orientation.
/// Offsets are 64-bit throughout: 2^31 tokens x 4 scales do not fit in 32 bits.
namespace mxfa::mx {

/// Rows of each sequence among tokens, groups of 32 tokens and tiles of 128 tokens: sequence s owns
/// [offsets[s], offsets[s + 1]). All three have batch + 1 entries.
struct JaggedOffsets {
  std::vector<std::int64_t> tokens;
  std::vector<std::int64_t> groups;
  std::vector<std::int64_t> tiles;

  std::int64_t batch() const { return static_cast<std::int64_t>(tokens.size()) - 1; }
  std::int64_t seqlen(std::int64_t sequence) const {
    return tokens[sequence + 1] - tokens[sequence];
  }
  /// Row of the compact scales that holds token `row` of `sequence`.
  std::int64_t scale_row(BlockShape shape, std::int64_t sequence, std::int64_t row) const {
    return block_rows(shape) == 1 ? tokens[sequence] + row : groups[sequence] + row / kScaleBlock;
  }
  /// Rows of the compact scales of all sequences.
  std::int64_t scale_rows_total(BlockShape shape) const {
    return block_rows(shape) == 1 ? tokens.back() : groups.back();
  }
};

/// From int32 cu_seqlens [batch + 1] over a tensor of `total` rows; refuses what
/// core::check_cu_seqlens refuses, by `name` and position.
JaggedOffsets make_jagged_offsets(std::span<const std::int32_t> cu_seqlens, std::int64_t total,
                                  std::string_view name = "cu_seqlens");
/// One sequence of all rows.
JaggedOffsets make_single_sequence(std::int64_t total);

/// Upper bounds from shapes alone, for buffers that are sized before the lengths are known.
MXFA_HOST_DEVICE constexpr std::int64_t max_groups(std::int64_t total, std::int64_t batch) {
  return (total + (kScaleBlock - 1) * (batch < total ? batch : total)) / kScaleBlock;
}
MXFA_HOST_DEVICE constexpr std::int64_t max_tiles(std::int64_t total, std::int64_t batch) {
  return (total + (kAtomRows - 1) * (batch < total ? batch : total)) / kAtomRows;
}

/// Tiled scales of one sequence and head: tokens x D/32 blocks, or D x groups of tokens.
MXFA_HOST_DEVICE constexpr TiledScaleLayout sequence_layout(ScaleAxis axis, std::int64_t seqlen,
                                                            std::int64_t head_dim) {
  return axis == ScaleAxis::kHeadDim ? TiledScaleLayout{seqlen, ceil_div(head_dim, kScaleBlock)}
                                     : TiledScaleLayout{head_dim, ceil_div(seqlen, kScaleBlock)};
}
/// Bytes from one tile of 128 tokens to the next; the atoms of sequence s start at
/// offsets.tiles[s] * tile_bytes(head_dim).
MXFA_HOST_DEVICE constexpr std::int64_t tile_bytes(std::int64_t head_dim) {
  return ceil_div(head_dim, kAtomRows) * kAtomBytes;
}

/// Compact scales of a packed tensor, [scale rows, num_heads, scale_cols] with any strides.
template <class Byte>
struct CompactScales {
  Byte* data = nullptr;
  BlockShape shape = BlockShape::k32x32;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t col_stride = 1;

  std::int64_t offset(std::int64_t scale_row, std::int64_t head, std::int64_t col) const {
    return scale_row * row_stride + head * head_stride + scale_col(shape, col) * col_stride;
  }
  /// The scale of column `col` in row `scale_row` (JaggedOffsets::scale_row).
  Byte& at(std::int64_t scale_row, std::int64_t head, std::int64_t col) const {
    return data[offset(scale_row, head, col)];
  }
};

/// Tiled scales of a packed tensor, [num_heads][tiles][ceil(head_dim/128)][512].
template <class Byte>
struct TiledScales {
  Byte* data = nullptr;
  ScaleAxis axis = ScaleAxis::kHeadDim;
  std::int64_t head_dim = 0;
  std::int64_t head_bytes = 0;  ///< from head to head; at least tiles * tile_bytes(head_dim)

  /// Byte of the first atom of a sequence whose tiles start at `tile`.
  std::int64_t offset(std::int64_t head, std::int64_t tile) const {
    return head * head_bytes + tile * tile_bytes(head_dim);
  }
};

/// Whether scales of `shape` can be tiled along `axis`: 1x32 and 1xD lie along head_dim only, 32x1
/// along tokens only; squares and 32xD expand to either.
MXFA_HOST_DEVICE constexpr bool tiles_along(BlockShape shape, ScaleAxis axis) {
  return axis == ScaleAxis::kHeadDim ? shape != BlockShape::k32x1
                                     : block_rows(shape) == kScaleBlock;
}
/// Throws Error where they cannot.
void check_scale_axis(BlockShape shape, ScaleAxis axis);

struct SequenceHead {
  std::int64_t sequence = 0;
  std::int64_t head = 0;
};

/// Scatters the scales of one sequence and head. Every byte of its atoms is written, padding with
/// 0x00 and never 0xFF. Different `which` write different bytes, so they may run concurrently.
void tile_scales(const JaggedOffsets& offsets, SequenceHead which,
                 const CompactScales<const std::uint8_t>& compact,
                 const TiledScales<std::uint8_t>& tiled);
/// The inverse: each compact scale is read where its block's first element lies.
void untile_scales(const JaggedOffsets& offsets, SequenceHead which,
                   const TiledScales<const std::uint8_t>& tiled,
                   const CompactScales<std::uint8_t>& compact);

}  // namespace mxfa::mx
