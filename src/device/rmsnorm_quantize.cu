#include <cuda/ptx>

#include "device/arrive_for_copy.cuh"
#include "device/barrier.cuh"
#include "device/fp8.cuh"
#include "device/rmsnorm_quantize.h"
#include "mx/row_sum.h"
#include "mx/scale_layout.h"

namespace mxfa::device {
namespace {

namespace ptx = cuda::ptx;
using mx::row_sum::kStep;
using mx::row_sum::kVector;

constexpr int kSquareRows = 32;
constexpr int kSquaresPerTile = mx::kAtomRows / kSquareRows;
constexpr int kConsumerWarps = 16;
constexpr int kProducerWarp = kConsumerWarps;
constexpr int kScaleWarp = kConsumerWarps + 1;
constexpr int kSmemBytes = 220 * 1024;
// A buffer is cleared one barrier after its last read and one before its next use: see square().
constexpr int kAmaxBuffers = 3;

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
  float sums[C::kTeams][2][mx::row_sum::kMaxChunks][kSquareRows];  // written by cluster peers
  std::uint64_t sums_full[C::kTeams][2];
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
    // Bytes may arrive before they are expected: the phase lacks lane 0's arrival until then.
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

/// One warp of a team: kRows rows of each of the team's squares. Waits on rows.full, tiles.empty
/// and, clustered, sums_full; signals rows.empty and tiles.full. `kWhole` says that every row and
/// column of a square exists, so that loops have no exits.
template <class C>
struct Consumer {
  static constexpr int kRowLanes = 32 / C::kRows;  ///< lanes that hold the same row's sum

  const RmsNormQuantizeParams& params;
  SmemPlan<C>& smem;
  Work work;
  int team = static_cast<int>(threadIdx.x) / 32 / C::kTeamWarps;
  int warp = static_cast<int>(threadIdx.x) / 32 % C::kTeamWarps;
  int lane = static_cast<int>(threadIdx.x) % 32;

  __device__ void team_sync() const {
    asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(team + 1), "n"(C::kTeamWarps * 32)
                 : "memory");
  }
  template <bool kWhole>
  __device__ bool has_column(int step) const {
    return kWhole || step * kStep + lane * kVector < work.cols;
  }
  __device__ void read(int stage, int row, int step, float (&x)[kVector]) const {
    const auto* source = reinterpret_cast<const typename C::Input*>(smem.stages[stage]) +
                         (warp * C::kRows + row) * work.cols + step * kStep + lane * kVector;
    if constexpr (sizeof(typename C::Input) == 4) {
      const float4 words = *reinterpret_cast<const float4*>(source);
      x[0] = words.x;
      x[1] = words.y;
      x[2] = words.z;
      x[3] = words.w;
    } else {
      const uint2 words = *reinterpret_cast<const uint2*>(source);
      x[0] = bf16_low(words.x);
      x[1] = bf16_high(words.x);
      x[2] = bf16_low(words.y);
      x[3] = bf16_high(words.y);
    }
  }

  // A lane's terms of mx/row_sum.h, in ascending order.
  template <bool kWhole>
  __device__ float lane_sum(int stage, int row) const {
    float sum = 0.0f;
#pragma unroll
    for (int step = 0; step < C::kSteps; ++step) {
      if (!has_column<kWhole>(step)) break;
      float x[kVector];
      read(stage, row, step, x);
#pragma unroll
      for (const float value : x) sum = __fmaf_rn(value, value, sum);
    }
    return sum;
  }

