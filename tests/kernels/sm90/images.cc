#include "kernels/sm90/forward/launch.h"
#include "support/machine.h"

namespace mxfa::testing {

std::vector<driver::KernelImage> images() {
  const auto shared = device::kernel_images();
  const auto own = sm90::kernel_images();
  std::vector<driver::KernelImage> all(shared.begin(), shared.end());
  all.insert(all.end(), own.begin(), own.end());
  return all;
}

}  // namespace mxfa::testing
