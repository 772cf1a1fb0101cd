#include "kernels/sm100/forward/launch.h"
#include "support/machine.h"

namespace mxfa::testing {

std::span<const driver::KernelImage> kernel_images();  // the probes

std::vector<driver::KernelImage> images() {
  std::vector<driver::KernelImage> all;
  for (const auto& part : {device::kernel_images(), sm100::kernel_images(), kernel_images()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

}  // namespace mxfa::testing
