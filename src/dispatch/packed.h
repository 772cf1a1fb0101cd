#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "mx/jagged_scale.h"
#include "mx/quantize.h"
#include "mxfa/quantize.h"

/// What the quantization calls share: packed tensors of either rank, the work plan, and its cut
/// into groups of 32 tokens.
namespace mxfa::dispatch {

/// [tokens, heads, dim] with any strides; a [rows, cols] tensor has one head.
struct Packed {
  void* data = nullptr;
  std::int64_t tokens = 0;
  std::int64_t heads = 1;
  std::int64_t dim = 0;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t dim_stride = 0;

  std::int64_t offset(std::int64_t token, std::int64_t head) const {
    return token * token_stride + head * head_stride;
  }
};

/// `tensor` after its shape has been checked: rank 2 or 3.
Packed as_packed(const TensorView& tensor);

/// Checked options over a packed shape.
struct Plan {
  mx::QuantizeSpec spec;
  ScaleAxis scale_axis = ScaleAxis::kHeadDim;
  mx::JaggedOffsets offsets;
  std::int64_t tokens = 0;  ///< of the tensor; offsets may end before
  std::int64_t heads = 1;
  std::int64_t dim = 0;
  bool has_heads = false;  ///< rank 3

  std::int64_t head_scale_bytes() const { return offsets.tiles.back() * mx::tile_bytes(dim); }
};

/// Throws Error for a shape that is not [tokens, num_heads, head_dim] or [rows, cols], a format
/// that is not FP8, bad cu_seqlens, or (tiled layouts) an axis that the block shape cannot take.
Plan make_plan(std::span<const std::int64_t> shape, const QuantizeOptions& options);
/// Shape of the plan's scales of block shape `block_shape` in `layout` (mxfa::scale_shape).
std::vector<std::int64_t> plan_scale_shape(const Plan& plan, BlockShape block_shape,
                                           ScaleLayout layout);

/// Row-major scales of a checked tensor.
mx::CompactScales<std::uint8_t> as_compact(const TensorView& scales, const Plan& plan,
                                           BlockShape block_shape);
/// Tiled scales of a checked tensor.
mx::TiledScales<std::uint8_t> as_tiled(const TensorView& scales, const Plan& plan);

/// Checks dtype, shape and, for the tiled layout, that atoms lie without gaps.
void check_scales(const TensorView& scales, std::string_view name, const Plan& plan,
                  BlockShape block_shape, ScaleLayout layout);

/// Writes 0x00 where `scales` has room behind the last sequence.
void clear_slack(const TensorView& scales, const Plan& plan, BlockShape block_shape,
                 ScaleLayout layout);

/// Up to 32 tokens of one head that share scales.
struct Group {
  std::int64_t sequence = 0;
  std::int64_t row = 0;    ///< first row within the sequence
  std::int64_t token = 0;  ///< first token of the tensor
  std::int64_t head = 0;
  int rows = 0;
};

/// All groups of a plan, cut into chunks that are worth a thread. Heads vary fastest.
class GroupChunks {
 public:
  explicit GroupChunks(const Plan& plan);
  std::int64_t count() const { return mx::ceil_div(total_, chunk_); }

  template <class Body>
  void for_each(std::int64_t chunk, Body body) const {
    const std::int64_t end = total_ < (chunk + 1) * chunk_ ? total_ : (chunk + 1) * chunk_;
    std::int64_t sequence = 0;
    for (std::int64_t i = chunk * chunk_; i < end; ++i) {
      const Group group = locate(i, sequence);
      sequence = group.sequence;
      body(group);
    }
  }

 private:
  /// `hint`: a sequence at or before the group's.
  Group locate(std::int64_t index, std::int64_t hint) const;

  const Plan* plan_;
  std::int64_t total_;
  std::int64_t chunk_;
};

}  // namespace mxfa::dispatch
