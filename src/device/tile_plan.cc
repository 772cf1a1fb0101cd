#include "device/tile_plan.h"

#include "core/check.h"
#include "device/ops.h"

namespace mxfa::device {

void tile_plan(const Queue& queue, const TilePlanParams& params) {
  const attention::TileShape& shape = params.shape;
  if (!(params.batch >= 0)) core::expect(false, "batch", "at least 0", core::text(params.batch));
  if (!(shape.num_heads_kv > 0 && shape.num_heads % shape.num_heads_kv == 0))
    core::expect(false, "num_heads",
                 fmt::format("a multiple of num_heads_kv = {}", shape.num_heads_kv),
                 core::text(shape.num_heads));
  if (!(shape.tile_m > 0 && shape.tile_n > 0))
    core::expect(false, "tile_m, tile_n", "at least 1",
                 fmt::format("{}, {}", shape.tile_m, shape.tile_n));
  if (!(shape.pairs_per_section > 0))
    core::expect(false, "pairs_per_section", "at least 1", core::text(shape.pairs_per_section));
  driver::LaunchShape launch;
  launch.block[0] = kTilePlanThreads;
  queue.kernels.get("tile_plan", "tile_plan").launch(queue.stream, launch, params);
}

}  // namespace mxfa::device
