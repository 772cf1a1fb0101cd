#include "dispatch/gpu/device_memory.h"

#include <optional>

#include "core/check.h"

namespace mxfa::dispatch {

namespace {

/// The device whose memory it is; none: no device's.
std::optional<int> device_of(const driver::Device& device, const void* address) {
  int ordinal = -1;
  const CUresult result = device.calls().cuPointerGetAttribute(
      &ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, reinterpret_cast<CUdeviceptr>(address));
  return result == CUDA_SUCCESS ? std::optional(ordinal) : std::nullopt;
}

}  // namespace

bool is_on_device(const driver::Device& device, const void* address) {
  return address == nullptr || device_of(device, address) == device.ordinal();
}

void expect_on_device(const driver::Device& device, const void* address, std::string_view name) {
  if (is_on_device(device, address)) return;
  const std::optional<int> other = device_of(device, address);
  core::expect(
      false, name, core::later("memory of device {}", device.ordinal()),
      other ? fmt::format("memory of device {}", *other) : "an address that is no device's");
}

}  // namespace mxfa::dispatch