  // The butterfly of mx/row_sum.h for all rows at once: lanes split the rows while they exchange,
  // so each pair is added once and not twice. Lane l ends with the sum of row l / kRowLanes.
  __device__ float reduce_rows(float (&sums)[C::kRows]) const {
    int distance = 16;
#pragma unroll
    for (int half = C::kRows / 2; half > 0; half /= 2) {
      const bool upper = (lane & distance) != 0;
#pragma unroll
      for (int i = 0; i < half; ++i) {
        const float kept = upper ? sums[i + half] : sums[i];
        const float sent = upper ? sums[i] : sums[i + half];
        sums[i] = __fadd_rn(kept, __shfl_xor_sync(0xFFFFFFFFu, sent, distance));
      }
      distance /= 2;
    }
#pragma unroll
    for (; distance > 0; distance /= 2) {
      sums[0] = __fadd_rn(sums[0], __shfl_xor_sync(0xFFFFFFFFu, sums[0], distance));
    }
    return sums[0];
  }

  // Every CTA sends its sums to every CTA of the cluster. Two buffers suffice: a peer sends the
  // sums after next only once it has this CTA's next ones, which are sent after this read.
  __device__ float exchange_sum(float sum, int buffer, unsigned phase) const {
    std::uint64_t* full = &smem.sums_full[team][buffer];
    if (warp == 0 && lane == 0) {
      ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, full,
                                     work.cluster * kSquareRows * sizeof(float));
    }
    const int row = warp * C::kRows + lane / kRowLanes;
    for (int peer = lane % kRowLanes; peer < work.cluster; peer += kRowLanes) {
      float* slot = &smem.sums[team][buffer][work.rank][row];
      ptx::st_async(static_cast<float*>(__cluster_map_shared_rank(slot, peer)), sum,
                    static_cast<std::uint64_t*>(__cluster_map_shared_rank(full, peer)));
    }
    wait(*full, phase);
    float total = 0.0f;
    for (int peer = 0; peer < work.cluster; ++peer) {
      total = __fadd_rn(total, smem.sums[team][buffer][peer][row]);
    }
    return total;
  }

  __device__ void normalize(int stage, int row, float rstd, int step, float (&y)[kVector]) const {
    const float4 w = *reinterpret_cast<const float4*>(&smem.weight[step * kStep + lane * kVector]);
    float x[kVector];
    read(stage, row, step, x);
    y[0] = __fmul_rn(__fmul_rn(x[0], rstd), w.x);
    y[1] = __fmul_rn(__fmul_rn(x[1], rstd), w.y);
    y[2] = __fmul_rn(__fmul_rn(x[2], rstd), w.z);
    y[3] = __fmul_rn(__fmul_rn(x[3], rstd), w.w);
  }

