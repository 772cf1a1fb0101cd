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

JaggedWork plan_jagged(const Queue& queue, const attention::TileShape& shape,
                       const JaggedSides& sides) {
  const JaggedOffsetsView &q = sides.q, &k = sides.k;
  core::expect(
      sides.broadcast_q ? q.seqlen >= 0 : q.cu_seqlens != nullptr, "q.offsets",
      sides.broadcast_q ? "one dense sequence where q is broadcast" : "cu_seqlens, as k has",
      sides.broadcast_q ? "cu_seqlens" : "dense sequences");
  core::expect(k.cu_seqlens != nullptr, "k.offsets", "cu_seqlens, as q has", "dense sequences");
  core::expect(sides.workspace != nullptr, "workspace",
               fmt::format("{} bytes", sides.workspace_bytes), "none");
  auto* const memory = static_cast<std::int32_t*>(sides.workspace);
  const JaggedWork work{.seqlens = {.cu_seqlens_q = sides.broadcast_q ? nullptr : q.cu_seqlens,
                                    .cu_seqlens_k = k.cu_seqlens,
                                    .broadcast_seqlen_q = sides.broadcast_q ? q.seqlen : 0},
                        .counter = memory,
                        .plan = attention::plan_in(memory + 2, k.batch)};
  tile_plan(queue, {.shape = shape,
                    .seqlens = work.seqlens,
                    .batch = k.batch,
                    .plan = memory + 2,
                    .counter = memory});
  return work;
}

}  // namespace mxfa::device
