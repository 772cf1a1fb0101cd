#pragma once

#include <cstdint>

#include "core/host_device.h"

/// The orders in which RMSNorm and delta sum, so that every machine gets the same bits. Columns are
/// cut into chunks of kChunk; sums of chunks are added in ascending order to 0. A chunk has 32
/// lanes, and lane (col / kVector) % kLanes owns four adjacent columns of each step. The 32 lane
/// sums are added pairwise at distances 16, 8, 4, 2, 1 (addition commutes, so every lane ends with
/// the same bits). Within a lane:
/// - the sum of squares adds its terms in ascending column order to 0 by fused multiply-add;
/// - the sum of products of the backward has an accumulator for each of the four columns, adds
///   rounded products in ascending order to 0, and ends as (a0 + a1) + (a2 + a3).
/// The gradient of the weight sums over rows, for each column: rows in chunks of kWeightRows; row r
/// of a chunk belongs to strand r % weight_strands(dim), each strand adds rounded products in
/// ascending order to 0, and the strands are added in ascending order to 0. Chunk c belongs to
/// strand c % kChunkStrands, each adds its chunks in ascending order to 0, and these strands are
/// added pairwise at distances 64, 32, ..., 1.
/// delta, in double, has one accumulator a lane, which adds rounded products in ascending order to
/// 0.
namespace mxfa::mx::row_sum {

inline constexpr int kLanes = 32;
inline constexpr int kVector = 4;               ///< 8 bytes of BF16
inline constexpr int kStep = kLanes * kVector;  ///< columns of one pass over the lanes
inline constexpr int kChunk = 1024;             ///< columns that one CTA holds
inline constexpr int kMaxChunks = 16;           ///< CTAs of the largest cluster
inline constexpr int kMaxColumns = kMaxChunks * kChunk;

inline constexpr int kWeightRows = 256;
inline constexpr int kWeightWarps = 16;  ///< each has the columns of one chunk of a row
inline constexpr int kChunkStrands = 128;

MXFA_HOST_DEVICE constexpr int chunks(std::int64_t dim) {
  return static_cast<int>((dim + kChunk - 1) / kChunk);
}
MXFA_HOST_DEVICE constexpr int weight_strands(std::int64_t dim) {
  return chunks(dim) <= 1             ? kWeightWarps
         : chunks(dim) < kWeightWarps ? kWeightWarps / chunks(dim)
                                      : 1;
}
MXFA_HOST_DEVICE constexpr std::int64_t weight_chunks(std::int64_t rows) {
  return (rows + kWeightRows - 1) / kWeightRows;
}
MXFA_HOST_DEVICE constexpr int lane_of(std::int64_t column) {
  return static_cast<int>(column / kVector % kLanes);
}

/// sum of dout * (o - shift) over a row [head_dim] of one head, rounded once from double. `shift`
/// may be null. The bits of the device's kernel.
inline float row_delta(const float* dout, const float* o, const float* shift,
                       std::int64_t head_dim) {
  double lanes[kLanes] = {};
  for (std::int64_t step = 0; step < head_dim; step += kStep) {
    const std::int64_t columns = head_dim - step < kStep ? head_dim - step : kStep;
    double terms[kStep] = {};  // apart from their sums, so that both loops make vectors
    for (std::int64_t c = 0; c < columns; ++c) {
      const double centred =
          double{o[step + c]} - (shift == nullptr ? 0.0 : double{shift[step + c]});
      terms[c] = double{dout[step + c]} * centred;
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int i = 0; i < kVector; ++i) lanes[lane] += terms[lane * kVector + i];
    }
  }
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    for (int lane = 0; lane < distance; ++lane) lanes[lane] += lanes[lane + distance];
  }
  return static_cast<float>(lanes[0]);
}

}  // namespace mxfa::mx::row_sum
