#pragma once

#include "mxfa/tensor.h"

/// RMSNorm without quantization, and its gradients. With it: cpu/rmsnorm_quantize.h.
namespace mxfa::cpu {

/// y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps), the sum in the order of mx/row_sum.h.
/// x: kBF16 or kF32 [rows, dim]; weight: kBF16 or kF32 [dim]; y: kBF16 or kF32 [rows, dim];
/// rstd: kF32 [rows]. Rows may have any stride, columns are contiguous.
void rmsnorm_forward(const TensorView& x, const TensorView& weight, float eps, const TensorView& y,
                     const TensorView& rstd);

/// dx = rstd * (g - xhat * mean(g * xhat)), g = dy * weight, xhat = x * rstd;
/// dweight = sum over rows of dy * xhat; in FP32, sums in the orders of mx/row_sum.h. The bits of
/// the device's kernel. dy: kBF16 or kF32 [rows, dim]; dx: kBF16 or kF32 [rows, dim]; dweight: kF32
/// or kBF16 [dim]. dx or dweight of rank 0 is not computed.
void rmsnorm_backward(const TensorView& dy, const TensorView& x, const TensorView& weight,
                      const TensorView& rstd, const TensorView& dx, const TensorView& dweight);

}  // namespace mxfa::cpu
