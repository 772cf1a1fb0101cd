#include "device/events.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numbers>

#include "core/parallel.h"
#include "mx/bits.h"

namespace mxfa::bench {

std::vector<std::vector<double>> time_by_events(const driver::Device& device, CUstream stream,
                                                std::span<const std::function<void()>> bodies,
                                                const RunPlan& plan) {
  struct Run {
    std::size_t body;
    std::unique_ptr<driver::Event> start, stop;
  };
  std::vector<Run> runs;
  for (int round = -plan.warm_ups; round < plan.runs; ++round) {
    for (std::size_t i = 0; i < bodies.size(); ++i) {
      const std::size_t body = round % 2 == 0 ? i : bodies.size() - 1 - i;
      if (round < 0) {
        bodies[body]();
        continue;
      }
      runs.push_back(
          {body, std::make_unique<driver::Event>(device), std::make_unique<driver::Event>(device)});
      runs.back().start->record(stream);
      bodies[body]();
      runs.back().stop->record(stream);
    }
  }
  std::vector<std::vector<double>> ms(bodies.size());
  for (const Run& run : runs) ms[run.body].push_back(run.stop->elapsed_ms(*run.start));
  return ms;
}

io::TimingRecord timing_of(std::vector<double> ms) {
  std::sort(ms.begin(), ms.end());
  return {.ms_median = ms[ms.size() / 2],
          .ms_min = ms.front(),
          .ms_max = ms.back(),
          .runs = std::ssize(ms)};
}

io::TimingRecord event_timing(const driver::Device& device, CUstream stream,
                              const std::function<void()>& body, const RunPlan& plan) {
  return timing_of(time_by_events(device, stream, std::span(&body, 1), plan).front());
}

const std::vector<std::uint16_t>& normal_noise() {
  static const std::vector<std::uint16_t> noise = [] {
    std::vector<std::uint16_t> values(kNoisePeriod);
    constexpr std::int64_t kChunk = 1 << 16;
    core::parallel_for((kNoisePeriod + kChunk - 1) / kChunk, [&](std::int64_t chunk) {
      std::uint64_t state = static_cast<std::uint64_t>(chunk) * 0x9E3779B97F4A7C15u;
      const auto uniform = [&] {
        std::uint64_t z = state += 0x9E3779B97F4A7C15u;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
      };
      const std::int64_t end = std::min((chunk + 1) * kChunk, kNoisePeriod);
      for (std::int64_t i = chunk * kChunk; i < end; ++i) {
        const double radius = std::sqrt(-2 * std::log(1 - uniform()));
        values[i] = mx::encode_bf16(
            static_cast<float>(radius * std::cos(2 * std::numbers::pi * uniform())));
      }
    });
    return values;
  }();
  return noise;
}

NoisyTensor::NoisyTensor(const driver::Device& device, std::int64_t count, std::int64_t shift)
    : shift_(shift), buffer_(device, static_cast<std::size_t>(count) * 2) {
  const std::vector<std::uint16_t>& noise = normal_noise();
  const std::int64_t first = std::min(count, kNoisePeriod);
  std::vector<std::uint16_t> rotated(noise.begin() + shift, noise.end());
  rotated.insert(rotated.end(), noise.begin(), noise.begin() + shift);
  buffer_.upload(rotated.data(), static_cast<std::size_t>(first) * 2);
  const driver::CurrentDevice current(device);
  for (std::int64_t at = kNoisePeriod; at < count; at += kNoisePeriod) {
    const std::int64_t elements = std::min(kNoisePeriod, count - at);
    device.driver().check(device.calls().cuMemcpyDtoDAsync(
                              buffer_.address() + static_cast<CUdeviceptr>(at) * 2,
                              buffer_.address(), static_cast<std::size_t>(elements) * 2, nullptr),
                          "cuMemcpyDtoDAsync");
  }
  device.driver().check(device.calls().cuStreamSynchronize(nullptr), "cuStreamSynchronize");
}

float NoisyTensor::at(std::int64_t index) const {
  return mx::decode_bf16(normal_noise()[(index + shift_) % kNoisePeriod]);
}

}  // namespace mxfa::bench
