#include <cuda.h>

#include <cuda/ptx>

#include "device/barrier.cuh"
#include "device/fp8.cuh"
#include "device/quantize.h"
#include "mx/permutation.h"
#include "mx/scale_grid.h"
#include "mx/scale_layout.h"

namespace mxfa::device {
namespace {

namespace ptx = cuda::ptx;

constexpr int kTeams = 4;      // each works on a tile of 128 tokens
constexpr int kTeamWarps = 4;  // each on a group of 32 tokens
constexpr int kProducerWarp = kTeams * kTeamWarps;
constexpr int kStages = 6;  // two tiles load while every team works: 64 KB in flight
constexpr int kVector = 8;  // columns of a 16-byte load
constexpr int kLoads = 16;  // of a lane: two rows a load cover the group
constexpr unsigned kAllLanes = 0xFFFFFFFFu;

/// The tile of 128 tokens of one head that a team quantizes.
struct Tile {
  std::int64_t index;  ///< among all sequences' tiles
  std::int64_t row0;   ///< packed row of its first token
  std::int64_t group;  ///< of its first 32 tokens, among all sequences' groups
  int sequence;
  int head;
  int rows;  ///< tokens that exist, at most 128
};

struct SmemPlan {
  alignas(128) std::uint8_t stages[kStages][mx::kAtomRows * mx::kAtomRows * 2];  // BF16 rows
  uint4 atom_dim[kTeams][2][32];     // a scale atom: rows are tokens; two tiles in turn
  uint4 atom_tokens[kTeams][2][32];  // a scale atom: rows are columns of head_dim
  Tile tiles[kStages];
  Ring<kStages> ring;
};
static_assert(sizeof(SmemPlan) <= kQuantizeSmemBytes);
static_assert(kStages >= kTeams, "Ring::wait_turn");
static_assert(kQuantizeThreads == (kProducerWarp + 1) * 32);

/// Loads tiles. Waits on ring.empty, signals ring.full, owns the order of work.
struct Producer {
  const QuantizeParams& params;
  const CUtensorMap& map;
  SmemPlan& smem;
  int lane = static_cast<int>(threadIdx.x) % 32;

  // The last sequence from `from` on whose tiles start at or before `tile`; empty ones before it
  // start there too. Strides of 32^k: near targets, the common case, take one round.
  __device__ int find_sequence(int from, std::int64_t tile) const {
    int low = from;
    int step = 1;
    while (true) {
      const std::int64_t probe = low + std::int64_t{lane + 1} * step;
      const bool before = probe < params.offsets.batch && params.offsets.tiles(probe) <= tile;
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

  __device__ Tile locate(std::int64_t work, int& sequence) const {
    Tile tile;
    tile.index = work / params.num_heads;
    tile.head = static_cast<int>(work % params.num_heads);
    sequence = find_sequence(sequence, tile.index);
    tile.sequence = sequence;
    const std::int64_t first = (tile.index - params.offsets.tiles(sequence)) * mx::kAtomRows;
    const std::int64_t end = params.offsets.tokens(sequence + 1);
    tile.row0 = params.offsets.tokens(sequence) + first;
    tile.group = params.offsets.groups(sequence) + first / kScaleBlock;
    tile.rows = static_cast<int>(min(std::int64_t{mx::kAtomRows}, end - tile.row0));
    return tile;
  }

  // Always a whole box; what lies behind the sequence's end is not used.
  __device__ void load(const Tile& tile, int stage) const {
    if (lane != 0) return;
    smem.tiles[stage] = tile;
    std::uint64_t* full = &smem.ring.full[stage];
    ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, full,
                                   static_cast<unsigned>(mx::kAtomRows * params.head_dim * 2));
    const std::int32_t coords[3] = {0, tile.head, static_cast<std::int32_t>(tile.row0)};
    ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, smem.stages[stage], &map,
                              coords, full);
  }

  __device__ void run(std::int64_t works) const {
    RingState<kStages> state;
    int sequence = 0;
    for (std::int64_t work = blockIdx.x; work < works; work += gridDim.x) {
      const Tile tile = locate(work, sequence);
      wait(smem.ring.empty[state.stage], state.phase ^ 1);
      load(tile, state.stage);
      state.advance();
    }
  }
};

/// A warp's group of 32 tokens. Load i of a lane covers row 2 i + half, columns 8 * vector...
template <BlockShape kShape, bool kShifted>
struct Group {
  const QuantizeParams& params;
  const Tile& tile;
  const std::uint8_t* stage;
  int group = static_cast<int>(threadIdx.x) / 32 % kTeamWarps;
  int lane = static_cast<int>(threadIdx.x) % 32;
  int half = lane / 16;
  int column = lane % 16 * kVector;
  int rows = min(kScaleBlock, max(0, tile.rows - group * kScaleBlock));
  bool active = column < params.head_dim;

