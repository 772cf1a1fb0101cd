#include <cuda/ptx>

#include "device/arrive_for_copy.cuh"
#include "device/barrier.cuh"
#include "device/fp8.cuh"
#include "device/rmsnorm_backward.h"

namespace mxfa::device {
namespace {

namespace ptx = cuda::ptx;
namespace row_sum = mx::row_sum;
using row_sum::kVector;

constexpr unsigned kAllLanes = 0xFFFFFFFFu;
constexpr int kMaxStages = 16;
constexpr int kProducerWarp = row_sum::kWeightWarps;
constexpr int kConsumersBarrier = 15;  // teams that meet have 1 to 8

// Of a warp's sums of the weight's gradient, steps that go through shared memory at a time.
constexpr int kFoldSteps = 3;
constexpr int kFoldFloats = kFoldSteps * row_sum::kStep;

/// What lies in shared memory before the weights [dim], the strands of the weight's gradient
/// [warps, kFoldFloats] (not for a lone team), and the ring, whose stages hold one row of x and of
/// dy for each team.
struct SmemHead {
  float sums[row_sum::kWeightWarps][2];  // of a team's chunks, for two rows in turn
  Ring<kMaxStages> ring;
};

/// How a CTA divides its work; all of it follows from shapes.
struct Plan {
  int team_warps;  ///< one for each chunk of a row
  int teams;
  int x_bytes, dy_bytes;  ///< of a row
  int stage_bytes;
  int stages;
  int ring_offset;

  __device__ explicit Plan(const RmsNormBackwardParams& params)
      : team_warps(row_sum::chunks(params.dim)),
        teams(row_sum::weight_strands(params.dim)),
        x_bytes(params.dim * element_bytes(params.x)),
        dy_bytes(params.dim * element_bytes(params.dy)),
        stage_bytes(teams * (x_bytes + dy_bytes)) {
    const int floats = params.dim + (teams > 1 ? row_sum::kWeightWarps * kFoldFloats : 0);
    ring_offset = (static_cast<int>(sizeof(SmemHead) + floats * sizeof(float)) + 127) / 128 * 128;
    stages = min(kMaxStages, (kBackwardSmemBytes - ring_offset) / stage_bytes);
  }
  __device__ static int element_bytes(const NormTensor& tensor) {
    return tensor.dtype == DType::kF32 ? 4 : 2;
  }
};

/// A position in a ring whose length is known at run time.
struct Position {
  int stage = 0;
  unsigned phase = 0;
  __device__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

struct Smem {
  std::uint8_t* base;
  Plan plan;

  __device__ SmemHead& head() const { return *reinterpret_cast<SmemHead*>(base); }
  __device__ float* weight() const { return reinterpret_cast<float*>(base + sizeof(SmemHead)); }
  __device__ float* strands(int dim) const { return weight() + dim; }
  /// Rows of x, one a team, then those of dy.
  __device__ std::uint8_t* x(int stage, int team) const {
    return base + plan.ring_offset + stage * plan.stage_bytes + team * plan.x_bytes;
  }
  __device__ std::uint8_t* dy(int stage, int team) const {
    return x(stage, plan.teams) + team * plan.dy_bytes;
  }
};

/// Calls body(row 0 of the chunk, set of the chunk, its first row, rows) for this CTA's sets of
/// rows, one for each team: all sets of a chunk of kWeightRows rows, then of the next chunk. `end`
/// follows each chunk.
template <class Body, class End>
__device__ void for_each_set(const RmsNormBackwardParams& params, int teams, Body body, End end) {
  const std::int64_t chunks = row_sum::weight_chunks(params.rows);
  for (std::int64_t chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
    const std::int64_t row0 = chunk * row_sum::kWeightRows;
    const int rows = static_cast<int>(min(std::int64_t{row_sum::kWeightRows}, params.rows - row0));
    int set = 0;
    for (int first = 0; first < rows; first += teams) {
      body(row0, set++, first, min(teams, rows - first));
    }
    end(chunk);
  }
}

/// Loads rows. Waits on ring.empty, signals ring.full.
struct Producer {
  const RmsNormBackwardParams& params;
  const Smem& smem;
  int lane = static_cast<int>(threadIdx.x) % 32;

