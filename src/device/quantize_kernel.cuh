#pragma once

#include "device/arrive_for_copy.cuh"
#include "device/quantize_group.cuh"
#include "ptx/griddepcontrol.cuh"

/// The quantize kernel: a producer loads tiles, teams of four warps quantize them. One .cu file for
/// each input type holds its entry points.
namespace mxfa::device::quantizer {

/// One warp of a team. Waits on ring.full, signals ring.empty. A team's atoms are double buffered:
/// one barrier separates a tile's writes from the stores, and those from the writes of the tile
/// after next.
template <BlockShape kShape, DType kInput, bool kShifted>
struct Consumer {
  using G = Group<kShape, kInput, kShifted>;
  using Plan = SmemPlan<kInput>;

  const QuantizeParams& params;
  const CUtensorMap& transposed_map;
  Plan& smem;
  int team = static_cast<int>(threadIdx.x) / 32 / kQuantizeTeamWarps;

  __device__ void team_sync() const {
    asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(team + 1), "n"(kQuantizeTeamWarps * 32)
                 : "memory");
  }

  __device__ void store_atom(const uint4* atom, std::uint8_t* target, const AtomStrides& strides,
                             const Tile& tile, int lane) const {
    auto* base = reinterpret_cast<uint4*>(target + tile.head * strides.head_bytes +
                                          tile.index * strides.tile_bytes);
    base[lane] = atom[lane];
  }

  __device__ void fill_atoms(const G& group, const std::uint8_t (&scales)[G::kScales],
                             int buffer) const {
    if constexpr (kShape != BlockShape::k32x1) {
      group.fill_atom_dim(scales, smem.atom_dim[team][buffer]);
    }
    if constexpr (!G::kByRow) group.fill_atom_tokens(scales, smem.atom_tokens[team][buffer]);
  }
  __device__ void store_atoms(const G& group, int buffer) const {
    if (group.group == 0 && params.tiled_dim != nullptr) {
      store_atom(smem.atom_dim[team][buffer], params.tiled_dim, params.dim_strides, group.tile,
                 group.lane);
    }
    if (group.group == 1 && params.tiled_tokens != nullptr) {
      store_atom(smem.atom_tokens[team][buffer], params.tiled_tokens, params.token_strides,
                 group.tile, group.lane);
    }
  }

  // By one thread of the team, after the barrier that follows the team's writes and fences.
  __device__ void store_transposed(const G& group) const {
    const std::int32_t coords[3] = {0, group.tile.head * params.head_dim,
                                    static_cast<std::int32_t>(group.tile.index)};
    ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, &transposed_map, coords,
                              group.stage);
    ptx::cp_async_bulk_commit_group();
  }

  __device__ void tile(const Tile& tile, int stage, int buffer) const {
    const G group{params, tile, smem.stages[stage]};
    const bool transposed = params.transposed != nullptr;
    const bool tiled = params.tiled_dim != nullptr || params.tiled_tokens != nullptr;
    const bool storer = transposed && threadIdx.x % (kQuantizeTeamWarps * 32) == 0;
    const SumsOfHead sums(params.input.sums, tile.sequence, params.num_heads, tile.head);
    float shift[kVector];
    group.load_shift(shift);
    std::uint8_t scales[G::kScales];
    group.find_scales(shift, sums, scales);
    float inverse[G::kScales];
#pragma unroll
    for (int s = 0; s < G::kScales; ++s) inverse[s] = mx::inverse_e8m0(scales[s]);
    uint2 codes[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) codes[i] = group.encode(i, shift, sums, inverse);
    if (!transposed) arrive_for_copy(smem.ring.empty[stage]);
    if (tiled) fill_atoms(group, scales, buffer);
    if (params.compact != nullptr) group.store_compact(scales);
    if (params.codes != nullptr) group.store_codes(codes);
    if (transposed) {
      team_sync();  // all have read the stage
      group.fill_transposed(codes);
      ptx::fence_proxy_async(ptx::space_shared);
    }
    if (transposed || tiled) team_sync();
    if (storer) store_transposed(group);
    if (tiled) store_atoms(group, buffer);
    if (storer) ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>{});
    if (transposed) arrive(smem.ring.empty[stage]);
  }

  __device__ void run(std::int64_t works) const {
    RingState<Plan::kStages> state;
    state.advance(team);
    int buffer = 0;
    for (std::int64_t work = blockIdx.x + std::int64_t{team} * gridDim.x; work < works;
         work += std::int64_t{Plan::kTeams} * gridDim.x) {
      smem.ring.wait_turn(state);
      const Tile current = smem.tiles[state.stage];
      tile(current, state.stage, buffer);
      buffer ^= 1;
      state.advance(Plan::kTeams);
    }
  }
};

template <BlockShape kShape, DType kInput>
__device__ void quantize(const QuantizeParams& params, const CUtensorMap& map,
                         const CUtensorMap& transposed_map) {
  using Plan = SmemPlan<kInput>;
  constexpr bool kMayShift = kInput != DType::kF16;
  extern __shared__ __align__(1024) std::uint8_t smem_bytes[];
  auto& smem = *reinterpret_cast<Plan*>(smem_bytes);
  mxfa::ptx::griddepcontrol_launch_dependents();
  if (threadIdx.x == 0) {
    // Every lane that reads a stage says so itself: no order of others' reads is relied on.
    smem.ring.init(params.bulk ? 1 : 32, kQuantizeTeamWarps * 32);
    fence_barrier_init();
  }
  __syncthreads();
  const std::int64_t works = params.offsets.tiles(params.offsets.batch) * params.num_heads;
  if (threadIdx.x / 32 == Plan::kTeams * kQuantizeTeamWarps) {
    Producer<kInput>{params, map, smem}.run(works);
    // A call that overlaps ends after the one before it, as the next kernel of the stream expects.
    if (params.overlap) mxfa::ptx::griddepcontrol_wait();
    return;
  }
  if (kMayShift && params.input.shift != nullptr) {
    Consumer<kShape, kInput, kMayShift>{params, transposed_map, smem}.run(works);
  } else {
    Consumer<kShape, kInput, false>{params, transposed_map, smem}.run(works);
  }
}

}  // namespace mxfa::device::quantizer

#define MXFA_QUANTIZE(input_name, input, shape_name, shape)                              \
  extern "C" __global__ void __launch_bounds__(mxfa::device::quantize_threads(input), 1) \
      quantize_##input_name##_##shape_name(                                              \
          const __grid_constant__ mxfa::device::QuantizeParams params,                   \
          const __grid_constant__ CUtensorMap map,                                       \
          const __grid_constant__ CUtensorMap transposed_map) {                          \
    mxfa::device::quantizer::quantize<mxfa::BlockShape::shape, input>(params, map,       \
                                                                      transposed_map);   \
  }
#define MXFA_QUANTIZE_ALL(input_name, input)      \
  MXFA_QUANTIZE(input_name, input, 1x32, k1x32)   \
  MXFA_QUANTIZE(input_name, input, 32x1, k32x1)   \
  MXFA_QUANTIZE(input_name, input, 32x32, k32x32) \
  MXFA_QUANTIZE(input_name, input, 32xD, k32xD)   \
  MXFA_QUANTIZE(input_name, input, 1xD, k1xD)
