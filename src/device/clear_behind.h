#pragma once

#include <cstdint>

/// What outputs of attention hold behind the last sequence: parameters that host and kernel share.
namespace mxfa::device {

/// Rows of a tensor from cu_seqlens[batch] on, or from the sum of ceil(seqlen / 32) where they
/// count groups.
struct RowsBehind {
  std::uint8_t* data = nullptr;  ///< [rows, num_heads, row_bytes]
  std::int64_t row_stride_bytes = 0;
  std::int64_t head_stride_bytes = 0;
  std::int32_t row_bytes = 0;
  std::int64_t rows = 0;
  std::int32_t num_heads = 1;
  const std::int32_t* cu_seqlens = nullptr;
  std::int32_t batch = 0;
  bool groups = false;
  bool minus_infinity = false;  ///< FP32 of 4 bytes a row; else zeros
};

inline constexpr int kMaxBehind = 6;  ///< values and scales of three outputs

struct ClearBehindParams {
  RowsBehind tensors[kMaxBehind] = {};
  std::int32_t count = 0;
};

inline constexpr int kClearBehindThreads = 128;

}  // namespace mxfa::device