  // Scales that a lane needs: one for each row it holds, each column, or one for all.
  static constexpr bool kByRow = kShape == BlockShape::k1x32 || kShape == BlockShape::k1xD;
  static constexpr bool kByColumn = kShape == BlockShape::k32x1;
  static constexpr bool kWholeDim = kShape == BlockShape::k1xD || kShape == BlockShape::k32xD;
  static constexpr int kScales = kByRow ? kLoads : kByColumn ? kVector : 1;
  __device__ static constexpr int scale_index(int load, int j) {
    return kByRow ? load : kByColumn ? j : 0;
  }

  __device__ std::int64_t row(int load) const {
    return tile.row0 + group * kScaleBlock + 2 * load + half;
  }
  __device__ bool exists(int load) const { return active && 2 * load + half < rows; }

  __device__ uint4 read(int load) const {
    const int row_in_tile = group * kScaleBlock + 2 * load + half;
    return *reinterpret_cast<const uint4*>(stage + (row_in_tile * params.head_dim + column) * 2);
  }

  __device__ void load_shift(float (&shift)[kVector]) const {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      shift[j] = !kShifted || !active
                     ? 0.0f
                     : params.shift[tile.sequence * params.shift_batch_stride +
                                    std::int64_t{tile.head} * params.head_dim + column + j];
    }
  }

  // Zeros where the row or column does not exist, whatever the shift.
  __device__ void values(int load, const float (&shift)[kVector], float (&value)[kVector]) const {
    const uint4 packed = exists(load) ? read(load) : make_uint4(0, 0, 0, 0);
    const unsigned words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      value[2 * w] = bf16_low(words[w]);
      value[2 * w + 1] = bf16_high(words[w]);
    }
    if (kShifted && exists(load)) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) value[j] = __fsub_rn(value[j], shift[j]);
    }
  }

  __device__ static float reduce(float amax, int distance) {
    return max_nan(amax, __shfl_xor_sync(kAllLanes, amax, distance));
  }

  __device__ void find_scales(const float (&shift)[kVector],
                              std::uint8_t (&scales)[kScales]) const {
    float amax[kScales] = {};
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      float value[kVector];
      values(i, shift, value);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        amax[scale_index(i, j)] = max_nan(amax[scale_index(i, j)], fabsf(value[j]));
      }
    }
#pragma unroll
    for (int s = 0; s < kScales; ++s) {
      if constexpr (!kByColumn) {
        amax[s] = reduce(reduce(amax[s], 1), 2);
        if constexpr (kWholeDim) amax[s] = reduce(reduce(amax[s], 4), 8);
      }
      if constexpr (!kByRow) amax[s] = reduce(amax[s], 16);
      scales[s] = mx::scale_from_amax<mx::E4M3>(amax[s], ScaleRule::kRoundUp);
    }
  }

  __device__ uint2 encode(int load, const float (&shift)[kVector],
                          const float (&inverse)[kScales]) const {
    float value[kVector];
    values(load, shift, value);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      // A value that does not exist stays 0 also in a block that holds a NaN.
      value[j] = exists(load) ? value[j] * inverse[scale_index(load, j)] : 0.0f;
    }
    return make_uint2(encode_e4m3_quad(value[0], value[1], value[2], value[3]),
                      encode_e4m3_quad(value[4], value[5], value[6], value[7]));
  }

  __device__ void store_codes(const uint2 (&codes)[kLoads]) const {
    std::uint8_t* base = params.codes + std::int64_t{tile.head} * params.head_dim + column;
    const std::int64_t pitch = std::int64_t{params.num_heads} * params.head_dim;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (exists(i)) __stcs(reinterpret_cast<uint2*>(base + row(i) * pitch), codes[i]);
    }
  }

  __device__ void store_compact(const std::uint8_t (&scales)[kScales]) const {
    const std::int64_t cols = mx::scale_cols(kShape, params.head_dim);
    const std::int64_t head = tile.head * cols + mx::scale_col(kShape, column);
    const std::int64_t pitch = params.num_heads * cols;
    const bool first_of_block = active && lane % (kWholeDim ? 16 : 4) == 0;
    if constexpr (kByRow) {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        if (first_of_block && exists(i)) params.compact[row(i) * pitch + head] = scales[i];
      }
    } else if (rows > 0 && half == 0) {
      std::uint8_t* target = params.compact + (tile.group + group) * pitch + head;
#pragma unroll
      for (int s = 0; s < kScales; ++s) {
        if (kByColumn ? active : first_of_block) target[s] = scales[s];
      }
    }
  }

  // Byte (row % 32) * 16 + row / 32 * 4 + k block: rows of the tile are tokens.
  __device__ void fill_atom_dim(const std::uint8_t (&scales)[kScales], uint4* words) const {
    auto* atom = reinterpret_cast<std::uint8_t*>(words);
    if (lane % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int token = 2 * i + half;
        atom[token * 16 + group * 4 + column / kScaleBlock] =
            exists(i) ? scales[scale_index(i, 0)] : std::uint8_t{0};
      }
    }
  }

  // Rows are columns of head_dim and the k block is this group.
  __device__ void fill_atom_tokens(const std::uint8_t (&scales)[kScales], uint4* words) const {
    auto* atom = reinterpret_cast<std::uint8_t*>(words);
    if (half == 0) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const int row_of_atom = column + j;
        atom[row_of_atom % 32 * 16 + row_of_atom / 32 * 4 + group] =
            active && rows > 0 ? scales[scale_index(0, j)] : std::uint8_t{0};
      }
    }
  }

  template <TokenOrder kOrder>
  __device__ static constexpr int token_at(int position) {
    const int first = position & ~(mx::kPermutationGroup - 1);
    const int p = position % mx::kPermutationGroup;
    if (kOrder == TokenOrder::kPi) return first + mx::pi_token(p);
    if (kOrder == TokenOrder::kSigma) return first + mx::sigma_token(p);
    return position;
  }

  // The halves of the warp hold tokens of even and odd number; after the exchange each has all 32
  // tokens of four columns and writes 32 bytes of each.
  template <TokenOrder kOrder>
  __device__ void store_transposed(const uint2 (&codes)[kLoads]) const {
    unsigned token[kScaleBlock];  // four columns of one token
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const unsigned kept = half == 0 ? codes[i].x : codes[i].y;
      const unsigned sent = half == 0 ? codes[i].y : codes[i].x;
      const unsigned received = __shfl_xor_sync(kAllLanes, sent, 16);
      token[2 * i] = half == 0 ? kept : received;
      token[2 * i + 1] = half == 0 ? received : kept;
    }
    if (!active) return;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      unsigned words[8];
