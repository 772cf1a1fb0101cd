#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/timing.h"
#include "driver/device.h"
#include "io/json_records.h"

/// How work on a device is timed and fed.
namespace mxfa::bench {

/// Milliseconds by events of each run of each body on `stream`: plan.warm_ups rounds first; a round
/// runs every body once, rounds go there and back. The queue is never empty between the events.
std::vector<std::vector<double>> time_by_events(const driver::Device& device, CUstream stream,
                                                std::span<const std::function<void()>> bodies,
                                                const RunPlan& plan);
/// Of one body.
io::TimingRecord event_timing(const driver::Device& device, CUstream stream,
                              const std::function<void()>& body, const RunPlan& plan);
io::TimingRecord timing_of(std::vector<double> ms);

/// N(0, 1) in BF16, the same on every run; as a tensor's elements it repeats. Its length is odd, so
/// that heads and rows differ.
inline constexpr std::int64_t kNoisePeriod = (1 << 24) + 1;
const std::vector<std::uint16_t>& normal_noise();

/// A BF16 tensor on the device: element i is normal_noise()[(i + shift) % kNoisePeriod].
class NoisyTensor {
 public:
  NoisyTensor(const driver::Device& device, std::int64_t count, std::int64_t shift);
  void* data() const { return reinterpret_cast<void*>(buffer_.address()); }
  float at(std::int64_t index) const;

 private:
  std::int64_t shift_;
  driver::DeviceBuffer buffer_;
};

}  // namespace mxfa::bench
