#include "dispatch/packed.h"

#include <algorithm>

#include "core/check.h"
#include "dispatch/members.h"
#include "dispatch/validate.h"

namespace mxfa::dispatch {
namespace {

/// Elements below which another thread costs more than it saves.
constexpr std::int64_t kElementsPerChunk = 1 << 16;

bool spans_columns(BlockShape shape) {
  return shape == BlockShape::k32xD || shape == BlockShape::k1xD;
}

void check_members(const QuantizeOptions& options) {
  check_member(options.format, "format");
  check_member(options.block_shape, "block_shape");
  check_member(options.rule, "rule");
  check_member(options.layout, "layout");
  check_member(options.scale_axis, "scale_axis");
}

void zero_fill(const TensorView& scales, const mx::CompactScales<std::uint8_t>& compact,
               const Plan& plan, std::int64_t first_row) {
  const std::int64_t cols = mx::scale_cols(compact.shape, plan.dim);
  for (std::int64_t row = first_row; row < scales.shape[0]; ++row) {
    for (std::int64_t head = 0; head < plan.heads; ++head) {
      std::uint8_t* out = compact.data + row * compact.row_stride + head * compact.head_stride;
      for (std::int64_t col = 0; col < cols; ++col) out[col * compact.col_stride] = 0;
    }
  }
}

}  // namespace

Packed as_packed(const TensorView& tensor) {
  const int last = tensor.rank - 1;
  Packed packed{.data = tensor.data,
                .tokens = tensor.shape[0],
                .dim = tensor.shape[last],
                .token_stride = tensor.strides[0],
                .dim_stride = tensor.strides[last]};
  if (tensor.rank == 3) {
    packed.heads = tensor.shape[1];
    packed.head_stride = tensor.strides[1];
  }
  return packed;
}

Plan make_plan(std::span<const std::int64_t> shape, const QuantizeOptions& options) {
  const bool rank_ok = shape.size() == 2 || shape.size() == 3;
  const std::string text = fmt::format("[{}]", fmt::join(shape.begin(), shape.end(), ", "));
  core::expect(rank_ok, "shape", "[tokens, num_heads, head_dim] or [rows, cols]", text);
  core::expect(std::ranges::none_of(shape, [](auto extent) { return extent < 0; }), "shape",
               "extents of at least 0", text);
  core::expect(has_countable_elements(shape), "shape", kCountableElements, text);
  core::expect(shape.back() > 0, "shape", "at least one column (head_dim)", text);
  check_members(options);
  core::expect(options.format == DType::kE4M3 || options.format == DType::kE5M2, "format",
               "e4m3 or e5m2", dtype_name(options.format));
  if (options.layout == ScaleLayout::kTiled128x4) {
    mx::check_scale_axis(options.block_shape, options.scale_axis);
  }
  Plan plan{.spec = {options.block_shape, options.rule, options.format},
            .scale_axis = options.scale_axis,
            .offsets = {},
            .tokens = shape.front(),
            .heads = shape.size() == 3 ? shape[1] : 1,
            .dim = shape.back(),
            .has_heads = shape.size() == 3};
  if (options.cu_seqlens) {
    const SeqlenLimits limits{.total = plan.tokens, .max_seqlen = options.max_seqlen};
    plan.offsets = mx::make_jagged_offsets(
        read_cu_seqlens(*options.cu_seqlens, "cu_seqlens", limits), plan.tokens);
  } else {
    core::expect(options.max_seqlen < 0 || plan.tokens <= options.max_seqlen, "shape",
                 core::later("at most {} tokens (max_seqlen)", options.max_seqlen), text);
    plan.offsets = mx::make_single_sequence(plan.tokens);
  }
  return plan;
}

std::vector<std::int64_t> plan_scale_shape(const Plan& plan, BlockShape block_shape,
                                           ScaleLayout layout) {
  if (layout == ScaleLayout::kTiled128x4) {
    std::vector<std::int64_t> shape{plan.offsets.tiles.back(),
                                    mx::ceil_div(plan.dim, mx::kAtomRows), mx::kAtomBytes};
    if (plan.has_heads) shape.insert(shape.begin(), plan.heads);
    return shape;
  }
  // Scales of single tokens exist for tokens behind the last sequence too.
  const bool per_token = mx::block_rows(block_shape) == 1;
  std::vector<std::int64_t> shape{per_token ? plan.tokens : plan.offsets.groups.back()};
  if (plan.has_heads) shape.push_back(plan.heads);
  if (!spans_columns(block_shape)) shape.push_back(mx::scale_cols(block_shape, plan.dim));
  return shape;
}

mx::CompactScales<std::uint8_t> as_compact(const TensorView& scales, const Plan& plan,
                                           BlockShape block_shape) {
  mx::CompactScales<std::uint8_t> compact{static_cast<std::uint8_t*>(scales.data), block_shape,
                                          scales.strides[0], 0, 0};
  if (plan.has_heads) compact.head_stride = scales.strides[1];
  if (!spans_columns(block_shape)) compact.col_stride = scales.strides[scales.rank - 1];
  return compact;
}

mx::TiledScales<std::uint8_t> as_tiled(const TensorView& scales, const Plan& plan) {
  return {static_cast<std::uint8_t*>(scales.data), plan.scale_axis, plan.dim,
          plan.has_heads ? scales.strides[0] : 0};
}

void check_scales(const TensorView& scales, std::string_view name, const Plan& plan,
                  BlockShape block_shape, ScaleLayout layout) {
  check_tensor(scales, name);
  check_dtype(scales, name, {DType::kE8M0, DType::kU8});
  const bool tiled = layout == ScaleLayout::kTiled128x4;
  const int slack = tiled && plan.has_heads ? 1 : 0;
  check_shape_at_least(scales, name, plan_scale_shape(plan, block_shape, layout), slack);
  if (!tiled) return;
  TensorView atoms = scales;
  if (plan.has_heads) atoms.shape[0] = 1;
  core::expect(
      atoms.is_contiguous(), name, "atoms without gaps",
      core::later("{} with strides [{}]", describe(scales),
                  fmt::join(scales.strides.begin(), scales.strides.begin() + scales.rank, ", ")));
}

void clear_slack(const TensorView& scales, const Plan& plan, BlockShape block_shape,
                 ScaleLayout layout) {
  if (layout == ScaleLayout::kRowMajor) {
    zero_fill(scales, as_compact(scales, plan, block_shape), plan,
              plan.offsets.scale_rows_total(block_shape));
    return;
  }
  const mx::TiledScales<std::uint8_t> tiled = as_tiled(scales, plan);
  const std::int64_t capacity = scales.shape[plan.has_heads ? 1 : 0] * mx::tile_bytes(plan.dim);
  for (std::int64_t head = 0; head < plan.heads; ++head) {
    std::uint8_t* base = tiled.data + tiled.offset(head, 0);
    std::fill(base + plan.head_scale_bytes(), base + capacity, std::uint8_t{0});
  }
}

GroupChunks::GroupChunks(const Plan& plan)
    : plan_(&plan),
      total_(plan.offsets.groups.back() * plan.heads),
      chunk_(std::max<std::int64_t>(
          1, kElementsPerChunk / (kScaleBlock * std::max<std::int64_t>(1, plan.dim)))) {}

Group GroupChunks::locate(std::int64_t index, std::int64_t hint) const {
  const mx::JaggedOffsets& offsets = plan_->offsets;
  const std::int64_t group = index / plan_->heads;
  const auto begin = offsets.groups.begin() + hint;
  // Chunks start anywhere, then walk on: the first look costs a search, the others one compare.
  const bool same = begin[1] > group;
  const std::int64_t sequence =
      same ? hint
           : std::upper_bound(begin, offsets.groups.end(), group) - offsets.groups.begin() - 1;
  const std::int64_t row = (group - offsets.groups[sequence]) * kScaleBlock;
  return {.sequence = sequence,
          .row = row,
          .token = offsets.tokens[sequence] + row,
          .head = index % plan_->heads,
          .rows = static_cast<int>(
              std::min<std::int64_t>(kScaleBlock, offsets.seqlen(sequence) - row))};
}

}  // namespace mxfa::dispatch
