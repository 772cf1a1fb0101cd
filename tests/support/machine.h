#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/ops.h"
#include "driver/device.h"
#include "driver/kernel.h"

/// The device that a test program runs on, and buffers that show what a kernel touched.
namespace mxfa::testing {

/// Device memory between two guards, poisoned with 0xFF: what a kernel leaves unwritten stays NaN.
class Guarded {
 public:
  Guarded(const driver::Device& device, std::size_t size_bytes)
      : size_bytes_(size_bytes), buffer_(device, size_bytes + 2 * kGuardBytes) {
    buffer_.fill(kPoison);
  }
  CUdeviceptr address() const { return buffer_.address() + kGuardBytes; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(address());
  }
  template <class T>
  std::vector<T> download() const {
    const std::vector<std::uint8_t> bytes = all_bytes();
    std::vector<T> values(size_bytes_ / sizeof(T));
    std::copy_n(bytes.begin() + kGuardBytes, size_bytes_,
                reinterpret_cast<std::uint8_t*>(values.data()));
    return values;
  }
  bool guards_intact() const {
    const std::vector<std::uint8_t> bytes = all_bytes();
    const auto intact = [&](std::size_t first) {
      return std::all_of(bytes.begin() + first, bytes.begin() + first + kGuardBytes,
                         [](std::uint8_t byte) { return byte == kPoison; });
    };
    return intact(0) && intact(kGuardBytes + size_bytes_);
  }
  void upload(const void* source) const {
    std::vector<std::uint8_t> bytes(size_bytes_ + 2 * kGuardBytes, kPoison);
    std::copy_n(static_cast<const std::uint8_t*>(source), size_bytes_, bytes.begin() + kGuardBytes);
    buffer_.upload(bytes.data(), bytes.size());
  }

 private:
  static constexpr std::size_t kGuardBytes = 1024;  // keeps every alignment that a kernel asks for
  static constexpr std::uint8_t kPoison = 0xFF;

  std::vector<std::uint8_t> all_bytes() const {
    std::vector<std::uint8_t> bytes(size_bytes_ + 2 * kGuardBytes);
    buffer_.download(bytes.data(), bytes.size());
    return bytes;
  }

  std::size_t size_bytes_;
  driver::DeviceBuffer buffer_;
};

class Machine {
 public:
  Machine(const driver::DriverOptions& options, std::vector<driver::KernelImage> images)
      : options_(options),
        images_(std::move(images)),
        device_(std::make_shared<const driver::Driver>(options), 0),
        kernels_(device_, images_),
        stream_(device_) {}

  const driver::DriverOptions& options() const { return options_; }
  const driver::Device& device() const { return device_; }
  device::Queue queue() { return {device_, kernels_, stream_.handle()}; }
  void synchronize() const { stream_.synchronize(); }
  Guarded poisoned(std::size_t size_bytes) const { return {device_, size_bytes}; }
  template <class T>
  Guarded upload(std::span<const T> values) const {
    Guarded buffer(device_, values.size_bytes());
    buffer.upload(values.data());
    return buffer;
  }

 private:
  driver::DriverOptions options_;
  std::vector<driver::KernelImage> images_;
  driver::Device device_;
  driver::KernelCache kernels_;
  driver::Stream stream_;
};

/// The machine of this test program, opened by its main from --driver and --arch.
Machine& machine();
/// The kernels that this test program launches: each program defines it beside its tests.
std::vector<driver::KernelImage> images();

}  // namespace mxfa::testing
