#pragma once

#include <cuda/ptx>

#include "device/barrier.cuh"
#include "device/rmsnorm_quantize.h"
#include "mx/row_sum.h"
#include "mx/scale_layout.h"

/// Shared memory of the RMSNorm+quantize kernels and the roles at its two ends: the warp that loads
/// rows and the one that writes scale atoms.
namespace mxfa::device::rmsnorm {

namespace ptx = cuda::ptx;
using mx::row_sum::kStep;
using mx::row_sum::kVector;

inline constexpr int kSquareRows = 32;
inline constexpr int kSquaresPerTile = mx::kAtomRows / kSquareRows;
inline constexpr int kConsumerWarps = 16;
inline constexpr int kProducerWarp = kConsumerWarps;
inline constexpr int kScaleWarp = kConsumerWarps + 1;
inline constexpr int kSmemBytes = 220 * 1024;
// A buffer is cleared one barrier after its last read and one before its next use.
inline constexpr int kAmaxBuffers = 3;

/// kSteps passes of 32 lanes x 4 columns cover the chunk of a CTA; kTeams teams of warps work on
/// as many squares of 32 rows at a time; kClustered where rows span the CTAs of a cluster.
template <class Input_, int kSteps_, int kTeams_, bool kClustered_>
struct Config {
  using Input = Input_;  ///< std::uint16_t (BF16) or float
  static constexpr int kSteps = kSteps_;
  static constexpr int kTeams = kTeams_;
  static constexpr bool kClustered = kClustered_;
  static constexpr int kTeamWarps = kConsumerWarps / kTeams;
  static constexpr int kRows = kSquareRows / kTeamWarps;  ///< of one warp in a square
  static constexpr int kChunkCols = kSteps * kStep;
  static constexpr int kBlocks = kChunkCols / kScaleBlock;
  static constexpr int kStageBytes = kSquareRows * kChunkCols * static_cast<int>(sizeof(Input));
  static constexpr int kStages = kSmemBytes / kStageBytes < 8 ? kSmemBytes / kStageBytes : 8;
  static constexpr int kSumBuffers = kClustered ? 4 : 1;  ///< see run_ahead()
  /// A square's sums travel through the cluster while the one before it is quantized.
  static constexpr bool kAhead = kClustered && kTeams == 1 && kStages > 1;
  // A square loads while every team works, but for the widest rows in FP32.
  static_assert(kStages > kTeams || (kStages == kTeams && kStageBytes >= 128 * 1024));
  static_assert(kSquaresPerTile % kTeams == 0);
};

template <class C>
struct SmemPlan {
  alignas(128) std::uint8_t stages[C::kStages][C::kStageBytes];  // [32, cols]
  float weight[C::kChunkCols];
  unsigned amax[C::kTeams][kAmaxBuffers][C::kBlocks];   // FP32 bits of each square's largest
  std::uint8_t scales[2][C::kBlocks][kSquaresPerTile];  // of two row tiles in turn
  float sums[C::kTeams][C::kSumBuffers][mx::row_sum::kMaxChunks][kSquareRows];  // written by peers
  std::uint64_t sums_full[C::kTeams][C::kSumBuffers];
  Ring<C::kStages> rows;
  Ring<2> tiles;
};

/// What every role knows of its CTA: columns [first, first + cols) of row tiles `tile`, `tile` +
/// `stride`, ...
struct Work {
  int cluster, rank, first, cols, tile, stride, tiles;

  __device__ Work(const RmsNormQuantizeParams& params, bool clustered)
      : cluster(clustered ? rmsnorm_cluster_size(params.dim) : 1),
        rank(static_cast<int>(blockIdx.x) % cluster),
        first(rank * mx::row_sum::kChunk),
        cols(min(mx::row_sum::kChunk, params.dim - first)),
        tile(static_cast<int>(blockIdx.x) / cluster),
        stride(static_cast<int>(gridDim.x) / cluster),
        tiles(static_cast<int>((params.rows + mx::kAtomRows - 1) / mx::kAtomRows)) {}
};

/// Loads squares of 32 rows. Waits on rows.empty, signals rows.full.
template <class C>
struct Producer {
  const RmsNormQuantizeParams& params;
  SmemPlan<C>& smem;
  Work work;

