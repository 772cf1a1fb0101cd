#include "common/timing.h"

#include <algorithm>
#include <chrono>
#include <ctime>

namespace mxfa::bench {
namespace {

double wall_ms() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(now).count();
}

double cpu_ms() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

io::TimingRecord timing_record(const Samples& samples) {
  if (samples.wall_ms.empty()) return {};
  const auto [least, most] = std::minmax_element(samples.wall_ms.begin(), samples.wall_ms.end());
  return {.ms_median = median(samples.wall_ms),
          .ms_min = *least,
          .ms_max = *most,
          .runs = std::ssize(samples.wall_ms)};
}

std::vector<Samples> time_alternating(std::span<const std::function<void()>> bodies,
                                      const RunPlan& plan, const std::function<void()>& after_run) {
  std::vector<Samples> samples(bodies.size());
  for (int round = 0; round < plan.warm_ups + plan.runs; ++round) {
    for (std::size_t step = 0; step < bodies.size(); ++step) {
      const std::size_t i = round % 2 == 0 ? step : bodies.size() - 1 - step;
      const double wall = wall_ms(), cpu = cpu_ms();
      bodies[i]();
      const double cpu_end = cpu_ms(), wall_end = wall_ms();
      if (after_run) after_run();
      if (round < plan.warm_ups) continue;
      samples[i].wall_ms.push_back(wall_end - wall);
      samples[i].cpu_ms.push_back(cpu_end - cpu);
    }
  }
  return samples;
}

}  // namespace mxfa::bench
