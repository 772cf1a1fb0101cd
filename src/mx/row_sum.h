#pragma once

#include <cstdint>

#include "core/host_device.h"

/// The one order in which a row of RMSNorm is summed, so that every machine gets the same bits.
/// Columns are cut into chunks of kChunk. In a chunk, lane (col / kVector) % kLanes adds its terms
/// in ascending column order to 0 by fused multiply-add; the 32 lane sums are added pairwise at
/// distances 16, 8, 4, 2, 1 (addition commutes, so every lane ends with the same bits); chunk sums
/// are added in ascending order to 0.
namespace mxfa::mx::row_sum {

inline constexpr int kLanes = 32;
inline constexpr int kVector = 4;               ///< 8 bytes of BF16
inline constexpr int kStep = kLanes * kVector;  ///< columns of one pass over the lanes
inline constexpr int kChunk = 1024;             ///< columns that one CTA holds
inline constexpr int kMaxChunks = 16;           ///< CTAs of the largest cluster
inline constexpr int kMaxColumns = kMaxChunks * kChunk;

MXFA_HOST_DEVICE constexpr int lane_of(std::int64_t column) {
  return static_cast<int>(column / kVector % kLanes);
}

}  // namespace mxfa::mx::row_sum
