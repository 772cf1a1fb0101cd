#pragma once

#include <cstdint>
#include <vector>

#include "mx/jagged_scale.h"
#include "mx/quantize.h"
#include "reference/cross_attention.h"
#include "reference/recipe/recipe.h"

/// The cross-attention module with the arithmetic of a recipe: every tensor that is stored is
/// rounded as a machine stores it, products are exact sums of the rounded operands, rounded once to
/// FP32. A backend's module is compared with this.
namespace mxfa::reference::recipe {

/// A packed tensor in MXFP8, one matrix for each (sequence, head).
struct PackedMx {
  mx::JaggedOffsets offsets;
  std::int64_t heads = 1;
  std::vector<mx::QuantizedMatrix> parts;  ///< [sequence * heads + head]

  const mx::QuantizedMatrix& part(std::int64_t sequence, std::int64_t head) const {
    return parts[static_cast<std::size_t>(sequence * heads + head)];
  }
  /// Row-major as mxfa::quantize() writes them: [tokens, heads, dim] and scale_shape().
  std::vector<std::uint8_t> payload() const;
  std::vector<std::uint8_t> scales() const;
  Matrix<double> values() const;  ///< [tokens, heads * dim]
};

/// Operands of the projections and of their gradients are MXFP8 in squares of 32 x 32, those of
/// attention in the recipe's block shapes; under Machine::kBf16 all are BF16. o is BF16 for delta
/// and MXFP8 for the products with it.
struct CrossAttentionConfig {
  RecipeConfig attention;
  /// The products with few rows, of the seed queries and of the output, take BF16: seed_norm, Wq
  /// and dq; o, Wo and dy.
  bool queries_bf16 = false;
};

struct CrossAttentionStep {
  CrossAttentionResult tensors;  ///< dequantized; y and gradients of inputs and weights in FP32
  PackedMx seed_norm, kv_norm, q, k, v, dout, dk, dv;  ///< empty where BF16
};

/// Inputs are FP32 values; without dy the forward alone. Throws as
/// reference::cross_attention() and RecipeConfig::check() do.
CrossAttentionStep cross_attention_step(const CrossAttentionInputs& inputs,
                                        const CrossAttentionConfig& config);

}  // namespace mxfa::reference::recipe
