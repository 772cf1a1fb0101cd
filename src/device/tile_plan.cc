#include "device/tile_plan.h"

#include "core/check.h"
#include "device/ops.h"

namespace mxfa::device {

void tile_plan(const Queue& queue, const TilePlanParams& params) {
  const attention::TileShape& shape = params.shape;
  core::expect(params.batch >= 0, "batch", "at least 0", params.batch);
  core::expect(shape.num_heads_kv > 0 && shape.num_heads % shape.num_heads_kv == 0, "num_heads",
               core::later("a multiple of num_heads_kv = {}", shape.num_heads_kv), shape.num_heads);
  core::expect(shape.tile_m > 0 && shape.tile_n > 0, "tile_m, tile_n", "at least 1",
               core::later("{}, {}", shape.tile_m, shape.tile_n));
  core::expect(shape.pairs_per_section > 0, "pairs_per_section", "at least 1",
               shape.pairs_per_section);
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
               core::later("{} bytes", sides.workspace_bytes), "none");
  auto* const memory = static_cast<std::int32_t*>(sides.workspace);
  const JaggedWork work{.seqlens = {.cu_seqlens_q = sides.broadcast_q ? nullptr : q.cu_seqlens,
                                    .cu_seqlens_k = k.cu_seqlens,
                                    .broadcast_seqlen_q = sides.broadcast_q ? q.seqlen : 0},
                        .counter = memory,
                        .plan = attention::plan_in(memory + 2, k.batch)};
  if (sides.phase == Phase::kAttend) return work;
  tile_plan(queue, {.shape = shape,
                    .seqlens = work.seqlens,
                    .batch = k.batch,
                    .plan = memory + 2,
                    .counter = memory});
  return work;
}

}  // namespace mxfa::device
