#pragma once

#include <cstdint>

#include "device/quantize.h"

/// Where work lies in a batch of packed sequences.
namespace mxfa::device {

inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

/// A tile of up to 128 tokens of one head.
struct Tile {
  std::int64_t index;  ///< among all sequences' tiles
  std::int64_t row0;   ///< packed row of its first token
  std::int64_t group;  ///< of its first 32 tokens, among all sequences' groups
  int first;           ///< its first token, in its sequence
  int sequence;
  int head;
  int rows;  ///< tokens that exist, 1 to 128
};

/// By a whole warp: the last sequence from `from` on whose tiles start at or before `tile`; empty
/// ones before it start there too. Strides of 32^k: near targets, the common case, take one round.
__device__ inline int find_sequence(const JaggedOffsetsView& offsets, int from, std::int64_t tile) {
  int low = from;
  int step = 1;
  while (true) {
    const std::int64_t probe = low + std::int64_t{threadIdx.x % 32 + 1} * step;
    const bool before = probe < offsets.batch && offsets.tiles(probe) <= tile;
    const int count = __popc(__ballot_sync(kAllLanes, before));
    low += count * step;
    if (count == 32) {
      step *= 32;
    } else if (step == 1) {
      return low;
    } else {
      step /= 32;
    }
  }
}

/// By a whole warp: tile `work / num_heads` of head `work % num_heads`. `sequence` is that of an
/// earlier tile, and is updated.
__device__ inline Tile locate_tile(const JaggedOffsetsView& offsets, int num_heads,
                                   std::int64_t work, int& sequence) {
  Tile tile;
  tile.index = work / num_heads;
  tile.head = static_cast<int>(work % num_heads);
  sequence = find_sequence(offsets, sequence, tile.index);
  tile.sequence = sequence;
  tile.first = static_cast<int>((tile.index - offsets.tiles(sequence)) * mx::kAtomRows);
  tile.row0 = offsets.tokens(sequence) + tile.first;
  tile.group = offsets.groups(sequence) + tile.first / kScaleBlock;
  tile.rows =
      static_cast<int>(min(std::int64_t{mx::kAtomRows}, offsets.tokens(sequence + 1) - tile.row0));
  return tile;
}

/// 32 tokens of one head.
struct TokenGroup {
  Tile tile;
  int index;  ///< in the tile, 0 to 3
  int rows;   ///< tokens that exist, 0 to 32

  __device__ std::int64_t row0() const { return tile.row0 + index * kScaleBlock; }
  /// Row of the compact scales of `shape` that holds token `row` of the group.
  __device__ std::int64_t scale_row(BlockShape shape, int row) const {
    return mx::block_rows(shape) == 1 ? row0() + row : tile.group + index;
  }
};

/// Calls body(group) by one warp for each group of 32 tokens and head, also for the groups of a
/// tile that lie behind the sequence's end. Blocks are whole warps.
template <class Body>
__device__ void for_each_group(const JaggedOffsetsView& offsets, int num_heads, Body body) {
  constexpr int kGroups = mx::kAtomRows / kScaleBlock;
  const std::int64_t works = offsets.tiles(offsets.batch) * num_heads * kGroups;
  const int warps = static_cast<int>(blockDim.x) / 32;
  int sequence = 0;
  for (std::int64_t work = std::int64_t{blockIdx.x} * warps + threadIdx.x / 32; work < works;
       work += std::int64_t{gridDim.x} * warps) {
    TokenGroup group;
    group.tile = locate_tile(offsets, num_heads, work / kGroups, sequence);
    group.index = static_cast<int>(work % kGroups);
    group.rows = min(kScaleBlock, max(0, group.tile.rows - group.index * kScaleBlock));
    body(group);
  }
}

}  // namespace mxfa::device
