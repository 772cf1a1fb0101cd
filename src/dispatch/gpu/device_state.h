#pragma once

#include <string>
#include <vector>

#include "device/ops.h"
#include "dispatch/gpu/known_calls.h"
#include "driver/device.h"
#include "driver/kernel.h"
#include "mxfa/device.h"

namespace mxfa::internal {

/// What a public Device owns.
struct DeviceState {
  explicit DeviceState(const DeviceOptions& options);

  device::Queue queue(void* stream) { return {device, kernels, static_cast<CUstream>(stream)}; }

  driver::Device device;
  std::string arch;
  std::vector<driver::KernelImage> images;
  driver::KernelCache kernels;
  dispatch::KnownCalls<attention::ForwardArgs> forwards;
  dispatch::KnownCalls<attention::BackwardArgs> backwards;
};

}  // namespace mxfa::internal