  template <bool kWhole>
  __device__ void reduce_amax(int stage, const float (&rstd)[C::kRows], int rows,
                              int buffer) const {
#pragma unroll
    for (int step = 0; step < C::kSteps; ++step) {
      float amax = 0.0f;
      if (has_column<kWhole>(step)) {
#pragma unroll
        for (int r = 0; r < C::kRows; ++r) {
          if (!kWhole && r >= rows) break;
          float y[kVector];
          normalize(stage, r, rstd[r], step, y);
#pragma unroll
          for (const float value : y) amax = max_nan(amax, fabsf(value));
        }
      }
#pragma unroll
      for (int distance = 4; distance > 0; distance /= 2) {
        amax = max_nan(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, distance));
      }
      if (lane % 8 == 0 && has_column<kWhole>(step)) {
        atomicMax(&smem.amax[team][buffer][step * 4 + lane / 8], __float_as_uint(amax));
      }
    }
  }

  template <bool kWhole>
  __device__ void store_codes(int stage, const float (&rstd)[C::kRows], int rows, std::int64_t row0,
                              int buffer) const {
#pragma unroll
    for (int step = 0; step < C::kSteps; ++step) {
      if (!has_column<kWhole>(step)) break;
      const std::uint8_t scale = mx::scale_from_amax<mx::E4M3>(
          __uint_as_float(smem.amax[team][buffer][step * 4 + lane / 8]), ScaleRule::kRoundUp);
      const float inverse = mx::inverse_e8m0(scale);
      std::uint8_t* target =
          params.codes + row0 * params.dim + work.first + step * kStep + lane * kVector;
#pragma unroll
      for (int r = 0; r < C::kRows; ++r) {
        if (!kWhole && r >= rows) break;
        float y[kVector];
        normalize(stage, r, rstd[r], step, y);
        __stcs(reinterpret_cast<unsigned*>(target + r * params.dim),
               encode_e4m3_quad(y[0] * inverse, y[1] * inverse, y[2] * inverse, y[3] * inverse));
      }
    }
  }

  __device__ void publish_scales(int buffer, int tile_buffer, int square) const {
    if (warp == 0) {
      for (int block = lane; block < work.cols / kScaleBlock; block += 32) {
        smem.scales[tile_buffer][block][square] = mx::scale_from_amax<mx::E4M3>(
            __uint_as_float(smem.amax[team][buffer][block]), ScaleRule::kRoundUp);
      }
      arrive(smem.tiles.full[tile_buffer]);
    }
  }

  template <bool kWhole>
  __device__ void square(std::int64_t square_row0, int stage, int index, int buffer) const {
    const std::int64_t row0 = square_row0 + warp * C::kRows;
    const int rows = kWhole ? C::kRows
                            : static_cast<int>(max(std::int64_t{0}, min(std::int64_t{C::kRows},
                                                                        params.rows - row0)));
    float sums[C::kRows];
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
      sums[r] = kWhole || r < rows ? lane_sum<kWhole>(stage, r) : 0.0f;
    }
    float sum = reduce_rows(sums);
    if constexpr (C::kClustered) sum = exchange_sum(sum, index & 1, (index >> 1) & 1);
    const float mean = __fdiv_rn(sum, static_cast<float>(params.dim));
    const float own_rstd = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, params.eps)));
    const int own_row = lane / kRowLanes;
    if (lane % kRowLanes == 0 && work.rank == 0 && own_row < rows) {
      params.rstd[row0 + own_row] = own_rstd;
    }
    float rstd[C::kRows];
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
      rstd[r] = __shfl_sync(0xFFFFFFFFu, own_rstd, r * kRowLanes);
    }
    reduce_amax<kWhole>(stage, rstd, rows, buffer);
    const int next = buffer + 1 == kAmaxBuffers ? 0 : buffer + 1;
    for (int i = warp * 32 + lane; i < C::kBlocks; i += C::kTeamWarps * 32) {
      smem.amax[team][next][i] = 0;
    }
    team_sync();
    store_codes<kWhole>(stage, rstd, rows, row0, buffer);
  }

  __device__ void run() const {
    RingState<C::kStages> state;
    RingState<2> tile_state;
    state.advance(team);
    int buffer = 0;
    int index = 0;
    for (int tile = work.tile; tile < work.tiles; tile += work.stride) {
      wait(smem.tiles.empty[tile_state.stage], tile_state.phase ^ 1);
      for (int s = team; s < kSquaresPerTile; s += C::kTeams) {
        if constexpr (C::kTeams > 1) {
          smem.rows.wait_turn(state);
        } else {
          wait(smem.rows.full[state.stage], state.phase);
        }
        const std::int64_t row0 = std::int64_t{tile} * mx::kAtomRows + s * kSquareRows;
        if (work.cols == C::kChunkCols && row0 + kSquareRows <= params.rows) {
          square<true>(row0, state.stage, index, buffer);
        } else {
          square<false>(row0, state.stage, index, buffer);
        }
        ++index;
        arrive_for_copy(smem.rows.empty[state.stage]);
        publish_scales(buffer, tile_state.stage, s);
        buffer = buffer + 1 == kAmaxBuffers ? 0 : buffer + 1;
        state.advance(C::kTeams);
      }
      tile_state.advance();
    }
  }
};

__device__ void cluster_sync() {
  ptx::barrier_cluster_arrive();
  ptx::barrier_cluster_wait();
}

