#include "device/clear_behind.cuh"

namespace mxfa::device {

extern "C" __global__ void __launch_bounds__(kClearBehindThreads)
    clear_behind(const __grid_constant__ ClearBehindParams params) {
  constexpr std::int32_t kWarps = kClearBehindThreads / 32;
  clear_behind(params, static_cast<std::int32_t>(blockIdx.x * kWarps + threadIdx.x / 32),
               static_cast<std::int32_t>(gridDim.x) * kWarps);
}

}  // namespace mxfa::device
