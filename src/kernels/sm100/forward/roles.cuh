#pragma once

#include "kernels/sm100/forward/config.h"
#include "kernels/sm100/forward/params.h"
#include "ptx/mbarrier.cuh"

/// What the roles share: addresses of barriers, positions in rings, the walk over work tiles.
namespace mxfa::sm100::forward {

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ inline void wait(const std::uint64_t& barrier, unsigned parity) {
  ptx::mbarrier_wait(shared_address(&barrier), parity);
}
__device__ inline void arrive(const std::uint64_t& barrier) {
  ptx::mbarrier_arrive(shared_address(&barrier));
}
/// One arrival for the warp, behind what all its lanes did.
__device__ inline void warp_arrive(const std::uint64_t& barrier) {
  __syncwarp();
  if (ptx::elect_one()) arrive(barrier);
}

/// Keeps what follows from a value out of registers that live through the whole loop.
template <class Value>
__device__ inline Value recomputed(Value value) {
  asm volatile("" : "+r"(value));
  return value;
}

/// Phases of one barrier pair that are waited for in turn.
struct Turn {
  unsigned count = 0;
  __device__ unsigned parity() const { return count & 1; }
  /// Of the phase before the next one.
  __device__ unsigned last_parity() const { return (count & 1) ^ 1; }
};

/// The same of all streams, in one register.
struct StreamTurns {
  unsigned parities = 0;
  __device__ unsigned parity(int stream) const { return parities >> stream & 1; }
  __device__ unsigned last_parity(int stream) const { return parity(stream) ^ 1; }
  __device__ void advance(int stream) { parities ^= 1u << stream; }
};

/// The work tiles in order, for one role: copied to registers, so that the record is free, or held.
template <class Config, bool kWholeWarp>
class TileReader {
 public:
  __device__ explicit TileReader(SmemPlan<Config>& smem) : smem_(smem) {}

  /// False behind the last tile.
  __device__ bool next(TileRecord& tile) {
    wait(smem_.barriers.tile_full[slot()], phase());
    tile = smem_.tile[slot()];
    release();
    return tile.valid != 0;
  }

  /// The record in shared memory, until release(); null behind the last tile.
  __device__ const TileRecord* hold() {
    wait(smem_.barriers.tile_full[slot()], phase());
    const TileRecord& tile = smem_.tile[slot()];
    return tile.valid != 0 ? &tile : nullptr;
  }
  __device__ void release() {
    if constexpr (kWholeWarp) {
      warp_arrive(smem_.barriers.tile_empty[slot()]);
    } else {
      arrive(smem_.barriers.tile_empty[slot()]);
    }
    ++count_;
  }

 private:
  __device__ unsigned slot() const { return count_ % Config::kRecords; }
  __device__ unsigned phase() const { return count_ / Config::kRecords & 1; }

  SmemPlan<Config>& smem_;
  unsigned count_ = 0;  ///< of records: one register
};

}  // namespace mxfa::sm100::forward
