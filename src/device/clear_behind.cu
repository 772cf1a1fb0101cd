#include <cmath>

#include "device/clear_behind.h"

namespace mxfa::device {

extern "C" __global__ void __launch_bounds__(128)
    clear_behind(const __grid_constant__ ClearBehindParams params) {
  const std::int64_t first = params.cu_seqlens[params.batch];
  const std::int64_t works = (params.rows - first) * params.num_heads;
  for (std::int64_t work = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; work < works;
       work += std::int64_t{gridDim.x} * blockDim.x) {
    const std::int64_t row = first + work / params.num_heads;
    const std::int64_t head = work % params.num_heads;
    auto* const o =
        static_cast<std::uint8_t*>(params.o) +
        (row * params.o_token_stride + head * params.o_head_stride) * params.o_element_bytes;
    for (int i = 0; i < params.head_dim * params.o_element_bytes; ++i) o[i] = 0;
    params.lse[head * params.lse_head_stride + row] = -INFINITY;
    if (params.row_max != nullptr) {
      params.row_max[head * params.row_max_head_stride + row] = -INFINITY;
    }
  }
}

}  // namespace mxfa::device
