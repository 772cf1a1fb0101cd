#pragma once

#include <cuda_fp16.h>

#include <cuda/ptx>
#include <type_traits>

#include "kernels/sm90/backward/params.h"
#include "kernels/sm90/common/mma.cuh"
#include "ptx/global.cuh"
#include "ptx/mbarrier.cuh"

/// The adder role.
namespace mxfa::sm90::backward {

/// One thread: adds what consumers stage of dQ to the sums, by a bulk reduction of contiguous
/// memory a tile. Waits on dq_full; signals dq_empty.
template <class Config>
__device__ inline void add_dq_tiles(const BackwardParams& params, SmemPlan<Config>& smem) {
  using namespace cuda::ptx;
  using Sum = std::conditional_t<Config::kDqSums == DqSums::kF16, __half, float>;
  const std::uint32_t full = shared_address(&smem.dq_full);
  DqRecord record = {};
  static_assert(Config::kConsumers == 2);
  for (unsigned phase = 0; record.last == 0; phase ^= 1) {
    ptx::mbarrier_wait(full, phase);
    record = smem.dq_record;
    if (record.tile >= 0) {
      std::int32_t* const turn =
          params.dq_turns == nullptr ? nullptr : params.dq_turns + record.tile;
      if (turn != nullptr) {
        while (ptx::load_acquire(turn) != record.turn) {
        }
        // The turn was handed over by plain memory operations; the reduction is of the async proxy.
        fence_proxy_async(space_global);
      }
      std::uint8_t* const target = params.dq_sums + std::int64_t{record.tile} * Config::kDqBytes;
      cp_reduce_async_bulk(space_global, space_shared, op_add, reinterpret_cast<Sum*>(target),
                           reinterpret_cast<const Sum*>(smem.dq), Config::kDqBytes);
      cp_async_bulk_commit_group();
      if (turn == nullptr) {
        cp_async_bulk_wait_group_read(n32_t<0>());
      } else {
        cp_async_bulk_wait_group(n32_t<0>());
        ptx::add_release(turn, 1);
      }
    }
    ptx::mbarrier_arrive(shared_address(&smem.dq_empty[phase ^ 1]));
  }
}

}  // namespace mxfa::sm90::backward
