#pragma once

#include <span>
#include <string_view>

#include "mxfa/attention.h"

/// Tiled copies of the scales of a call's outputs.
namespace mxfa::dispatch {

/// The copy along `axis`.
const TensorView& tiled_copy(const attention::TiledScales& tiled, ScaleAxis axis);

/// Checks the copies that are given: `tensor` is payload in blocks of `shape`, of packed extents
/// [tokens, heads, head_dim], and its sequences lie in `tiles` tiles of 128 tokens.
struct TiledOutput {
  std::string_view name;  ///< of the tensor
  const Tensor& tensor;
  BlockShape block_shape;
  std::span<const std::int64_t, 3> extents;
  std::int64_t tiles;
};
void check_tiled_copies(const attention::TiledScales& tiled, const TiledOutput& output);

}  // namespace mxfa::dispatch
