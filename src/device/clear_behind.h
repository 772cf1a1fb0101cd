#pragma once

#include <cstdint>

/// What an attention output holds behind the last sequence: parameters that host and kernel share.
namespace mxfa::device {

/// Rows [cu_seqlens[batch], rows): o = 0, lse and row_max = -infinity.
struct ClearBehindParams {
  void* o = nullptr;  ///< [rows, num_heads, head_dim], strides in elements
  std::int32_t o_element_bytes = 2;
  std::int64_t o_token_stride = 0;
  std::int64_t o_head_stride = 0;
  std::int32_t head_dim = 0;
  float* lse = nullptr;  ///< [num_heads, rows]
  std::int64_t lse_head_stride = 0;
  float* row_max = nullptr;  ///< likewise, or null
  std::int64_t row_max_head_stride = 0;
  const std::int32_t* cu_seqlens = nullptr;
  std::int32_t batch = 0;
  std::int64_t rows = 0;
  std::int32_t num_heads = 1;
};

}  // namespace mxfa::device
