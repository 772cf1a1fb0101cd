#include "dispatch/tiled_scales.h"

#include <string>

#include "core/check.h"
#include "dispatch/packed.h"
#include "dispatch/validate.h"

namespace mxfa::dispatch {

const TensorView& tiled_copy(const attention::TiledScales& tiled, ScaleAxis axis) {
  return axis == ScaleAxis::kHeadDim ? tiled.head_dim : tiled.tokens;
}

void check_tiled_copies(const attention::TiledScales& tiled, const TiledOutput& output) {
  for (const ScaleAxis axis : {ScaleAxis::kHeadDim, ScaleAxis::kTokens}) {
    const TensorView& scales = tiled_copy(tiled, axis);
    if (scales.rank == 0) continue;
    const std::string_view field = axis == ScaleAxis::kHeadDim ? "head_dim" : "tokens";
    const std::string name = fmt::format("{}_tiled.{}", output.name, field);
    core::expect(output.tensor.given() && output.tensor.values.dtype == DType::kE4M3, name,
                 core::later("none without {} in e4m3", output.name), scales);
    core::expect(mx::tiles_along(output.block_shape, axis), name,
                 core::later("none of {} scales", block_shape_name(output.block_shape)), scales);
    Plan plan = make_plan(output.extents, {.block_shape = output.block_shape});
    plan.offsets.tiles.back() = output.tiles;
    check_output(scales, name);
    check_scales(scales, name, plan, output.block_shape, ScaleLayout::kTiled128x4);
  }
}

}  // namespace mxfa::dispatch
