#include "mx/jagged_scale.h"
#include "device/checks.h"

namespace mxfa::device {
namespace {

constexpr int kThreads = 128;

void check_tiled(const TileScalesParams& params) {
  internal::expect_heads(params.num_heads);
  core::expect(params.head_dim > 0, "head_dim", "at least 1", params.head_dim);
  internal::expect_aligned(params.tiled, "tiled", 16);
  internal::expect_multiple(params.head_bytes, "head_bytes", 16);
}

void move_scales(const Queue& queue, const TileScalesParams& params, std::int64_t max_tiles,
                 std::string_view entry) {
  check_tiled(params);
  mx::check_scale_axis(params.block_shape, params.axis);
  const std::int64_t works = max_tiles * params.num_heads;
  if (works <= 0) return;
  driver::LaunchShape shape;
  shape.grid[0] = internal::grid_for(queue, works, kThreads / 32, 3);
  shape.block[0] = kThreads;
  queue.kernels.get("jagged_scale", entry).launch(queue.stream, shape, params);
}

}  // namespace

void jagged_offsets(const Queue& queue, const std::int32_t* tokens, std::int32_t batch,
                    std::int64_t* groups, std::int64_t* tiles) {
  core::expect(batch >= 0, "batch", "at least 0", batch);
  driver::LaunchShape shape;
  shape.block[0] = 1024;
  queue.kernels.get("jagged_scale", "jagged_offsets")
      .launch(queue.stream, shape, tokens, batch, groups, tiles);
}

void narrow_offsets(const Queue& queue, const std::int64_t* wide, std::int32_t* narrow,
                    std::int32_t batch) {
  core::expect(batch >= 0, "batch", "at least 0", batch);
  driver::LaunchShape shape;
  shape.grid[0] = static_cast<unsigned>(batch / kThreads + 1);
  shape.block[0] = kThreads;
  queue.kernels.get("jagged_scale", "narrow_offsets")
      .launch(queue.stream, shape, wide, narrow, batch);
}

void tile_scales(const Queue& queue, const TileScalesParams& params, std::int64_t max_tiles) {
  move_scales(queue, params, max_tiles, "tile_scales");
}

void untile_scales(const Queue& queue, const TileScalesParams& params, std::int64_t max_tiles) {
  move_scales(queue, params, max_tiles, "untile_scales");
}

void clear_tiles_behind(const Queue& queue, const TileScalesParams& params, std::int64_t tiles) {
  check_tiled(params);
  if (tiles <= 0) return;
  driver::LaunchShape shape;
  shape.grid[0] = 16;  // there are few such tiles, mostly none
  shape.block[0] = kThreads;
  queue.kernels.get("jagged_scale", "clear_tiles_behind")
      .launch(queue.stream, shape, params, tiles);
}

}  // namespace mxfa::device