template <class C>
__device__ void init(const RmsNormQuantizeParams& params, SmemPlan<C>& smem, const Work& work) {
  for (int i = threadIdx.x; i < C::kChunkCols; i += blockDim.x) {
    smem.weight[i] = i < work.cols ? bf16_low(params.weight[work.first + i]) : 0.0f;
  }
  for (int i = threadIdx.x; i < C::kTeams * C::kBlocks; i += blockDim.x) {
    smem.amax[i / C::kBlocks][0][i % C::kBlocks] = 0;
  }
  if (threadIdx.x == 0) {
    // Every lane that reads or writes says so itself: no order of others' accesses is relied on.
    smem.rows.init(1, C::kTeamWarps * 32);
    smem.tiles.init(kSquaresPerTile * 32, 32);
    for (auto& team : smem.sums_full) {
      for (std::uint64_t& barrier : team) ptx::mbarrier_init(&barrier, 1);
    }
    fence_barrier_init();
  }
  // Peers write into this CTA's shared memory.
  if constexpr (C::kClustered) {
    cluster_sync();
  } else {
    __syncthreads();
  }
}

template <class C>
__device__ void rmsnorm_quantize(const RmsNormQuantizeParams& params) {
  extern __shared__ __align__(128) std::uint8_t smem_bytes[];
  auto& smem = *reinterpret_cast<SmemPlan<C>*>(smem_bytes);
  const Work work(params, C::kClustered);
  init(params, smem, work);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp == kProducerWarp) {
    Producer<C>{params, smem, work}.run();
  } else if (warp == kScaleWarp) {
    ScaleWriter<C>{params, smem, work}.run();
  } else {
    // Peers write nothing after the sums that its warps have waited for: a CTA may exit alone.
    Consumer<C>{params, smem, work}.run();
  }
}

}  // namespace

#define MXFA_RMSNORM_QUANTIZE(name, input, steps, teams, clustered)     \
  extern "C" __global__ void __launch_bounds__(kRmsNormThreads, 1)      \
      name(const __grid_constant__ RmsNormQuantizeParams params) {      \
    using KernelConfig = Config<input, steps, teams, clustered>;        \
    static_assert(sizeof(SmemPlan<KernelConfig>) <= kRmsNormSmemBytes); \
    rmsnorm_quantize<KernelConfig>(params);                             \
  }
MXFA_RMSNORM_QUANTIZE(rmsnorm_quantize_bf16_1, std::uint16_t, 1, 4, false)
MXFA_RMSNORM_QUANTIZE(rmsnorm_quantize_bf16_2, std::uint16_t, 2, 4, false)
MXFA_RMSNORM_QUANTIZE(rmsnorm_quantize_bf16_3, std::uint16_t, 3, 4, false)
MXFA_RMSNORM_QUANTIZE(rmsnorm_quantize_bf16_4, std::uint16_t, 4, 4, false)
MXFA_RMSNORM_QUANTIZE(rmsnorm_quantize_bf16_8, std::uint16_t, 8, 2, false)
MXFA_RMSNORM_QUANTIZE(rmsnorm_quantize_bf16_wide, std::uint16_t, 8, 2, true)
MXFA_RMSNORM_QUANTIZE(rmsnorm_quantize_f32_1, float, 1, 4, false)
MXFA_RMSNORM_QUANTIZE(rmsnorm_quantize_f32_2, float, 2, 4, false)
MXFA_RMSNORM_QUANTIZE(rmsnorm_quantize_f32_3, float, 3, 2, false)
MXFA_RMSNORM_QUANTIZE(rmsnorm_quantize_f32_4, float, 4, 2, false)
MXFA_RMSNORM_QUANTIZE(rmsnorm_quantize_f32_8, float, 8, 1, false)
MXFA_RMSNORM_QUANTIZE(rmsnorm_quantize_f32_wide, float, 8, 1, true)

}  // namespace mxfa::device
