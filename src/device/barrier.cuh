#pragma once

#include <cuda/ptx>

#include <cstdint>

/// mbarrier pairs of a ring in shared memory.
namespace mxfa::device {

/// Position in a ring; the phase flips at each turn.
template <int kStages>
struct RingState {
  int stage = 0;
  unsigned phase = 0;

  __device__ void advance(int count = 1) {
    stage += count;
    if (stage >= kStages) {
      stage -= kStages;
      phase ^= 1;
    }
  }
};

__device__ inline void wait(std::uint64_t& barrier, unsigned phase) {
  while (!cuda::ptx::mbarrier_try_wait_parity(&barrier, phase)) {
  }
}

__device__ inline void arrive(std::uint64_t& barrier) {
  static_cast<void>(cuda::ptx::mbarrier_arrive(&barrier));
}

/// Full and empty barriers of a ring. A stage is filled when its expected bytes have arrived and
/// free again when every consumer has arrived.
template <int kStages>
struct Ring {
  std::uint64_t full[kStages];
  std::uint64_t empty[kStages];

  __device__ void init(unsigned full_arrivals, unsigned empty_arrivals) {
    for (int stage = 0; stage < kStages; ++stage) {
      cuda::ptx::mbarrier_init(&full[stage], full_arrivals);
      cuda::ptx::mbarrier_init(&empty[stage], empty_arrivals);
    }
  }

  /// For readers that take turns, at most kStages of them. A parity cannot tell this fill from the
  /// one before the last, so first the last one, another reader's, must have been read: else a
  /// reader that is early, while loads land out of order, would take an empty stage for full.
  __device__ void wait_turn(const RingState<kStages>& state) {
    wait(empty[state.stage], state.phase ^ 1);
    wait(full[state.stage], state.phase);
  }
};

/// Makes initialised barriers visible to the copy engine and, by the barrier that follows, to all.
__device__ inline void fence_barrier_init() {
  cuda::ptx::fence_mbarrier_init(cuda::ptx::sem_release, cuda::ptx::scope_cluster);
}

}  // namespace mxfa::device
