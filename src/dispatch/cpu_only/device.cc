#include "mxfa/device.h"

#include "dispatch/device_calls.h"
#include "mxfa/error.h"

namespace mxfa {
namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorKind::kDevice, "device: this build has no device code (" MXFA_WITHOUT_CUDA ")");
}

}  // namespace

namespace internal {
struct DeviceState {};
}  // namespace internal

Device::Device(const DeviceOptions&) { refuse(); }
Device::~Device() = default;
std::string Device::name() const { refuse(); }
const std::string& Device::arch() const { refuse(); }
void Device::synchronize() const { refuse(); }

struct DeviceMemory::Buffer {};
DeviceMemory::DeviceMemory(const Device&, std::size_t) { refuse(); }
DeviceMemory::~DeviceMemory() = default;
DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept = default;
std::byte* DeviceMemory::data() const { refuse(); }
std::size_t DeviceMemory::size_bytes() const { refuse(); }
void DeviceMemory::upload(const void*, std::size_t) const { refuse(); }
void DeviceMemory::download(void*, std::size_t) const { refuse(); }

namespace dispatch {

std::int64_t device_forward_workspace_bytes(const attention::ForwardArgs&,
                                            const attention::Options&) {
  refuse();
}
void device_forward(const attention::ForwardArgs&, const attention::Options&, std::span<std::byte>,
                    const Phases&) {
  refuse();
}
std::int64_t device_backward_workspace_bytes(const attention::BackwardArgs&,
                                             const attention::Options&) {
  refuse();
}
void device_backward(const attention::BackwardArgs&, const attention::Options&,
                     std::span<std::byte>, const Phases&) {
  refuse();
}

}  // namespace dispatch

attention::Recipe attention::native_recipe(const Device&) { refuse(); }

}  // namespace mxfa
