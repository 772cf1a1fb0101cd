#include "driver/device.h"

#include <fmt/format.h>

#include <utility>

#include "core/check.h"

namespace mxfa::driver {

Device::Device(std::shared_ptr<const Driver> driver, int ordinal)
    : driver_(std::move(driver)), ordinal_(ordinal) {
  const int count = driver_->device_count();
  if (ordinal < 0 || ordinal >= count) {
    throw Error(ErrorKind::kDevice,
                fmt::format("device: expected an ordinal below {}, got {}", count, ordinal));
  }
  driver_->check(calls().cuDeviceGet(&device_, ordinal), "cuDeviceGet");
  driver_->check(calls().cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
  multiprocessors_ = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
}

Device::~Device() { calls().cuDevicePrimaryCtxRelease(device_); }

int Device::attribute(CUdevice_attribute attribute) const {
  int value = 0;
  driver_->check(calls().cuDeviceGetAttribute(&value, attribute, device_), "cuDeviceGetAttribute");
  return value;
}

std::string Device::name() const {
  char text[256] = {};
  driver_->check(calls().cuDeviceGetName(text, sizeof text, device_), "cuDeviceGetName");
  return text;
}

std::string Device::arch() const {
  const int major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  const int minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  return fmt::format("sm_{}{}{}", major, minor, major >= 9 ? "a" : "");
}

void Device::synchronize() const {
  const CurrentDevice current(*this);
  driver_->check(calls().cuCtxSynchronize(), "cuCtxSynchronize");
}

CurrentDevice::CurrentDevice(const Device& device) : device_(device) {
  CUcontext current = nullptr;
  device.driver().check(device.calls().cuCtxGetCurrent(&current), "cuCtxGetCurrent");
  if (current == device.context()) return;
  device.driver().check(device.calls().cuCtxPushCurrent(device.context()), "cuCtxPushCurrent");
  pushed_ = true;
}

CurrentDevice::~CurrentDevice() {
  if (!pushed_) return;
  CUcontext popped = nullptr;
  device_.calls().cuCtxPopCurrent(&popped);
}

DeviceBuffer::DeviceBuffer(const Device& device, std::size_t size_bytes)
    : device_(&device), size_bytes_(size_bytes) {
  if (size_bytes == 0) return;  // the driver refuses empty allocations
  const CurrentDevice current(device);
  device.driver().check(device.calls().cuMemAlloc(&address_, size_bytes), "cuMemAlloc");
}

DeviceBuffer::~DeviceBuffer() {
  if (address_ == 0) return;
  const CurrentDevice current(*device_);
  device_->calls().cuMemFree(address_);
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : device_(other.device_),
      address_(std::exchange(other.address_, 0)),
      size_bytes_(other.size_bytes_) {}

void DeviceBuffer::upload(const void* source, std::size_t size_bytes) const {
  core::expect(size_bytes <= size_bytes_, "size_bytes",
               core::later("at most the buffer's {}", size_bytes_), size_bytes);
  if (size_bytes == 0) return;
  const CurrentDevice current(*device_);
  const auto& calls = device_->calls();
  device_->driver().check(calls.cuMemcpyHtoDAsync(address_, source, size_bytes, nullptr),
                          "cuMemcpyHtoDAsync");
  device_->driver().check(calls.cuStreamSynchronize(nullptr), "cuStreamSynchronize");
}

void DeviceBuffer::download(void* target, std::size_t size_bytes) const {
  core::expect(size_bytes <= size_bytes_, "size_bytes",
               core::later("at most the buffer's {}", size_bytes_), size_bytes);
  if (size_bytes == 0) return;
  const CurrentDevice current(*device_);
  const auto& calls = device_->calls();
  device_->driver().check(calls.cuMemcpyDtoHAsync(target, address_, size_bytes, nullptr),
                          "cuMemcpyDtoHAsync");
  device_->driver().check(calls.cuStreamSynchronize(nullptr), "cuStreamSynchronize");
}

void DeviceBuffer::fill(std::uint8_t byte) const {
  if (size_bytes_ == 0) return;
  const CurrentDevice current(*device_);
  const auto& calls = device_->calls();
  device_->driver().check(calls.cuMemsetD8Async(address_, byte, size_bytes_, nullptr),
                          "cuMemsetD8Async");
  device_->driver().check(calls.cuStreamSynchronize(nullptr), "cuStreamSynchronize");
}

Stream::Stream(const Device& device) : device_(device) {
  const CurrentDevice current(device);
  device.driver().check(device.calls().cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING),
                        "cuStreamCreate");
}

Stream::~Stream() {
  const CurrentDevice current(device_);
  device_.calls().cuStreamDestroy(stream_);
}

void Stream::synchronize() const {
  const CurrentDevice current(device_);
  device_.driver().check(device_.calls().cuStreamSynchronize(stream_), "cuStreamSynchronize");
}

Event::Event(const Device& device) : device_(device) {
  const CurrentDevice current(device);
  device.driver().check(device.calls().cuEventCreate(&event_, CU_EVENT_DEFAULT), "cuEventCreate");
}

Event::~Event() {
  const CurrentDevice current(device_);
  device_.calls().cuEventDestroy(event_);
}

void Event::record(CUstream stream) const {
  const CurrentDevice current(device_);
  device_.driver().check(device_.calls().cuEventRecord(event_, stream), "cuEventRecord");
}

float Event::elapsed_ms(const Event& start) const {
  const CurrentDevice current(device_);
  const auto& calls = device_.calls();
  device_.driver().check(calls.cuEventSynchronize(event_), "cuEventSynchronize");
  float ms = 0.0f;
  device_.driver().check(calls.cuEventElapsedTime(&ms, start.event_, event_), "cuEventElapsedTime");
  return ms;
}

}  // namespace mxfa::driver
