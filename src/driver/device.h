#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "driver/driver.h"

/// Owning handles over the driver's objects. Each remembers its device; none changes the caller's
/// current context beyond the call.
namespace mxfa::driver {

/// One device and its primary context, which is shared with every other library in the process.
class Device {
 public:
  Device(std::shared_ptr<const Driver> driver, int ordinal);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Driver& driver() const { return *driver_; }
  const FunctionTable& calls() const { return driver_->calls(); }
  CUcontext context() const { return context_; }
  int ordinal() const { return ordinal_; }
  int attribute(CUdevice_attribute attribute) const;
  int multiprocessors() const { return multiprocessors_; }
  std::string name() const;
  /// "sm_90a": the architecture whose kernels run here, with the suffix of its full feature set.
  std::string arch() const;
  void synchronize() const;

 private:
  std::shared_ptr<const Driver> driver_;
  int ordinal_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  int multiprocessors_ = 0;
};

/// Makes a device current while it lives, then restores what was current.
class CurrentDevice {
 public:
  explicit CurrentDevice(const Device& device);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  const Device& device_;
  bool pushed_ = false;  ///< it was not current before
};

/// Device memory. Freed when it dies; freeing waits for the device as cuMemFree does.
class DeviceBuffer {
 public:
  DeviceBuffer(const Device& device, std::size_t size_bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&&) = delete;

  CUdeviceptr address() const { return address_; }
  std::size_t size_bytes() const { return size_bytes_; }
  /// Copies between pageable host memory and the buffer's start; both wait until done.
  void upload(const void* source, std::size_t size_bytes) const;
  void download(void* target, std::size_t size_bytes) const;
  void fill(std::uint8_t byte) const;

 private:
  const Device* device_;
  CUdeviceptr address_ = 0;
  std::size_t size_bytes_;
};

class Stream {
 public:
  explicit Stream(const Device& device);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  CUstream handle() const { return stream_; }
  void synchronize() const;

 private:
  const Device& device_;
  CUstream stream_ = nullptr;
};

class Event {
 public:
  explicit Event(const Device& device);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(CUstream stream) const;
  /// Waits for both events; milliseconds from `start` to this one.
  float elapsed_ms(const Event& start) const;

 private:
  const Device& device_;
  CUevent event_ = nullptr;
};

}  // namespace mxfa::driver
