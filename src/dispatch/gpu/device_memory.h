#pragma once

#include <string_view>

#include "driver/device.h"

namespace mxfa::dispatch {

/// Throws Error(kInvalidArgument) that names `name` where a kernel of the device could not use the
/// address: host memory, another device's. Null passes: checks of shapes tell of it. The device is
/// current.
void expect_on_device(const driver::Device& device, const void* address, std::string_view name);
/// Whether it could.
bool is_on_device(const driver::Device& device, const void* address);

}  // namespace mxfa::dispatch
