#pragma once

#include "device/clear_behind.h"
#include "mxfa/types.h"

namespace mxfa::device {

/// By a whole warp: how many rows the sequences have, or groups of 32 where rows count groups.
__device__ inline std::int64_t rows_before(const RowsBehind& x) {
  if (!x.groups) return max(x.cu_seqlens[x.batch], 0);
  unsigned groups = 0;
  for (std::int32_t s = static_cast<std::int32_t>(threadIdx.x % 32); s < x.batch; s += 32) {
    groups += static_cast<unsigned>(
        (max(x.cu_seqlens[s + 1] - x.cu_seqlens[s], 0) + kScaleBlock - 1) / kScaleBlock);
  }
  return __reduce_add_sync(~0u, groups);
}

/// By a whole warp, one of `warps`: a thread a row of up to 4 bytes, a warp a longer one.
__device__ inline void clear_behind(const RowsBehind& x, std::int32_t warp, std::int32_t warps) {
  const std::int64_t first = rows_before(x);
  const bool words = (reinterpret_cast<std::uintptr_t>(x.data) | x.row_bytes | x.row_stride_bytes |
                      x.head_stride_bytes) %
                         4 ==
                     0;
  const std::int32_t lane = static_cast<std::int32_t>(threadIdx.x % 32);
  const std::int32_t lanes = x.row_bytes > 4 ? 32 : 1, rows = 32 / lanes;
  const std::int32_t step = lanes * (words ? 4 : 1);
  // Rows and heads one in the other: a division of 64 bits would take more registers than there
  // are.
  for (std::int64_t row = first + warp * rows + lane / lanes; row < x.rows; row += warps * rows) {
    std::uint8_t* to = x.data + row * x.row_stride_bytes;
    for (std::int32_t head = 0; head < x.num_heads; ++head, to += x.head_stride_bytes) {
      for (std::int32_t i = lane % lanes * (step / lanes); i < x.row_bytes; i += step) {
        if (words) {
          *reinterpret_cast<std::uint32_t*>(to + i) = x.minus_infinity ? 0xFF800000u : 0u;
        } else {
          to[i] = 0;
        }
      }
    }
  }
}

__device__ inline void clear_behind(const ClearBehindParams& params, std::int32_t warp,
                                    std::int32_t warps) {
  for (std::int32_t i = 0; i < params.count; ++i) clear_behind(params.tensors[i], warp, warps);
}

}  // namespace mxfa::device
