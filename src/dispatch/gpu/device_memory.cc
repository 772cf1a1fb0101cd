#include "dispatch/gpu/device_memory.h"

#include "core/check.h"

namespace mxfa::dispatch {

void expect_on_device(const driver::Device& device, const void* address, std::string_view name) {
  if (address == nullptr) return;
  int ordinal = -1;
  const CUresult result = device.calls().cuPointerGetAttribute(
      &ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, reinterpret_cast<CUdeviceptr>(address));
  if (result == CUDA_SUCCESS && ordinal == device.ordinal()) return;
  core::expect(false, name, core::later("memory of device {}", device.ordinal()),
               result == CUDA_SUCCESS ? fmt::format("memory of device {}", ordinal)
                                      : "an address that is no device's");
}

}  // namespace mxfa::dispatch