  __device__ void copy(const NormTensor& tensor, std::int64_t row0, int rows, int row_bytes,
                       std::uint8_t* target, std::uint64_t* full) const {
    const int element = Plan::element_bytes(tensor);
    const auto* source =
        static_cast<const std::uint8_t*>(tensor.data) + row0 * tensor.row_stride * element;
    const std::int64_t pitch = tensor.row_stride * element;
    if (pitch == row_bytes) {
      if (lane == 0) {
        ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, target, source,
                           static_cast<unsigned>(rows * row_bytes), full);
      }
    } else if (lane < rows) {
      ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, target + lane * row_bytes,
                         source + lane * pitch, static_cast<unsigned>(row_bytes), full);
    }
  }

  __device__ void run() const {
    const Plan& plan = smem.plan;
    Ring<kMaxStages>& ring = smem.head().ring;
    Position position;
    for_each_set(
        params, plan.teams,
        [&](std::int64_t row0, int, int first, int rows) {
          wait(ring.empty[position.stage], position.phase ^ 1);
          std::uint64_t* full = &ring.full[position.stage];
          if (lane == 0) {
            ptx::mbarrier_arrive_expect_tx(
                ptx::sem_release, ptx::scope_cta, ptx::space_shared, full,
                static_cast<unsigned>(rows * (plan.x_bytes + plan.dy_bytes)));
          }
          // Bytes may arrive before they are expected: the phase lacks lane 0's arrival until then.
          copy(params.x, row0 + first, rows, plan.x_bytes, smem.x(position.stage, 0), full);
          copy(params.dy, row0 + first, rows, plan.dy_bytes, smem.dy(position.stage, 0), full);
          position.advance(plan.stages);
        },
        [](std::int64_t) {});
  }
};

/// Four columns: of BF16, or of FP32 where `dtype` says so and kBf16 does not rule it out.
template <bool kBf16>
__device__ inline void read(const std::uint8_t* row, DType dtype, int column, float (&value)[4]) {
  if (!kBf16 && dtype == DType::kF32) {
    const float4 words = *reinterpret_cast<const float4*>(row + column * 4);
    value[0] = words.x;
    value[1] = words.y;
    value[2] = words.z;
    value[3] = words.w;
  } else {
    const uint2 words = *reinterpret_cast<const uint2*>(row + column * 2);
    value[0] = bf16_low(words.x);
    value[1] = bf16_high(words.x);
    value[2] = bf16_low(words.y);
    value[3] = bf16_high(words.y);
  }
}

/// One warp: chunk `warp` of the rows of its team. Waits on ring.full, signals ring.empty.
/// kSteps passes of 128 columns cover a chunk. kPlain says that every step of every chunk exists
/// and that all tensors are BF16, so that loops have no branches.
template <int kSteps, bool kPlain>
struct Consumer {
  // Where registers suffice, what dx needs is kept from the first pass over a row, and the stage
  // is free before the row's sum is known.
  static constexpr bool kKeeps = kSteps <= 4;

  /// Of four columns.
  struct Terms {
    float xhat[kVector];
    float g[kVector];  ///< dy * weight
  };
  struct Row {
    const std::uint8_t* x;
    const std::uint8_t* dy;
    float rstd;
    Terms kept[kKeeps ? kSteps : 1];
  };

  const RmsNormBackwardParams& params;
  const Smem& smem;
  int lane = static_cast<int>(threadIdx.x) % 32;
  int warp_of_cta = static_cast<int>(threadIdx.x) / 32;
  int team = warp_of_cta / smem.plan.team_warps;
  int chunk = warp_of_cta % smem.plan.team_warps;
  int column0 = chunk * row_sum::kChunk + lane * kVector;

