#include "device/fp8.cuh"
#include "device/rmsnorm_quantize_ends.cuh"

namespace mxfa::device {
namespace rmsnorm {
namespace {

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

  // Every CTA sends its sums to every CTA of the cluster.
  __device__ void send_sum(float sum, int index) const {
    const int buffer = index % C::kSumBuffers;
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
  }
  __device__ float receive_sum(int index) const {
    const int buffer = index % C::kSumBuffers;
    wait(smem.sums_full[team][buffer], index / C::kSumBuffers & 1);
    const int row = warp * C::kRows + lane / kRowLanes;
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

  /// A square of this team: the `index`-th of it.
  struct Square {
    std::int64_t row0;  ///< of this warp
    int rows;           ///< of this warp that exist
    int stage;
    int index;
    bool whole;  ///< every row and column of the square exists
  };
  __device__ Square square_at(int tile, int s, int stage, int index) const {
    const std::int64_t first = std::int64_t{tile} * mx::kAtomRows + s * kSquareRows;
    const std::int64_t row0 = first + warp * C::kRows;
    const int rows =
        static_cast<int>(max(std::int64_t{0}, min(std::int64_t{C::kRows}, params.rows - row0)));
    return {row0, rows, stage, index,
            work.cols == C::kChunkCols && first + kSquareRows <= params.rows};
  }

  template <bool kWhole>
  __device__ float chunk_sum(const Square& square) const {
    float sums[C::kRows];
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
      sums[r] = kWhole || r < square.rows ? lane_sum<kWhole>(square.stage, r) : 0.0f;
    }
    return reduce_rows(sums);
  }
  __device__ float chunk_sum(const Square& square) const {
    return square.whole ? chunk_sum<true>(square) : chunk_sum<false>(square);
  }

  template <bool kWhole>
  __device__ void quantize(const Square& square, float sum, int buffer) const {
    const int rows = kWhole ? C::kRows : square.rows;
    const float mean = __fdiv_rn(sum, static_cast<float>(params.dim));
    const float own_rstd = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, params.eps)));
    const int own_row = lane / kRowLanes;
    if (lane % kRowLanes == 0 && work.rank == 0 && own_row < rows) {
      params.rstd[square.row0 + own_row] = own_rstd;
    }
    float rstd[C::kRows];
#pragma unroll
    for (int r = 0; r < C::kRows; ++r) {
      rstd[r] = __shfl_sync(0xFFFFFFFFu, own_rstd, r * kRowLanes);
    }
    reduce_amax<kWhole>(square.stage, rstd, rows, buffer);
    const int next = buffer + 1 == kAmaxBuffers ? 0 : buffer + 1;
    for (int i = warp * 32 + lane; i < C::kBlocks; i += C::kTeamWarps * 32) {
      smem.amax[team][next][i] = 0;
    }
    team_sync();
    store_codes<kWhole>(square.stage, rstd, rows, square.row0, buffer);
  }

  __device__ void finish(const Square& square, float sum, int buffer, int tile_buffer,
                         int s) const {
    if (square.whole) {
      quantize<true>(square, sum, buffer);
    } else {
      quantize<false>(square, sum, buffer);
    }
    __syncwarp();
    if (lane == 0) arrive(smem.rows.empty[square.stage]);
    publish_scales(buffer, tile_buffer, s);
  }

  // Calls body(tile, s) for the squares of this team.
  template <class Body>
  __device__ void for_each_square(Body body) const {
    for (int tile = work.tile; tile < work.tiles; tile += work.stride) {
      for (int s = team; s < kSquaresPerTile; s += C::kTeams) body(tile, s);
    }
  }

  // Squares one after another. Clustered, a peer sends the sums after next only once it has this
  // CTA's next ones, which are sent after the read of these.
  __device__ void run_in_turn() const {
    RingState<C::kStages> state;
    RingState<2> tile_state;
    state.advance(team);
    int buffer = 0;
    int index = 0;
    for_each_square([&](int tile, int s) {
      if (s == team) wait(smem.tiles.empty[tile_state.stage], tile_state.phase ^ 1);
      smem.rows.wait_turn(state);
      const Square square = square_at(tile, s, state.stage, index);
      float sum = chunk_sum(square);
      if constexpr (C::kClustered) {
        send_sum(sum, index);
        sum = receive_sum(index);
      }
      finish(square, sum, buffer, tile_state.stage, s);
      ++index;
      buffer = buffer + 1 == kAmaxBuffers ? 0 : buffer + 1;
      state.advance(C::kTeams);
      if (s + C::kTeams >= kSquaresPerTile) tile_state.advance();
    });
  }

  // The sums of the next square are sent before the current one is quantized. A CTA that sends
  // square n + 1 has received n - 1 from a peer, which had then read n - 3: of four buffers, that
  // of n + 1.
  __device__ void run_ahead() const {
    RingState<C::kStages> state;
    RingState<2> tile_state;
    int buffer = 0;
    int index = 0;
    const auto send = [&](int tile, int s) {
      wait(smem.rows.full[state.stage], state.phase);
      const Square square = square_at(tile, s, state.stage, index);
      send_sum(chunk_sum(square), index);
      ++index;
      state.advance();
      return square;
    };
    if (work.tile >= work.tiles) return;
    Square current = send(work.tile, 0);
    for_each_square([&](int tile, int s) {
      if (s == 0) wait(smem.tiles.empty[tile_state.stage], tile_state.phase ^ 1);
      const bool last_of_tile = s + 1 == kSquaresPerTile;
      const int next_tile = last_of_tile ? tile + work.stride : tile;
      Square next = current;
      if (next_tile < work.tiles) next = send(next_tile, last_of_tile ? 0 : s + 1);
      finish(current, receive_sum(current.index), buffer, tile_state.stage, s);
      buffer = buffer + 1 == kAmaxBuffers ? 0 : buffer + 1;
      current = next;
      if (last_of_tile) tile_state.advance();
    });
  }

  __device__ void run() const {
    if constexpr (C::kAhead) {
      run_ahead();
    } else {
      run_in_turn();
    }
  }
};

