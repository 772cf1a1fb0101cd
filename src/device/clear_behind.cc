#include "device/clear_behind.h"

#include "core/check.h"
#include "device/ops.h"

namespace mxfa::device {

void clear_behind(const Queue& queue, const ClearBehindParams& params) {
  core::expect(params.count >= 0 && params.count <= kMaxBehind, "count",
               core::later("0 to {}", kMaxBehind), params.count);
  if (params.count == 0) return;
  driver::LaunchShape shape;
  shape.grid[0] = 16;  // there are few such rows, mostly none
  shape.block[0] = kClearBehindThreads;
  queue.kernels.get("clear_behind", "clear_behind").launch(queue.stream, shape, params);
}

}  // namespace mxfa::device
