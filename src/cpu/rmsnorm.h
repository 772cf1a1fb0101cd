#pragma once

#include <cstdint>
#include <span>

#include "cpu/gemm.h"
#include "cpu/operand.h"

/// RMSNorm of the rows of packed sequences, and its gradients. Rows behind the last sequence are
/// neither read nor written. Inputs may be kBF16, kF16 or kF32 with any strides.
namespace mxfa::cpu {

/// y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps), in FP32 with the sum in the order of
/// mx/row_sum.h.
struct RmsNormForward {
  TensorView x;       ///< [rows, dim]
  TensorView weight;  ///< [dim]
  float eps = 0;
  Target y;         ///< one head; its offsets say where groups of 32 rows start
  TensorView rstd;  ///< out: kF32 [rows]
};
void rmsnorm_forward(const RmsNormForward& call);

/// a b, [rows, k] and [k, dim].
struct Product {
  MatrixOperand a, b;
};

/// dx = rstd * (g - xhat * mean(g * xhat)), g = dy * weight, xhat = x * rstd; dweight = sum over
/// rows of dy * xhat; in FP32, sums in the orders of mx/row_sum.h. The bits of the device's kernel.
struct RmsNormBackward {
  TensorView dy = {};                      ///< [rows, dim]; or, of rank 0,
  std::span<const Product> products = {};  ///< dy is their sum, in FP32, and not stored
  TensorView x = {}, weight = {};          ///< as the forward's
  TensorView rstd = {};                    ///< kF32 [rows], the forward's
  std::int64_t rows = 0;                   ///< of the sequences
  TensorView dy_sum = {};                  ///< out: kBF16 or kF32 [rows, dim]; rank 0: not wanted
  TensorView dx = {};                      ///< likewise
  TensorView dweight = {};                 ///< out: kBF16 or kF32 [dim]; rank 0: not wanted
};
void rmsnorm_backward(const RmsNormBackward& call);

}  // namespace mxfa::cpu
