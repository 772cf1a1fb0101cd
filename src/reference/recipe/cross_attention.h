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

/// Which operands are MXFP8; the others are BF16. Under Machine::kBf16 all are.
///
/// | products | operands |
/// |---|---|
/// | K and V projections, their gradients | kv_norm, Wk, Wv, dk, dv in squares of 32 x 32 |
/// | attention | q, k, v, dout in the recipe's block shapes |
/// | Q projection, its gradients | seed_norm, Wq, dq: `query_mxfp8` |
/// | output projection, its gradients | o, Wo, dy: `output_mxfp8` |
struct CrossAttentionConfig {
  RecipeConfig attention;
  bool query_mxfp8 = false;
  bool output_mxfp8 = false;
};

struct CrossAttentionStep {
  CrossAttentionResult tensors;  ///< dequantized; y and gradients of inputs and weights in FP32
  PackedMx kv_norm, q, k, v, dout, dk, dv;  ///< empty under Machine::kBf16
};

/// Inputs are rounded to BF16 first; without dy the forward alone. Throws as
/// reference::cross_attention() and RecipeConfig::check() do.
CrossAttentionStep cross_attention_step(const CrossAttentionInputs& inputs,
                                        const CrossAttentionConfig& config);

}  // namespace mxfa::reference::recipe
