#pragma once

#include <cstddef>
#include <memory>
#include <string>

/// A GPU, or the emulator in its place. No header of CUDA is needed: streams are passed as void*,
/// device memory as plain pointers, which the caller allocates as it likes (cudaMalloc, a
/// framework's allocator; DeviceMemory where there is none of these).
namespace mxfa {

namespace internal {
struct DeviceState;
}

struct DeviceOptions {
  int ordinal = 0;
  /// Empty: a GPU, through libcuda.so.1. "sm_90a", "sm_100a", "sm_103a": the emulator (libmxemu.so)
  /// as such a GPU: thousands of times slower, no GPU needed.
  std::string emulated_arch = {};
  int emulated_multiprocessors = 0;  ///< 0: as many as the architecture has
  std::string library = {};  ///< the driver's library to open; empty: the usual name, by the loader
};

/// One device and its loaded kernels. It uses the device's primary context, as the CUDA runtime
/// does, so memory and streams of other libraries in the process serve as they are. Kernels are
/// loaded on their first launch, which takes milliseconds. Calls on it may come from several
/// threads at once. It outlives whatever was made from it, and its calls' work.
class Device {
 public:
  /// Throws Error(kDevice) that names what is missing: the driver, a device of this ordinal, or
  /// device code in this build.
  explicit Device(const DeviceOptions& options = {});
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  std::string name() const;
  /// "sm_90a": the architecture whose kernels run here.
  const std::string& arch() const;
  /// Waits for everything that was launched on the device. Throws Error(kDevice) where one of those
  /// kernels failed, or the driver.
  void synchronize() const;

  internal::DeviceState& state() const { return *state_; }

 private:
  std::unique_ptr<internal::DeviceState> state_;
};

/// Device memory for programs that have no allocator of their own. Freed when it dies, which waits
/// for the device.
class DeviceMemory {
 public:
  /// Throws Error(kDevice) where the device has not as much.
  DeviceMemory(const Device& device, std::size_t size_bytes);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&&) = delete;

  /// On 256 bytes. Null where size_bytes() is 0.
  std::byte* data() const;
  std::size_t size_bytes() const;
  /// Copies `size_bytes` from and to host memory, on the default stream; both wait until done.
  /// Throw Error(kInvalidArgument) for more than size_bytes() and Error(kDevice) where the driver
  /// fails, also by the fault of a kernel that was launched before.
  void upload(const void* source, std::size_t size_bytes) const;
  void download(void* target, std::size_t size_bytes) const;

 private:
  struct Buffer;
  std::unique_ptr<Buffer> buffer_;
};

}  // namespace mxfa
