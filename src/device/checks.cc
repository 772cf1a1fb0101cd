#include "device/checks.h"

#include <algorithm>

namespace mxfa::device::internal {

unsigned grid_for(const Queue& queue, std::int64_t works, int works_a_block, int resident) {
  const std::int64_t blocks = mx::ceil_div(works, works_a_block);
  const std::int64_t most = std::int64_t{queue.device.multiprocessors()} * resident;
  return static_cast<unsigned>(std::clamp<std::int64_t>(blocks, 1, most));
}

}  // namespace mxfa::device::internal
