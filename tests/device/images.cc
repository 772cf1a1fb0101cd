#include "support/machine.h"

namespace mxfa::testing {

std::vector<driver::KernelImage> images() {
  const auto all = device::kernel_images();
  return {all.begin(), all.end()};
}

}  // namespace mxfa::testing
