#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "mx/row_sum.h"
#include "mxfa/types.h"

/// RMSNorm fused with MXFP8 quantization: parameters that host and kernel share.
namespace mxfa::device {

/// y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps) in FP32 (division and root rounded to
/// nearest, the sum in the order of mx/row_sum.h), quantized in 32x32 squares counted from row 0:
/// one payload serves GEMMs along columns and along rows.
struct RmsNormQuantizeParams {
  const void* x = nullptr;                ///< [rows, dim], row-major, 16-byte aligned
  DType x_dtype = DType::kBF16;           ///< kBF16 or kF32
  const std::uint16_t* weight = nullptr;  ///< BF16 [dim]
  std::uint8_t* codes = nullptr;          ///< E4M3 [rows, dim], 4-byte aligned
  std::uint8_t* scales_dim = nullptr;     ///< tiled 128x4, rows = rows, k blocks = dim / 32
  std::uint8_t* scales_rows = nullptr;    ///< tiled 128x4, rows = dim, k blocks = ceil(rows / 32)
  float* rstd = nullptr;                  ///< [rows]
  std::int64_t rows = 0;
  std::int32_t dim = 0;  ///< a multiple of 32, at most mx::row_sum::kMaxColumns
  float eps = 0.0f;
};

inline constexpr int kRmsNormThreads = 18 * 32;  ///< 16 consumer warps, producer, scale writer
inline constexpr int kRmsNormSmemBytes = 227 * 1024;

/// CTAs of one cluster: each holds a chunk of the row.
MXFA_HOST_DEVICE constexpr int rmsnorm_cluster_size(std::int64_t dim) {
  return static_cast<int>((dim + mx::row_sum::kChunk - 1) / mx::row_sum::kChunk);
}

}  // namespace mxfa::device
