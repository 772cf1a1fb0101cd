#pragma once

#include <cstdint>
#include <span>

#include "mxfa/tensor.h"
#include "mxfa/types.h"

/// Dense products on the CPU: operands in MXFP8, BF16 or FP32, sums in FP32 in an order that does
/// not depend on the number of threads. E4M3 payload times a power of two is exact in BF16, which
/// is what the matrix units multiply; values below 2^-126 of the largest scale count as 0.
namespace mxfa::cpu {

/// A [rows, cols] matrix: rows are tokens (or a weight's output features).
struct MatrixOperand {
  /// kE4M3, kBF16, or kF16 and kF32 (rounded to BF16 when read) [rows, cols]; or [tokens, heads,
  /// head_dim], read as [tokens, heads * head_dim].
  TensorView values;
  /// kE4M3 only: row-major kE8M0 scales of `block_shape`, as mxfa::quantize() writes them.
  TensorView scales = {};
  BlockShape block_shape = BlockShape::k32x32;
  /// Where groups of 32 tokens start; empty: one sequence of all rows.
  std::span<const std::int32_t> cu_seqlens = {};
  /// Multiply by the transposed matrix.
  bool transposed = false;
};

/// c[m, n] = alpha * op(a)[m, k] op(b)[k, n], plus c where `accumulate` (kF32 only). c: kF32 or
/// kBF16 [m, n], any strides. Rows of `a` or `b` behind their cu_seqlens count as 0. Throws Error
/// where shapes or dtypes do not fit.
void gemm(const MatrixOperand& a, const MatrixOperand& b, const TensorView& c, float alpha = 1.0f,
          bool accumulate = false);

/// What gemm_quantize() writes of y [tokens, num_heads, head_dim]; a view of rank 0 is not wanted.
struct GemmQuantizeOutputs {
  TensorView payload = {};       ///< kE4M3 [tokens, num_heads, head_dim]
  TensorView scales = {};        ///< kE8M0, scale_shape() row-major
  TensorView tiled_dim = {};     ///< kE8M0, scale_shape() kTiled128x4 along head_dim
  TensorView tiled_tokens = {};  ///< kE8M0, scale_shape() kTiled128x4 along tokens
  TensorView bf16 = {};          ///< kBF16 [tokens, num_heads, head_dim]
};
struct GemmQuantizeSpec {
  std::int64_t num_heads = 1;
  BlockShape block_shape = BlockShape::k32x32;
  ScaleRule rule = ScaleRule::kRoundUp;
  /// Sequences of y's tokens, from whose first rows groups of 32 are counted.
  std::span<const std::int32_t> cu_seqlens = {};
};

/// y = x w^T, x [tokens, k], w [num_heads * head_dim, k] after its own transposition: one pass,
/// each group of 32 tokens is quantized from its FP32 sums while they are hot. Tokens behind the
/// last sequence get payload 0, and scale 0 where they have one.
void gemm_quantize(const MatrixOperand& x, const MatrixOperand& w, const GemmQuantizeSpec& spec,
                   const GemmQuantizeOutputs& outputs);

}  // namespace mxfa::cpu