  __device__ bool has_column(int step) const {
    return kPlain || column0 + step * row_sum::kStep < params.dim;
  }
  __device__ void team_sync() const {
    asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(team + 1), "r"(smem.plan.team_warps * 32)
                 : "memory");
  }
  __device__ int consumers() const { return smem.plan.teams * smem.plan.team_warps * 32; }
  __device__ void consumers_sync() const {
    asm volatile("barrier.cta.sync.aligned %0, %1;" ::"n"(kConsumersBarrier), "r"(consumers())
                 : "memory");
  }

  __device__ void read_terms(const Row& row, int step, Terms& terms, float (&dy)[kVector]) const {
    const int column = column0 + step * row_sum::kStep;
    float x[kVector];
    read<kPlain>(row.x, params.x.dtype, column, x);
    read<kPlain>(row.dy, params.dy.dtype, column, dy);
    const float4 w = *reinterpret_cast<const float4*>(smem.weight() + column);
    const float weights[kVector] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      terms.xhat[j] = __fmul_rn(x[j], row.rstd);
      terms.g[j] = __fmul_rn(dy[j], weights[j]);
    }
  }

  // Adds dy * xhat to dweight; returns the lane's part of this chunk's sum of g * xhat.
  __device__ float accumulate(Row& row, float (&dweight)[kSteps][kVector]) const {
    float sums[kVector] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (!has_column(step)) break;
      Terms terms;
      float dy[kVector];
      read_terms(row, step, terms, dy);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        dweight[step][j] = __fadd_rn(dweight[step][j], __fmul_rn(dy[j], terms.xhat[j]));
        sums[j] = __fadd_rn(sums[j], __fmul_rn(terms.g[j], terms.xhat[j]));
      }
      if constexpr (kKeeps) row.kept[step] = terms;
    }
    return __fadd_rn(__fadd_rn(sums[0], sums[1]), __fadd_rn(sums[2], sums[3]));
  }

  // Two buffers suffice: a warp writes the sums after next only once all have read these, since
  // the barrier of the next row lies between.
  __device__ float add_chunks(float sum, int buffer) const {
    const Plan& plan = smem.plan;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, distance));
    }
    if (plan.team_warps == 1) return __fadd_rn(0.0f, sum);
    auto& sums = smem.head().sums;
    if (lane == 0) sums[warp_of_cta][buffer] = sum;
    team_sync();
    float total = 0.0f;
    for (int c = 0; c < plan.team_warps; ++c) {
      total = __fadd_rn(total, sums[team * plan.team_warps + c][buffer]);
    }
    return total;
  }

  __device__ void store_dx(const Row& row, float mean, std::int64_t row_number) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (!has_column(step)) break;
      Terms terms;
      if constexpr (kKeeps) {
        terms = row.kept[step];
      } else {
        float dy[kVector];
        read_terms(row, step, terms, dy);
      }
      float dx[kVector];
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        dx[j] = __fmul_rn(row.rstd, __fsub_rn(terms.g[j], __fmul_rn(terms.xhat[j], mean)));
      }
      const std::int64_t at = row_number * params.dx.row_stride + column0 + step * row_sum::kStep;
      if (!kPlain && params.dx.dtype == DType::kF32) {
        __stcs(reinterpret_cast<float4*>(static_cast<float*>(params.dx.data) + at),
               make_float4(dx[0], dx[1], dx[2], dx[3]));
      } else {
        __stcs(reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(params.dx.data) + at),
               make_uint2(encode_bf16_pair(dx[0], dx[1]), encode_bf16_pair(dx[2], dx[3])));
      }
    }
  }

  __device__ void release(int stage) const { arrive_for_copy(smem.head().ring.empty[stage]); }

  __device__ void row(int stage, float rstd, std::int64_t row_number, int buffer,
                      float (&dweight)[kSteps][kVector]) const {
    Row row{smem.x(stage, team), smem.dy(stage, team), rstd};
    const float part = accumulate(row, dweight);
    if constexpr (kKeeps) release(stage);
    const float sum = add_chunks(part, buffer);
    if (params.dx.data != nullptr) {
      store_dx(row, __fdiv_rn(sum, static_cast<float>(params.dim)), row_number);
    }
    if constexpr (!kKeeps) release(stage);
  }

  // Columns [first, first + kFoldFloats) of every chunk: each warp writes its sums, then the
  // strands are added in ascending order, a thread for each column.
  template <int kFirstStep>
  __device__ void fold(float* target, float (&dweight)[kSteps][kVector]) const {
    const Plan& plan = smem.plan;
    float* strands = smem.strands(params.dim);
    consumers_sync();  // all have read what was there
#pragma unroll
    for (int step = kFirstStep; step < min(kSteps, kFirstStep + kFoldSteps); ++step) {
      *reinterpret_cast<float4*>(strands + warp_of_cta * kFoldFloats +
                                 (step - kFirstStep) * row_sum::kStep + lane * kVector) =
          make_float4(dweight[step][0], dweight[step][1], dweight[step][2], dweight[step][3]);
#pragma unroll
      for (float& value : dweight[step]) value = 0.0f;
    }
    consumers_sync();
    for (int i = static_cast<int>(threadIdx.x); i < plan.team_warps * kFoldFloats;
         i += consumers()) {
      const int of_chunk = kFirstStep * row_sum::kStep + i % kFoldFloats;
      const int column = i / kFoldFloats * row_sum::kChunk + of_chunk;
      if (of_chunk >= row_sum::kChunk || column >= params.dim) continue;
      float sum = 0.0f;
      for (int strand = 0; strand < plan.teams; ++strand) {
        sum = __fadd_rn(sum, strands[strand * plan.team_warps * kFoldFloats + i]);
      }
      target[column] = sum;
    }
    if constexpr (kFirstStep + kFoldSteps < kSteps) fold<kFirstStep + kFoldSteps>(target, dweight);
  }

  __device__ void finish_dweight(std::int64_t row_chunk, float (&dweight)[kSteps][kVector]) const {
    float* target = params.partial + row_chunk * params.dim;
    if (smem.plan.teams > 1) {
      fold<0>(target, dweight);
      return;
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (!has_column(step)) break;
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        target[column0 + step * row_sum::kStep + j] = __fadd_rn(0.0f, dweight[step][j]);
        dweight[step][j] = 0.0f;
      }
    }
  }

  // Lane i: of the i-th of the team's rows from `first` of a chunk on.
  __device__ float read_rstd(std::int64_t row0, int first) const {
    const std::int64_t row = row0 + first + std::int64_t{lane} * smem.plan.teams + team;
    return row < params.rows ? params.rstd[row] : 0.0f;
  }

  __device__ void run() const {
    const Plan& plan = smem.plan;
    Ring<kMaxStages>& ring = smem.head().ring;
    float dweight[kSteps][kVector] = {};
    float rstds = 0.0f;
    float next_rstds = read_rstd(std::int64_t{blockIdx.x} * row_sum::kWeightRows, 0);
    Position position;
    int buffer = 0;
    for_each_set(
        params, plan.teams,
        [&](std::int64_t row0, int set, int first, int rows) {
          if (set % 32 == 0) {
            rstds = next_rstds;
            const int next = first + 32 * plan.teams;
            next_rstds = next < row_sum::kWeightRows
                             ? read_rstd(row0, next)
                             : read_rstd(row0 + std::int64_t{gridDim.x} * row_sum::kWeightRows, 0);
          }
          const float rstd = __shfl_sync(kAllLanes, rstds, set % 32);
          wait(ring.full[position.stage], position.phase);
          if (team < rows) {
            row(position.stage, rstd, row0 + first + team, buffer, dweight);
            buffer ^= 1;
          } else {
            release(position.stage);
          }
          position.advance(plan.stages);
        },
        [&](std::int64_t row_chunk) {
          if (params.partial != nullptr) finish_dweight(row_chunk, dweight);
        });
  }
};