#pragma unroll
      for (int w = 0; w < 8; ++w) {
        const unsigned low = __byte_perm(token[token_at<kOrder>(4 * w)],
                                         token[token_at<kOrder>(4 * w + 1)], c | (c + 4) << 4);
        const unsigned high = __byte_perm(token[token_at<kOrder>(4 * w + 2)],
                                          token[token_at<kOrder>(4 * w + 3)], c | (c + 4) << 4);
        words[w] = __byte_perm(low, high, 0x5410);
      }
      const std::int64_t dim_row =
          std::int64_t{tile.head} * params.head_dim + column + half * 4 + c;
      auto* target =
          reinterpret_cast<uint4*>(params.transposed + dim_row * params.transposed_pitch +
                                   tile.index * mx::kAtomRows + group * kScaleBlock);
      target[0] = make_uint4(words[0], words[1], words[2], words[3]);
      target[1] = make_uint4(words[4], words[5], words[6], words[7]);
    }
  }

  __device__ void store_transposed_in_order(const uint2 (&codes)[kLoads]) const {
    if (params.order == TokenOrder::kPi) {
      store_transposed<TokenOrder::kPi>(codes);
    } else if (params.order == TokenOrder::kSigma) {
      store_transposed<TokenOrder::kSigma>(codes);
    } else {
      store_transposed<TokenOrder::kPlain>(codes);
    }
  }
};

/// One warp of a team. Waits on ring.full, signals ring.empty; the team's atoms are double
/// buffered, so its one barrier a tile separates a tile's writes from the stores and those from
/// the writes of the tile after next.
template <BlockShape kShape, bool kShifted>
struct Consumer {
  using G = Group<kShape, kShifted>;

  const QuantizeParams& params;
  SmemPlan& smem;
  int team = static_cast<int>(threadIdx.x) / 32 / kTeamWarps;

  __device__ void store_atom(const uint4* atom, std::uint8_t* target, const AtomStrides& strides,
                             const Tile& tile, int lane) const {
    auto* base = reinterpret_cast<uint4*>(target + tile.head * strides.head_bytes +
                                          tile.index * strides.tile_bytes);
    base[lane] = atom[lane];
  }

