#pragma once

#include <cuda.h>

#include <cuda/ptx>

#include "device/barrier.cuh"
#include "device/jagged.cuh"

/// Shared memory of the quantize kernels and the role that fills it.
namespace mxfa::device::quantizer {

namespace ptx = cuda::ptx;

/// A tile is loaded into a stage. Where a transposed copy is wanted, the stage's team overwrites it
/// with the transposed tile, which the copy engine stores.
template <DType kInput>
struct SmemPlan {
  static constexpr int kTeams = quantize_teams(kInput);
  static constexpr int kStages = quantize_stages(kInput);
  static constexpr int kElementBytes = kInput == DType::kF32 ? 4 : 2;
  static constexpr int kStageBytes = mx::kAtomRows * mx::kAtomRows * kElementBytes;

  alignas(1024) std::uint8_t stages[kStages][kStageBytes];
  uint4 atom_dim[kTeams][2][32];     // a scale atom: rows are tokens; two tiles in turn
  uint4 atom_tokens[kTeams][2][32];  // a scale atom: rows are columns of head_dim
  Tile tiles[kStages];
  Ring<kStages> ring;
  static_assert(kStages >= kTeams, "Ring::wait_turn");
};
static_assert(sizeof(SmemPlan<DType::kBF16>) <= kQuantizeSmemBytes);
static_assert(sizeof(SmemPlan<DType::kF32>) <= kQuantizeSmemBytes);

/// One warp that loads tiles. Waits on ring.empty, signals ring.full, owns the order of work.
template <DType kInput>
struct Producer {
  using Plan = SmemPlan<kInput>;

  const QuantizeParams& params;
  const CUtensorMap& map;
  Plan& smem;
  int lane = static_cast<int>(threadIdx.x) % 32;

  __device__ bool in_sequence() const {
    return params.offsets.dense() && !params.input.padded_rows;
  }
  /// Row of the input; where offsets are dense, in its sequence.
  __device__ std::int64_t source_row(const Tile& tile) const {
    if (params.input.padded_rows) return tile.index * mx::kAtomRows;
    return in_sequence() ? tile.first : tile.row0;
  }

  // Always a whole box; what lies behind the sequence's end is not used.
  __device__ void load_bulk(const Tile& tile, int stage) const {
    if (lane != 0) return;
    smem.tiles[stage] = tile;
    std::uint64_t* full = &smem.ring.full[stage];
    ptx::mbarrier_arrive_expect_tx(
        ptx::sem_release, ptx::scope_cta, ptx::space_shared, full,
        static_cast<unsigned>(mx::kAtomRows * params.head_dim * Plan::kElementBytes));
    const std::int32_t coords[4] = {0, tile.head, static_cast<std::int32_t>(source_row(tile)),
                                    in_sequence() ? tile.sequence : 0};
    ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, smem.stages[stage], &map,
                              coords, full);
  }

  // Addresses that the copy engine refuses, element by element.
  __device__ void load_elements(const Tile& tile, int stage) const {
    using Element = std::conditional_t<Plan::kElementBytes == 4, std::uint32_t, std::uint16_t>;
    const QuantizeInput& input = params.input;
    if (lane == 0) smem.tiles[stage] = tile;
    const auto* source = static_cast<const Element*>(input.data) +
                         (in_sequence() ? tile.sequence * input.batch_stride : 0) +
                         source_row(tile) * input.row_stride + tile.head * input.head_stride;
    auto* target = reinterpret_cast<Element*>(smem.stages[stage]);
    for (int row = 0; row < tile.rows; ++row) {
      for (int column = lane; column < params.head_dim; column += 32) {
        target[row * params.head_dim + column] =
            column < input.head_dim ? source[row * input.row_stride + column] : Element{0};
      }
    }
    arrive(smem.ring.full[stage]);
  }

  __device__ void run(std::int64_t works) const {
    RingState<Plan::kStages> state;
    int sequence = 0;
    for (std::int64_t work = blockIdx.x; work < works; work += gridDim.x) {
      const Tile tile = locate_tile(params.offsets, params.num_heads, work, sequence);
      wait(smem.ring.empty[state.stage], state.phase ^ 1);
      if (params.bulk) {
        load_bulk(tile, state.stage);
      } else {
        load_elements(tile, state.stage);
      }
      state.advance();
    }
  }
};

}  // namespace mxfa::device::quantizer
