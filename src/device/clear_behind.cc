#include "device/clear_behind.h"

#include "device/checks.h"

namespace mxfa::device {

void clear_behind(const Queue& queue, const ClearBehindParams& params) {
  internal::expect_heads(params.num_heads);
  if (params.rows <= 0) return;
  driver::LaunchShape shape;
  shape.grid[0] = 16;  // there are few such rows, mostly none
  shape.block[0] = 128;
  queue.kernels.get("clear_behind", "clear_behind").launch(queue.stream, shape, params);
}

}  // namespace mxfa::device