  __device__ void load(std::int64_t row0, int stage) const {
    const int rows = static_cast<int>(min(std::int64_t{kSquareRows}, params.rows - row0));
    std::uint64_t* full = &smem.rows.full[stage];
    const unsigned row_bytes = static_cast<unsigned>(work.cols * sizeof(typename C::Input));
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane == 0) {
      const unsigned bytes = rows > 0 ? static_cast<unsigned>(rows) * row_bytes : 0u;
      ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, full,
                                     bytes);
    }
    __syncwarp();
    const auto* source =
        static_cast<const typename C::Input*>(params.x) + row0 * params.dim + work.first;
    if constexpr (C::kClustered) {
      if (lane < rows) {
        ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global,
                           smem.stages[stage] + lane * row_bytes, source + lane * params.dim,
                           row_bytes, full);
      }
    } else if (lane == 0 && rows > 0) {
      ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, smem.stages[stage], source,
                         static_cast<unsigned>(rows) * row_bytes, full);
    }
  }

  __device__ void run() const {
    RingState<C::kStages> state;
    for (int tile = work.tile; tile < work.tiles; tile += work.stride) {
      for (int square = 0; square < kSquaresPerTile; ++square) {
        wait(smem.rows.empty[state.stage], state.phase ^ 1);
        load(std::int64_t{tile} * mx::kAtomRows + square * kSquareRows, state.stage);
        state.advance();
      }
    }
  }
};

/// Writes the scale atoms of whole row tiles. Waits on tiles.full, signals tiles.empty.
template <class C>
struct ScaleWriter {
  const RmsNormQuantizeParams& params;
  SmemPlan<C>& smem;
  Work work;

  // The 512 bytes of an atom are 32 times the same 16: a square's scale is shared by its 32 rows
  // (and columns). Rows and columns past the matrix get 0.
  __device__ void store(int tile, int buffer) const {
    const std::int64_t dim_atoms = (params.dim + mx::kAtomRows - 1) / mx::kAtomRows;
    const int blocks = work.cols / kScaleBlock;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::int64_t row = std::int64_t{tile} * mx::kAtomRows + lane;
    for (int atom = 0; atom * mx::kAtomCols < blocks; ++atom) {
      unsigned along_dim[kSquaresPerTile] = {};
      unsigned along_rows[mx::kAtomCols] = {};
#pragma unroll
      for (int square = 0; square < kSquaresPerTile; ++square) {
#pragma unroll
        for (int column = 0; column < mx::kAtomCols; ++column) {
          const int block = atom * mx::kAtomCols + column;
          const unsigned scale = block < blocks ? smem.scales[buffer][block][square] : 0u;
          const bool row_exists = row + square * kSquareRows < params.rows;
          const bool square_exists = row - lane + square * kSquareRows < params.rows;
          along_dim[square] |= (row_exists ? scale : 0u) << (8 * column);
          along_rows[column] |= (square_exists ? scale : 0u) << (8 * square);
        }
      }
      const std::int64_t dim_atom = work.first / mx::kAtomRows + atom;
      std::uint8_t* dim_target =
          params.scales_dim + (tile * dim_atoms + dim_atom) * mx::kAtomBytes + lane * 16;
      std::uint8_t* row_target =
          params.scales_rows + (dim_atom * work.tiles + tile) * mx::kAtomBytes + lane * 16;
      *reinterpret_cast<uint4*>(dim_target) =
          make_uint4(along_dim[0], along_dim[1], along_dim[2], along_dim[3]);
      *reinterpret_cast<uint4*>(row_target) =
          make_uint4(along_rows[0], along_rows[1], along_rows[2], along_rows[3]);
    }
  }

  __device__ void run() const {
    RingState<2> state;
    for (int tile = work.tile; tile < work.tiles; tile += work.stride) {
      wait(smem.tiles.full[state.stage], state.phase);
      store(tile, state.stage);
      arrive(smem.tiles.empty[state.stage]);
      state.advance();
    }
  }
};

}  // namespace mxfa::device::rmsnorm