template <class C>
__device__ void init(const RmsNormQuantizeParams& params, SmemPlan<C>& smem, const Work& work) {
  for (int i = threadIdx.x; i < C::kChunkCols; i += blockDim.x) {
    smem.weight[i] = i < work.cols ? bf16_low(params.weight[work.first + i]) : 0.0f;
  }
  for (int i = threadIdx.x; i < C::kTeams * C::kBlocks; i += blockDim.x) {
    smem.amax[i / C::kBlocks][0][i % C::kBlocks] = 0;
  }
  if (threadIdx.x == 0) {
    smem.rows.init(1, C::kTeamWarps);
    smem.tiles.init(kSquaresPerTile * 32, 32);  // every lane of the warps that write and read
    for (auto& team : smem.sums_full) {
      for (std::uint64_t& barrier : team) ptx::mbarrier_init(&barrier, 1);
    }
    fence_barrier_init();
  }
  __syncthreads();
}

__device__ void cluster_sync() {
  ptx::barrier_cluster_arrive();
  ptx::barrier_cluster_wait();
}

template <class C>
__device__ void rmsnorm_quantize(const RmsNormQuantizeParams& params) {
  extern __shared__ __align__(128) std::uint8_t smem_bytes[];
  auto& smem = *reinterpret_cast<SmemPlan<C>*>(smem_bytes);
  const Work work(params, C::kClustered);
  init(params, smem, work);
  if constexpr (C::kClustered) cluster_sync();  // peers write into this CTA's shared memory
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp == kProducerWarp) {
    Producer<C>{params, smem, work}.run();
  } else if (warp == kScaleWarp) {
    ScaleWriter<C>{params, smem, work}.run();
  } else {
    Consumer<C>{params, smem, work}.run();
  }
  __syncwarp();
  if constexpr (C::kClustered) cluster_sync();  // until the peers' last sums have arrived
}

}  // namespace
}  // namespace rmsnorm

#define MXFA_RMSNORM_QUANTIZE(name, input, steps, teams, clustered)              \
  extern "C" __global__ void __launch_bounds__(kRmsNormThreads, 1)               \
      name(const __grid_constant__ RmsNormQuantizeParams params) {               \
    using KernelConfig = rmsnorm::Config<input, steps, teams, clustered>;        \
    static_assert(sizeof(rmsnorm::SmemPlan<KernelConfig>) <= kRmsNormSmemBytes); \
    rmsnorm::rmsnorm_quantize<KernelConfig>(params);                             \
  }
MXFA_RMSNORM_QUANTIZE(rmsnorm_quantize_bf16_1, std::uint16_t, 1, 4, false)
MXFA_RMSNORM_QUANTIZE(rmsnorm_quantize_bf16_2, std::uint16_t, 2, 4, false)
MXFA_RMSNORM_QUANTIZE(rmsnorm_quantize_bf16_3, std::uint16_t, 3, 4, false)
MXFA_RMSNORM_QUANTIZE(rmsnorm_quantize_bf16_4, std::uint16_t, 4, 4, false)
MXFA_RMSNORM_QUANTIZE(rmsnorm_quantize_bf16_8, std::uint16_t, 8, 2, false)
MXFA_RMSNORM_QUANTIZE(rmsnorm_quantize_bf16_wide, std::uint16_t, 8, 1, true)
MXFA_RMSNORM_QUANTIZE(rmsnorm_quantize_f32_1, float, 1, 4, false)
MXFA_RMSNORM_QUANTIZE(rmsnorm_quantize_f32_2, float, 2, 4, false)
MXFA_RMSNORM_QUANTIZE(rmsnorm_quantize_f32_3, float, 3, 2, false)
MXFA_RMSNORM_QUANTIZE(rmsnorm_quantize_f32_4, float, 4, 2, false)
MXFA_RMSNORM_QUANTIZE(rmsnorm_quantize_f32_8, float, 8, 1, false)
MXFA_RMSNORM_QUANTIZE(rmsnorm_quantize_f32_wide, float, 8, 1, true)

}  // namespace mxfa::device
