#pragma once

#include <cstdint>
#include <span>

#include "mxfa/quantize.h"
#include "mxfa/tensor.h"
#include "mxfa/types.h"

/// What makes attention's operands, and the gradients of that: RMSNorm and matrix products that
/// write MXFP8 themselves, so that quantization is no pass of its own. Tensors are packed; groups
/// of 32 tokens start at each sequence's first row (`cu_seqlens`: kI32 or kI64 [batch + 1], not
/// given: all tokens are one sequence). Sums are FP32, in an order that does not depend on the
/// number of threads. Every function throws Error(kInvalidArgument) that names the argument, what
/// was expected and what came, before it writes anything, and Error(kUnsupported) for a backend
/// that the build does not have.
namespace mxfa::producers {

/// y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps), in FP32.
struct RmsNormArgs {
  TensorView x = {};       ///< kBF16, kF16 or kF32 [tokens, dim], any strides; dim up to 16384
  TensorView weight = {};  ///< likewise [dim]
  double eps = 1e-6;
  TensorView cu_seqlens = {};
  Tensor y = {};         ///< out: kF32, kBF16, or kE4M3 + scales of 32x32 blocks [tokens, dim]
  TensorView rstd = {};  ///< out: kF32 [tokens]
  ScaleRule rule = ScaleRule::kRoundUp;
};
/// Tokens behind the last sequence are not read and get y = 0 and rstd = 0.
void rmsnorm(const RmsNormArgs& args, Backend backend = Backend::kCpu);

/// A [rows, cols] operand of a product.
struct Matrix {
  /// kBF16, kF16 or kF32 (rounded to BF16), or kE4M3 + row-major scales of `block_shape`: [rows,
  /// cols], or [tokens, num_heads, head_dim] read as [tokens, num_heads * head_dim]. Any strides.
  Tensor tensor = {};
  BlockShape block_shape = BlockShape::k32x32;
  TensorView cu_seqlens = {};  ///< of its rows; those behind the last sequence count as 0
  bool transposed = false;     ///< multiply by the transposed matrix
};

/// c[m, n] = a[m, k] b[k, n], each operand after its transposition. c: kF32 or kBF16, any strides.
/// A sum over more than 8192 values takes up to 64 partial results of c in FP32, 256 MB at most.
void gemm(const Matrix& a, const Matrix& b, const TensorView& c, Backend backend = Backend::kCpu);

/// y = x w^T: the projection of x [tokens, k] by w [num_heads * head_dim, k], after its
/// transposition, with each group of 32 tokens quantized from its FP32 sums while they are hot.
struct ProjectionArgs {
  Matrix x = {};  ///< not transposed
  Matrix w = {};
  Tensor y = {};  ///< out: kBF16, or kE4M3 + row-major scales [tokens, num_heads, head_dim]
  BlockShape block_shape = BlockShape::k32x32;  ///< of y
  ScaleRule rule = ScaleRule::kRoundUp;
  TensorView cu_seqlens = {};  ///< of y's tokens; those behind the last sequence get 0
};
void project(const ProjectionArgs& args, Backend backend = Backend::kCpu);

/// a b, a term of a sum.
struct Product {
  Matrix a = {}, b = {};
};
/// Gradients of rmsnorm() behind projections: dy is the sum of `products`, in FP32 and never
/// stored. With g = dy * weight and xhat = x * rstd: dx = rstd * (g - xhat * mean(g * xhat)),
/// dweight = sum over tokens of dy * xhat.
struct RmsNormBackwardArgs {
  std::span<const Product> products = {};  ///< each [tokens, dim]
  TensorView x = {}, weight = {};          ///< as rmsnorm()'s
  TensorView rstd = {};                    ///< rmsnorm()'s
  TensorView cu_seqlens = {};
  /// Outputs; those not given are not computed. kF32 or kBF16, any strides. Tokens behind the last
  /// sequence are not read and get 0.
  TensorView dy = {};       ///< [tokens, dim], the sum
  TensorView dx = {};       ///< [tokens, dim]
  TensorView dweight = {};  ///< [dim]
};
void rmsnorm_backward(const RmsNormBackwardArgs& args, Backend backend = Backend::kCpu);

}  // namespace mxfa::producers