  __device__ void store_scales(const G& group, const std::uint8_t (&scales)[G::kScales],
                               int buffer) const {
    if (params.compact != nullptr) group.store_compact(scales);
    if (params.tiled_dim == nullptr && params.tiled_tokens == nullptr) return;
    uint4* atom_dim = smem.atom_dim[team][buffer];
    uint4* atom_tokens = smem.atom_tokens[team][buffer];
    if constexpr (kShape != BlockShape::k32x1) group.fill_atom_dim(scales, atom_dim);
    if constexpr (!G::kByRow) group.fill_atom_tokens(scales, atom_tokens);
    asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(team + 1), "n"(kTeamWarps * 32)
                 : "memory");
    if (group.group == 0 && params.tiled_dim != nullptr) {
      store_atom(atom_dim, params.tiled_dim, params.dim_strides, group.tile, group.lane);
    }
    if (group.group == 1 && params.tiled_tokens != nullptr) {
      store_atom(atom_tokens, params.tiled_tokens, params.token_strides, group.tile, group.lane);
    }
  }

  __device__ void tile(const Tile& tile, int stage, int buffer) const {
    const G group{params, tile, smem.stages[stage]};
    float shift[kVector];
    group.load_shift(shift);
    std::uint8_t scales[G::kScales];
    group.find_scales(shift, scales);
    float inverse[G::kScales];
#pragma unroll
    for (int s = 0; s < G::kScales; ++s) inverse[s] = mx::inverse_e8m0(scales[s]);
    uint2 codes[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) codes[i] = group.encode(i, shift, inverse);
    __syncwarp();
    if (group.lane == 0) arrive(smem.ring.empty[stage]);
    if (params.codes != nullptr) group.store_codes(codes);
    if (params.transposed != nullptr) group.store_transposed_in_order(codes);
    store_scales(group, scales, buffer);
  }

  __device__ void run(std::int64_t works) const {
    RingState<kStages> state;
    state.advance(team);
    int buffer = 0;
    for (std::int64_t work = blockIdx.x + std::int64_t{team} * gridDim.x; work < works;
         work += std::int64_t{kTeams} * gridDim.x) {
      smem.ring.wait_turn(state);
      const Tile current = smem.tiles[state.stage];
      tile(current, state.stage, buffer);
      buffer ^= 1;
      state.advance(kTeams);
    }
  }
};

template <BlockShape kShape>
__device__ void quantize(const QuantizeParams& params, const CUtensorMap& map) {
  extern __shared__ __align__(128) std::uint8_t smem_bytes[];
  auto& smem = *reinterpret_cast<SmemPlan*>(smem_bytes);
  if (threadIdx.x == 0) {
    smem.ring.init(1, kTeamWarps);
    fence_barrier_init();
  }
  __syncthreads();
  const std::int64_t works = params.offsets.tiles(params.offsets.batch) * params.num_heads;
  if (threadIdx.x / 32 == kProducerWarp) {
    Producer{params, map, smem}.run(works);
  } else if (params.shift != nullptr) {
    Consumer<kShape, true>{params, smem}.run(works);
  } else {
    Consumer<kShape, false>{params, smem}.run(works);
  }
}

}  // namespace

#define MXFA_QUANTIZE(name, shape)                                                              \
  extern "C" __global__ void __launch_bounds__(kQuantizeThreads, 1) name(                       \
      const __grid_constant__ QuantizeParams params, const __grid_constant__ CUtensorMap map) { \
    quantize<shape>(params, map);                                                               \
  }
MXFA_QUANTIZE(quantize_1x32, BlockShape::k1x32)
MXFA_QUANTIZE(quantize_32x1, BlockShape::k32x1)
MXFA_QUANTIZE(quantize_32x32, BlockShape::k32x32)
MXFA_QUANTIZE(quantize_32xD, BlockShape::k32xD)
MXFA_QUANTIZE(quantize_1xD, BlockShape::k1xD)

/// One CTA: prefix sums of groups and tiles over the batch, chunk after chunk of its threads.
extern "C" __global__ void __launch_bounds__(1024)
    jagged_offsets(const std::int32_t* tokens, std::int32_t batch, std::int64_t* groups,
                   std::int64_t* tiles) {
  __shared__ std::int64_t warp_sums[2][32];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  std::int64_t carry[2] = {0, 0};
  if (thread == 0) groups[0] = tiles[0] = 0;
  for (std::int32_t first = 0; first < batch; first += 1024) {
    const std::int32_t s = first + thread;
    const std::int64_t seqlen = s < batch ? tokens[s + 1] - tokens[s] : 0;
    std::int64_t sums[2] = {mx::ceil_div(seqlen, kScaleBlock), mx::ceil_div(seqlen, mx::kAtomRows)};
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      for (int distance = 1; distance < 32; distance *= 2) {
        const std::int64_t other = __shfl_up_sync(kAllLanes, sums[which], distance);
        if (lane >= distance) sums[which] += other;
      }
      if (lane == 31) warp_sums[which][warp] = sums[which];
    }
    __syncthreads();
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      std::int64_t before = carry[which];
      for (int w = 0; w < 32; ++w) {
        const std::int64_t sum = warp_sums[which][w];
        if (w < warp) before += sum;
        carry[which] += sum;
      }
      if (s < batch) (which == 0 ? groups : tiles)[s + 1] = before + sums[which];
    }
    __syncthreads();
  }
}

}  // namespace mxfa::device
