#pragma once

namespace mxfa::ptx {

/// The thread's number in its warp, read anew. What the compiler makes of threadIdx it keeps for
/// the next use, through loops whose registers are all taken.
__device__ inline int lane_now() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

/// Likewise threadIdx.x.
__device__ inline int thread_now() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

}  // namespace mxfa::ptx
