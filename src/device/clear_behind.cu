#include <cmath>

#include "device/clear_behind.h"
#include "mxfa/types.h"

namespace mxfa::device {
namespace {

/// Groups of 32 tokens of all sequences; every thread of the block calls it.
__device__ std::int64_t count_groups(const RowsBehind& x) {
  __shared__ std::int32_t groups;
  if (threadIdx.x == 0) groups = 0;
  __syncthreads();
  std::int32_t own = 0;
  for (std::int32_t s = threadIdx.x; s < x.batch; s += kClearBehindThreads) {
    own += (max(x.cu_seqlens[s + 1] - x.cu_seqlens[s], 0) + kScaleBlock - 1) / kScaleBlock;
  }
  atomicAdd(&groups, own);
  __syncthreads();
  const std::int32_t all = groups;
  __syncthreads();  // before another tensor's count begins
  return all;
}

__device__ void clear_rows(const RowsBehind& x) {
  const std::int64_t first = x.groups ? count_groups(x) : max(x.cu_seqlens[x.batch], 0);
  const std::int64_t works = (x.rows - first) * x.num_heads;
  for (std::int64_t work = std::int64_t{blockIdx.x} * kClearBehindThreads + threadIdx.x;
       work < works; work += std::int64_t{gridDim.x} * kClearBehindThreads) {
    const std::int64_t row = first + work / x.num_heads;
    std::uint8_t* const to =
        x.data + row * x.row_stride_bytes + work % x.num_heads * x.head_stride_bytes;
    if (x.minus_infinity) {
      *reinterpret_cast<float*>(to) = -INFINITY;
    } else {
      for (std::int32_t i = 0; i < x.row_bytes; ++i) to[i] = 0;
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kClearBehindThreads)
    clear_behind(const __grid_constant__ ClearBehindParams params) {
  for (std::int32_t i = 0; i < params.count; ++i) clear_rows(params.tensors[i]);
}

}  // namespace mxfa::device
