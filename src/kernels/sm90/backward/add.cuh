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

/// One thread: adds what is staged of dQ to the sums, by a bulk reduction of contiguous memory a
/// piece. Waits on dq_full; signals dq_empty.
template <class Config>
__device__ inline void add_dq_pieces(const BackwardParams& params, SmemPlan<Config>& smem) {
  using namespace cuda::ptx;
  using Sum = std::conditional_t<Config::kDqSums == DqSums::kF16, __half, float>;
  static_assert(Config::kDqBuffers == 2);
  for (unsigned n = 0;; ++n) {
    const unsigned buffer = n % 2, piece = n % Config::kDqPieces;
    ptx::mbarrier_wait(shared_address(&smem.dq_full[buffer]), n / 2 % 2);
    const DqRecord record = smem.dq_record[buffer];
    if (record.last) break;
    std::int32_t* const turn = params.dq_turns == nullptr ? nullptr : params.dq_turns + record.tile;
    if (turn != nullptr && piece == 0) {
      while (ptx::load_acquire(turn) != record.turn) {
      }
      // The turn was handed over by plain memory operations; the reduction is of the async proxy.
      fence_proxy_async(space_global);
    }
    std::uint8_t* const target =
        params.dq_sums +
        (std::int64_t{record.tile} * Config::kDqPieces + piece) * Config::kDqPieceBytes;
    cp_reduce_async_bulk(space_global, space_shared, op_add, reinterpret_cast<Sum*>(target),
                         reinterpret_cast<const Sum*>(smem.dq[buffer]), Config::kDqPieceBytes);
    cp_async_bulk_commit_group();
    // What was staged before has been read when no more than this one is under way.
    cp_async_bulk_wait_group_read(n32_t<1>());
    if (n > 0) ptx::mbarrier_arrive(shared_address(&smem.dq_empty[buffer ^ 1]));
    if (turn != nullptr && piece + 1 == Config::kDqPieces) {
      cp_async_bulk_wait_group(n32_t<0>());
      ptx::add_release(turn, 1);
    }
  }
  cp_async_bulk_wait_group_read(n32_t<0>());
}

}  // namespace mxfa::sm90::backward
