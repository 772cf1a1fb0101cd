#pragma once

#include <cstdint>

namespace mxfa::device {

/// Adds 1 for the warp, which then agrees on what the counter held.
struct WarpFetchAdd {
  std::int32_t* counter;
  __device__ std::int32_t operator()() const {
    std::int32_t held = 0;
    if (threadIdx.x % 32 == 0) held = atomicAdd(counter, 1);
    return __shfl_sync(~0u, held, 0);
  }
};

}  // namespace mxfa::device
