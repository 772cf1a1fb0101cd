#pragma once

#include <cstdint>

#include "core/host_device.h"

/// The last, incomplete round of a static schedule, cut along the keys so that all CTAs share it.
namespace mxfa::attention {

/// Key blocks [n_begin, n_end) of tile `tile`, part `part` of `parts` of it in ascending keys.
/// `slot` counts the tiles of the tail, `segment` the parts of all of them.
struct TailSegment {
  std::int32_t tile = -1;
  std::int32_t slot = 0;
  std::int32_t segment = 0;
  std::int32_t part = 0;
  std::int32_t parts = 1;
  std::int32_t n_begin = 0;
  std::int32_t n_end = 0;

  MXFA_HOST_DEVICE constexpr bool valid() const { return tile >= 0; }
};

/// `tiles` tiles of `blocks` key blocks each, on `ctas` CTAs: whole_tiles() of them go round in
/// full, the key blocks of the others are divided evenly: at least one for each CTA.
struct SplitTail {
  std::int32_t ctas = 1;
  std::int32_t tiles = 0;
  std::int32_t blocks = 1;

  MXFA_HOST_DEVICE constexpr std::int32_t whole_tiles() const { return tiles / ctas * ctas; }
  MXFA_HOST_DEVICE constexpr std::int32_t slots() const { return tiles - whole_tiles(); }
  /// Segments are numbered below this.
  MXFA_HOST_DEVICE constexpr std::int32_t max_segments() const { return ctas + slots(); }

  /// Segment `index` of the share of `cta`; not valid() behind the last.
  MXFA_HOST_DEVICE constexpr TailSegment at(std::int32_t cta, std::int32_t index) const {
    const std::int64_t begin = begin_of(cta), end = begin_of(cta + 1);
    const std::int64_t unit = index == 0 ? begin : (begin / blocks + index) * blocks;
    if (unit >= end) return {};
    TailSegment result;
    result.slot = static_cast<std::int32_t>(unit / blocks);
    result.tile = whole_tiles() + result.slot;
    result.segment = cta + result.slot;
    const std::int64_t first = std::int64_t{result.slot} * blocks;
    const std::int32_t first_cta = owner(first);
    result.part = cta - first_cta;
    result.parts = owner(first + blocks - 1) - first_cta + 1;
    result.n_begin = static_cast<std::int32_t>(unit - first);
    const std::int64_t left = result.n_begin + (end - unit);
    result.n_end = static_cast<std::int32_t>(left < blocks ? left : blocks);
    return result;
  }

 private:
  MXFA_HOST_DEVICE constexpr std::int64_t units() const { return std::int64_t{slots()} * blocks; }
  MXFA_HOST_DEVICE constexpr std::int64_t begin_of(std::int32_t cta) const {
    return cta * units() / ctas;
  }
  /// The CTA whose share holds a block.
  MXFA_HOST_DEVICE constexpr std::int32_t owner(std::int64_t unit) const {
    return static_cast<std::int32_t>(((unit + 1) * ctas - 1) / units());
  }
};

}  // namespace mxfa::attention
