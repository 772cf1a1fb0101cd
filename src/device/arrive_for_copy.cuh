#pragma once

#include <cuda/ptx>

#include "device/barrier.cuh"

namespace mxfa::device {

/// Gives a stage back that this thread has read, to be filled by the copy engine: that works
/// through another proxy, so that reads too are ordered by a fence alone.
__device__ inline void arrive_for_copy(std::uint64_t& barrier) {
  cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
  arrive(barrier);
}

}  // namespace mxfa::device
