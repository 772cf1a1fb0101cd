#include "mxfa/device.h"

#include <algorithm>

#include "dispatch/gpu/architectures.h"
#include "dispatch/gpu/device_state.h"

namespace mxfa {
namespace {

std::shared_ptr<const driver::Driver> open_driver(const DeviceOptions& options) {
  const bool emulated = !options.emulated_arch.empty();
  driver::DriverOptions result;
  result.kind = emulated ? driver::DriverKind::kEmulator : driver::DriverKind::kCuda;
  result.library = options.library;
  if (emulated) result.arch = options.emulated_arch;
  result.emulator.multiprocessors = options.emulated_multiprocessors;
  result.emulator.device_count = std::max(1, options.ordinal + 1);
  return std::make_shared<const driver::Driver>(result);
}

std::vector<driver::KernelImage> images_for(std::string_view arch) {
  std::vector<driver::KernelImage> images(device::kernel_images().begin(),
                                          device::kernel_images().end());
  if (const dispatch::Architecture* own = dispatch::find_architecture(arch)) {
    const auto more = own->images();
    images.insert(images.end(), more.begin(), more.end());
  }
  return images;
}

}  // namespace

internal::DeviceState::DeviceState(const DeviceOptions& options)
    : device(open_driver(options), options.ordinal),
      arch(device.arch()),
      images(images_for(arch)),
      kernels(device, images) {}

Device::Device(const DeviceOptions& options)
    : state_(std::make_unique<internal::DeviceState>(options)) {}
Device::~Device() = default;
std::string Device::name() const { return state_->device.name(); }
const std::string& Device::arch() const { return state_->arch; }
void Device::synchronize() const { state_->device.synchronize(); }

struct DeviceMemory::Buffer {
  driver::DeviceBuffer memory;
};
DeviceMemory::DeviceMemory(const Device& device, std::size_t size_bytes)
    : buffer_(new Buffer{driver::DeviceBuffer(device.state().device, size_bytes)}) {}
DeviceMemory::~DeviceMemory() = default;
DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept = default;
std::byte* DeviceMemory::data() const {
  return reinterpret_cast<std::byte*>(buffer_->memory.address());
}
std::size_t DeviceMemory::size_bytes() const { return buffer_->memory.size_bytes(); }
void DeviceMemory::upload(const void* source, std::size_t size_bytes) const {
  buffer_->memory.upload(source, size_bytes);
}
void DeviceMemory::download(void* target, std::size_t size_bytes) const {
  buffer_->memory.download(target, size_bytes);
}

}  // namespace mxfa