__device__ void init(const RmsNormBackwardParams& params, const Smem& smem) {
  for (int column = static_cast<int>(threadIdx.x); column < params.dim;
       column += static_cast<int>(blockDim.x)) {
    smem.weight()[column] =
        params.weight.dtype == DType::kF32
            ? static_cast<const float*>(params.weight.data)[column]
            : bf16_low(static_cast<const std::uint16_t*>(params.weight.data)[column]);
  }
  if (threadIdx.x == 0) {
    smem.head().ring.init(1, static_cast<unsigned>(smem.plan.teams * smem.plan.team_warps * 32));
    fence_barrier_init();
  }
  __syncthreads();
}

__device__ inline bool is_plain(const RmsNormBackwardParams& params, int chunk_columns) {
  return params.dim % chunk_columns == 0 && params.x.dtype == DType::kBF16 &&
         params.dy.dtype == DType::kBF16 && params.dx.dtype == DType::kBF16;
}

template <int kSteps>
__device__ void rmsnorm_backward(const RmsNormBackwardParams& params) {
  extern __shared__ __align__(128) std::uint8_t smem_bytes[];
  const Smem smem{smem_bytes, Plan(params)};
  init(params, smem);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp == kProducerWarp) {
    Producer{params, smem}.run();
  } else if (warp < smem.plan.teams * smem.plan.team_warps) {
    if (is_plain(params, kSteps * row_sum::kStep)) {
      Consumer<kSteps, true>{params, smem}.run();
    } else {
      Consumer<kSteps, false>{params, smem}.run();
    }
  }
}

}  // namespace

