#include "mxfa/quantize.h"

#include <algorithm>

#include "core/check.h"
#include "core/parallel.h"
#include "dispatch/overlap.h"
#include "dispatch/packed.h"
#include "dispatch/quantize_groups.h"
#include "dispatch/validate.h"

namespace mxfa {
namespace {

using dispatch::as_compact;
using dispatch::as_tiled;
using dispatch::Plan;

/// A row-major scale tensor that owns its bytes: what tiled layouts pass through.
struct ScaleBuffer {
  ScaleBuffer(const Plan& plan, BlockShape block_shape) {
    const auto shape = dispatch::plan_scale_shape(plan, block_shape, ScaleLayout::kRowMajor);
    view = make_tensor(nullptr, DType::kE8M0, shape);
    bytes.resize(static_cast<std::size_t>(view.num_elements()));
    view.data = bytes.data();
  }
  std::vector<std::uint8_t> bytes;
  TensorView view;
};

/// Calls body({sequence, head}) for all of them, on threads where there is enough to do.
template <class Body>
void for_each_sequence(const Plan& plan, Body body) {
  constexpr std::int64_t kBytesPerChunk = 1 << 16;
  const std::int64_t count = plan.offsets.batch() * plan.heads;
  const std::int64_t chunks =
      std::min(count, 1 + plan.heads * plan.head_scale_bytes() / kBytesPerChunk);
  core::parallel_for(chunks, [&](std::int64_t chunk) {
    for (std::int64_t i = chunk; i < count; i += chunks) {
      body(mx::SequenceHead{i / plan.heads, i % plan.heads});
    }
  });
}

void tile_all(const Plan& plan, const TensorView& scales, const TensorView& tiled) {
  const mx::CompactScales<std::uint8_t> from = as_compact(scales, plan, plan.spec.block_shape);
  const mx::CompactScales<const std::uint8_t> compact{from.data, from.shape, from.row_stride,
                                                      from.head_stride, from.col_stride};
  for_each_sequence(plan, [&](mx::SequenceHead which) {
    mx::tile_scales(plan.offsets, which, compact, as_tiled(tiled, plan));
  });
  dispatch::clear_slack(tiled, plan, plan.spec.block_shape, ScaleLayout::kTiled128x4);
}

void untile_all(const Plan& plan, const TensorView& tiled, const TensorView& scales) {
  const mx::TiledScales<std::uint8_t> from = as_tiled(tiled, plan);
  const mx::TiledScales<const std::uint8_t> source{from.data, from.axis, from.head_dim,
                                                   from.head_bytes};
  const auto compact = as_compact(scales, plan, plan.spec.block_shape);
  for_each_sequence(plan, [&](mx::SequenceHead which) {
    mx::untile_scales(plan.offsets, which, source, compact);
  });
  dispatch::clear_slack(scales, plan, plan.spec.block_shape, ScaleLayout::kRowMajor);
}

void check_payload(const TensorView& payload, std::string_view name, const Plan& plan,
                   std::span<const std::int64_t> shape) {
  dispatch::check_dtype(payload, name, {plan.spec.format, DType::kU8});
  dispatch::check_shape(payload, name, shape);
}

struct NamedView {
  const TensorView& tensor;
  std::string_view name;
};
/// Outputs share memory neither with inputs, offsets among them, nor with each other.
void check_overlaps(const QuantizeOptions& options, std::initializer_list<NamedView> inputs,
                    std::initializer_list<NamedView> outputs) {
  dispatch::Overlaps tensors;
  if (options.cu_seqlens) tensors.input(*options.cu_seqlens, "cu_seqlens");
  for (const NamedView& input : inputs) tensors.input(input.tensor, input.name);
  for (const NamedView& output : outputs) tensors.output(output.tensor, output.name);
  tensors.check();
}

void check_floats(const TensorView& tensor, std::string_view name) {
  dispatch::check_dtype(tensor, name, {DType::kF32, DType::kF16, DType::kBF16});
}

}  // namespace

std::vector<std::int64_t> scale_shape(std::span<const std::int64_t> shape,
                                      const QuantizeOptions& options) {
  return dispatch::plan_scale_shape(dispatch::make_plan(shape, options), options.block_shape,
                                    options.layout);
}

std::vector<std::int64_t> max_scale_shape(std::span<const std::int64_t> shape, std::int64_t batch,
                                          const QuantizeOptions& options) {
  core::expect(batch >= 0 && batch <= INT32_MAX, "batch", "0 to 2^31 - 1", batch);
  QuantizeOptions lengths_unknown = options;
  lengths_unknown.cu_seqlens.reset();
  lengths_unknown.max_seqlen = -1;
  Plan plan = dispatch::make_plan(shape, lengths_unknown);
  plan.offsets.groups.back() = mx::max_groups(plan.tokens, batch);
  plan.offsets.tiles.back() = mx::max_tiles(plan.tokens, batch);
  return dispatch::plan_scale_shape(plan, options.block_shape, options.layout);
}

void quantize(const TensorView& input, const TensorView& payload, const TensorView& scales,
              const QuantizeOptions& options) {
  dispatch::check_tensor(input, "input");
  check_floats(input, "input");
  const Plan plan = dispatch::make_plan(input.dims(), options);
  dispatch::check_output(payload, "payload");
  check_payload(payload, "payload", plan, input.dims());
  dispatch::check_output(scales, "scales");
  dispatch::check_scales(scales, "scales", plan, options.block_shape, options.layout);
  check_overlaps(options, {{input, "input"}}, {{payload, "payload"}, {scales, "scales"}});
  if (options.layout == ScaleLayout::kTiled128x4) {
    const ScaleBuffer buffer(plan, options.block_shape);
    dispatch::quantize_groups(plan, input, payload,
                              as_compact(buffer.view, plan, options.block_shape));
    tile_all(plan, buffer.view, scales);
  } else {
    dispatch::quantize_groups(plan, input, payload, as_compact(scales, plan, options.block_shape));
    dispatch::clear_slack(scales, plan, options.block_shape, options.layout);
  }
  dispatch::clear_tokens(plan, payload);
}

void dequantize(const TensorView& payload, const TensorView& scales, const TensorView& output,
                const QuantizeOptions& options) {
  dispatch::check_tensor(payload, "payload");
  const Plan plan = dispatch::make_plan(payload.dims(), options);
  check_payload(payload, "payload", plan, payload.dims());
  dispatch::check_scales(scales, "scales", plan, options.block_shape, options.layout);
  dispatch::check_output(output, "output");
  check_floats(output, "output");
  dispatch::check_shape(output, "output", payload.dims());
  check_overlaps(options, {{payload, "payload"}, {scales, "scales"}}, {{output, "output"}});
  if (options.layout == ScaleLayout::kTiled128x4) {
    const ScaleBuffer buffer(plan, options.block_shape);
    untile_all(plan, scales, buffer.view);
    dispatch::dequantize_groups(plan, payload, as_compact(buffer.view, plan, options.block_shape),
                                output);
  } else {
    dispatch::dequantize_groups(plan, payload, as_compact(scales, plan, options.block_shape),
                                output);
  }
  dispatch::clear_tokens(plan, output);
}

void tile_scales(std::span<const std::int64_t> shape, const TensorView& scales,
                 const TensorView& tiled, const QuantizeOptions& options) {
  QuantizeOptions to_tiles = options;
  to_tiles.layout = ScaleLayout::kTiled128x4;
  const Plan plan = dispatch::make_plan(shape, to_tiles);
  dispatch::check_scales(scales, "scales", plan, options.block_shape, ScaleLayout::kRowMajor);
  dispatch::check_output(tiled, "tiled");
  dispatch::check_scales(tiled, "tiled", plan, options.block_shape, ScaleLayout::kTiled128x4);
  check_overlaps(options, {{scales, "scales"}}, {{tiled, "tiled"}});
  tile_all(plan, scales, tiled);
}

void untile_scales(std::span<const std::int64_t> shape, const TensorView& tiled,
                   const TensorView& scales, const QuantizeOptions& options) {
  QuantizeOptions from_tiles = options;
  from_tiles.layout = ScaleLayout::kTiled128x4;
  const Plan plan = dispatch::make_plan(shape, from_tiles);
  dispatch::check_scales(tiled, "tiled", plan, options.block_shape, ScaleLayout::kTiled128x4);
  dispatch::check_output(scales, "scales");
  dispatch::check_scales(scales, "scales", plan, options.block_shape, ScaleLayout::kRowMajor);
  check_overlaps(options, {{tiled, "tiled"}}, {{scales, "scales"}});
  untile_all(plan, tiled, scales);
}

RealignSummary realign(const TensorView& payload, const TensorView& scales,
                       const TensorView& payload_out, const TensorView& scales_out,
                       const QuantizeOptions& options) {
  core::expect(options.layout == ScaleLayout::kRowMajor, "layout", "row-major scales",
               "tiled scales (untile_scales() first)");
  dispatch::check_tensor(payload, "payload");
  const Plan plan = dispatch::make_plan(payload.dims(), options);
  check_payload(payload, "payload", plan, payload.dims());
  dispatch::check_scales(scales, "scales", plan, options.block_shape, options.layout);
  dispatch::check_output(payload_out, "payload_out");
  check_payload(payload_out, "payload_out", plan, payload.dims());
  dispatch::check_output(scales_out, "scales_out");
  dispatch::check_scales(scales_out, "scales_out", plan, BlockShape::k32xD, options.layout);
  check_overlaps(options, {{payload, "payload"}, {scales, "scales"}},
                 {{payload_out, "payload_out"}, {scales_out, "scales_out"}});
  const mx::RealignReport report =
      dispatch::realign_groups(plan, payload, as_compact(scales, plan, options.block_shape),
                               payload_out, as_compact(scales_out, plan, BlockShape::k32xD));
  dispatch::clear_slack(scales_out, plan, BlockShape::k32xD, options.layout);
  dispatch::clear_tokens(plan, payload_out);
  return {.blocks = report.blocks,
          .blocks_shifted = report.blocks_shifted,
          .blocks_far = report.blocks_far,
          .values_flushed = report.values_flushed,
          .groups_poisoned = report.groups_poisoned,
          .max_shift = report.max_shift};
}

}  // namespace mxfa
