#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "mx/row_sum.h"
#include "mxfa/types.h"

/// Gradients of RMSNorm: parameters that host and kernel share.
namespace mxfa::device {

/// A row-major matrix or vector, kBF16 or kF32; rows 16-byte aligned.
struct NormTensor {
  void* data = nullptr;
  DType dtype = DType::kBF16;
  std::int64_t row_stride = 0;  ///< elements
};

/// dx = rstd * (g - xhat * mean(g * xhat)), g = dy * weight, xhat = x * rstd; dweight = sum over
/// rows of dy * xhat. Bit for bit cpu::rmsnorm_backward.
struct RmsNormBackwardParams {
  NormTensor dy = {};           ///< [rows, dim]
  NormTensor x = {};            ///< [rows, dim]
  NormTensor weight = {};       ///< [dim]
  const float* rstd = nullptr;  ///< [rows]
  NormTensor dx = {};           ///< [rows, dim]; data null: not computed
  NormTensor dweight = {};      ///< [dim]; data null: not computed
  float* partial = nullptr;     ///< [weight_chunks(rows), dim], scratch for dweight
  std::int64_t rows = 0;
  std::int32_t dim = 0;  ///< a multiple of 32, at most mx::row_sum::kMaxColumns
};

inline constexpr int kBackwardThreads = (mx::row_sum::kWeightWarps + 1) * 32;
inline constexpr int kBackwardSmemBytes = 227 * 1024;

MXFA_HOST_DEVICE constexpr std::int64_t rmsnorm_backward_scratch_bytes(std::int64_t rows,
                                                                       std::int32_t dim) {
  return mx::row_sum::weight_chunks(rows) * dim * 4;
}

}  // namespace mxfa::device
