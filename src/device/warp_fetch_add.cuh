#pragma once

#include <cstdint>

namespace mxfa::device {

/// Adds 1 for the warp, which then agrees on what the counter held.
struct WarpFetchAdd {
  std::int32_t* counter;
  /// The counter is 0 again after so many calls of all warps: those of a DynamicCounter are as many
  /// as there are tiles, since each tile that a CTA gets makes it ask once more. 0: never.
  std::int32_t calls = 0;

  __device__ std::int32_t operator()() const {
    unsigned held = 0;
    if (threadIdx.x % 32 == 0) {
      held = atomicInc(reinterpret_cast<unsigned*>(counter), static_cast<unsigned>(calls) - 1);
    }
    return static_cast<std::int32_t>(__shfl_sync(~0u, held, 0));
  }
};

}  // namespace mxfa::device
