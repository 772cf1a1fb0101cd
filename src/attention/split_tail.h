#pragma once

#include <cstdint>

#include "core/host_device.h"

/// What is left of a static schedule behind its whole rounds, cut along the keys so that all CTAs
/// share it.
namespace mxfa::attention {

/// Key blocks [n_begin, n_end) of a tile, part `part` of `parts` of it in ascending keys. `slot`
/// numbers the divided tiles, below the count of CTAs.
struct TailSegment {
  std::int32_t tile = -1;     ///< of those of its kind in the tail
  std::int32_t is_short = 0;  ///< a word, so that none of the struct stays unwritten
  std::int32_t slot = 0;
  std::int32_t part = 0;
  std::int32_t parts = 1;
  std::int32_t n_begin = 0;
  std::int32_t n_end = 0;

  MXFA_HOST_DEVICE constexpr bool valid() const { return tile >= 0; }
};

/// Number of a divided tile's part, unique and below max_segments().
MXFA_HOST_DEVICE constexpr std::int32_t segment_of(std::int32_t slot, std::int32_t part) {
  return 2 * (slot + part) + (part == 0 ? 1 : 0);
}

/// `tiles` tiles of `blocks` key blocks each, on `ctas` CTAs: whole_tiles() of them go round in
/// full. The others and all short tiles, which have fewer rows and cost less, are divided evenly by
/// cost, the short ones first. A share must cost at least a block of the costlier kind.
struct SplitTail {
  std::int32_t ctas = 1;
  std::int32_t tiles = 0;
  std::int32_t short_tiles = 0;
  std::int32_t blocks = 1;
  std::int32_t cost = 1;        ///< of a tile's block
  std::int32_t short_cost = 1;  ///< of a short tile's

  MXFA_HOST_DEVICE constexpr std::int32_t whole_tiles() const { return tiles / ctas * ctas; }
  /// Tiles of the tail.
  MXFA_HOST_DEVICE constexpr std::int32_t tail_tiles() const {
    return short_tiles + tiles - whole_tiles();
  }
  MXFA_HOST_DEVICE constexpr std::int32_t max_segments() const { return 2 * ctas; }
  /// Of the tail.
  MXFA_HOST_DEVICE constexpr std::int32_t total_cost() const { return cost_before(all_blocks()); }
  /// How many CTAs can have `least` blocks of whole tiles each, or as much, where all is divided.
  constexpr std::int64_t most_ctas(std::int64_t least) const {
    return cost_with(tiles) / (least * cost);
  }
  /// Whether every share gets `least` blocks of whole tiles, or as much, and 32 bits hold all
  /// numbers on the way. Else the tail is not to be divided so.
  constexpr bool gives(std::int32_t least) const {
    const std::int64_t total = cost_with(tiles - whole_tiles());
    return total / ctas >= std::int64_t{least} * cost && total < (std::int64_t{1} << 31) / ctas;
  }

  /// Segment `index` of the share of `cta`; not valid() behind the last.
  MXFA_HOST_DEVICE constexpr TailSegment at(std::int32_t cta, std::int32_t index) const {
    const std::int32_t begin = first_block(cta), end = first_block(cta + 1);
    const std::int32_t block = index == 0 ? begin : (begin / blocks + index) * blocks;
    if (block >= end) return {};
    TailSegment result;
    const std::int32_t tile = block / blocks, first = tile * blocks;
    result.is_short = tile < short_tiles ? 1 : 0;
    result.tile = result.is_short != 0 ? tile : tile - short_tiles;
    result.slot = owner(first);
    result.part = cta - result.slot;
    result.parts = owner(first + blocks - 1) - result.slot + 1;
    result.n_begin = block - first;
    const std::int32_t left = result.n_begin + (end - block);
    result.n_end = left < blocks ? left : blocks;
    return result;
  }

 private:
  /// Of the short tiles and so many others.
  constexpr std::int64_t cost_with(std::int32_t others) const {
    return (std::int64_t{short_tiles} * short_cost + std::int64_t{others} * cost) * blocks;
  }
  MXFA_HOST_DEVICE constexpr std::int32_t short_blocks() const { return short_tiles * blocks; }
  MXFA_HOST_DEVICE constexpr std::int32_t all_blocks() const { return tail_tiles() * blocks; }
  /// Of the tail's first `count` blocks.
  MXFA_HOST_DEVICE constexpr std::int32_t cost_before(std::int32_t count) const {
    const std::int32_t of_short = count < short_blocks() ? count : short_blocks();
    return of_short * short_cost + (count - of_short) * cost;
  }
  /// The first one that the shares before leave.
  MXFA_HOST_DEVICE constexpr std::int32_t first_block(std::int32_t cta) const {
    const std::int32_t before = cta * total_cost() / ctas;
    const std::int32_t behind = before - short_blocks() * short_cost;
    return behind < 0 ? (before + short_cost - 1) / short_cost
                      : short_blocks() + (behind + cost - 1) / cost;
  }
  /// The CTA whose share holds a block.
  MXFA_HOST_DEVICE constexpr std::int32_t owner(std::int32_t block) const {
    return ((cost_before(block) + 1) * ctas - 1) / total_cost();
  }
};

}  // namespace mxfa::attention