#define MXFA_RMSNORM_BACKWARD(name, steps)                          \
  extern "C" __global__ void __launch_bounds__(kBackwardThreads, 1) \
      name(const __grid_constant__ RmsNormBackwardParams params) {  \
    rmsnorm_backward<steps>(params);                                \
  }
MXFA_RMSNORM_BACKWARD(rmsnorm_backward_1, 1)
MXFA_RMSNORM_BACKWARD(rmsnorm_backward_2, 2)
MXFA_RMSNORM_BACKWARD(rmsnorm_backward_3, 3)
MXFA_RMSNORM_BACKWARD(rmsnorm_backward_4, 4)
MXFA_RMSNORM_BACKWARD(rmsnorm_backward_8, 8)

/// A block sums 8 columns of the chunks' gradients: thread (strand, column).
extern "C" __global__ void __launch_bounds__(row_sum::kChunkStrands * 8)
    rmsnorm_backward_weight(const __grid_constant__ RmsNormBackwardParams params) {
  __shared__ float sums[row_sum::kChunkStrands][8];
  const int strand = static_cast<int>(threadIdx.x) / 8;
  const int own = static_cast<int>(threadIdx.x) % 8;
  const int column = static_cast<int>(blockIdx.x) * 8 + own;
  const std::int64_t chunks = row_sum::weight_chunks(params.rows);
  const float* source = params.partial + column;
  float sum = 0.0f;
#pragma unroll 8
  for (std::int64_t chunk = strand; chunk < chunks; chunk += row_sum::kChunkStrands) {
    sum = __fadd_rn(sum, source[chunk * params.dim]);
  }
  sums[strand][own] = sum;
  for (int distance = row_sum::kChunkStrands / 2; distance > 0; distance /= 2) {
    __syncthreads();
    if (strand < distance) {
      sums[strand][own] = __fadd_rn(sums[strand][own], sums[strand + distance][own]);
    }
  }
  if (strand != 0) return;
  if (params.dweight.dtype == DType::kF32) {
    static_cast<float*>(params.dweight.data)[column] = sums[0][own];
  } else {
    static_cast<std::uint16_t*>(params.dweight.data)[column] =
        static_cast<std::uint16_t>(encode_bf16_pair(sums[0][own], 0.0f));
  }
}

}  // namespace mxfa::device
