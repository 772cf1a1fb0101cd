#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/standard_streams.h"
#include "device/ops.h"
#include "driver/device.h"
#include "io/json_records.h"
#include "mx/bits.h"

/// What the device benchmarks share: timing by events, noise, the copy ceiling, records.
namespace mxfa::bench {

inline constexpr int kWarmUps = 5;
inline constexpr int kRuns = 30;

struct Bench {
  driver::Device device;
  driver::KernelCache kernels{device, device::kernel_images()};
  driver::Stream stream{device};
  double copy_gbps = 0;

  device::Queue queue() { return {device, kernels, stream.handle()}; }

  /// Median over kRuns after kWarmUps. Inputs larger than the L2 (60 MB) need no rotation.
  io::TimingRecord time(const std::function<void()>& body) const {
    std::vector<double> ms;
    for (int run = -kWarmUps; run < kRuns; ++run) {
      const driver::Event start(device), stop(device);
      start.record(stream.handle());
      body();
      stop.record(stream.handle());
      const double elapsed = stop.elapsed_ms(start);
      if (run >= 0) ms.push_back(elapsed);
    }
    std::sort(ms.begin(), ms.end());
    return {
        .ms_median = ms[ms.size() / 2], .ms_min = ms.front(), .ms_max = ms.back(), .runs = kRuns};
  }

  /// A record of a memory-bound routine that has to move `bytes`.
  io::Record record(std::string routine, double bytes, const io::TimingRecord& timing) const {
    io::Record result;
    result.routine = std::move(routine);
    result.impl = "mxfa mxfp8";
    result.timing = timing;
    result.gbps = bytes / timing.ms_median / 1e6;
    result.ceiling = io::CeilingRecord{"copy_gbps", copy_gbps};
    result.fraction_of_ceiling = *result.gbps / copy_gbps;
    return result;
  }
};

/// Bytes read plus bytes written of a device-to-device copy of 2 GiB.
inline double measure_copy_gbps(const Bench& bench) {
  constexpr std::size_t kBytes = std::size_t{2} << 30;
  const driver::DeviceBuffer source(bench.device, kBytes), target(bench.device, kBytes);
  source.fill(1);
  const io::TimingRecord timing = bench.time([&] {
    const driver::CurrentDevice current(bench.device);
    bench.device.driver().check(
        bench.device.calls().cuMemcpyDtoDAsync(target.address(), source.address(), kBytes,
                                               bench.stream.handle()),
        "cuMemcpyDtoDAsync");
  });
  return 2.0 * kBytes / timing.ms_median / 1e6;
}

/// Where, from what and when records were made.
inline void stamp(std::span<io::Record> records, const driver::Device& device,
                  const std::string& driver_name, const std::string& commit) {
  const int version = device.driver().version();
  for (io::Record& record : records) {
    record.device = device.name();
    record.driver = fmt::format("{}{}CUDA {}.{}", driver_name, driver_name.empty() ? "" : ", ",
                                version / 1000, version % 1000 / 10);
    record.commit = commit;
    record.date = io::utc_date();
  }
}

/// main() of these programs: an Error is printed and becomes the exit status, 3 for no device.
inline int run_program(const char* name, int (*run)(int, char**), int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const Error& error) {
    core::print_error("{}: {}\n", name, error.what());
    return error.kind() == ErrorKind::kDevice ? 3 : 2;
  }
}

inline void print(const io::Record& record, const std::string& shape) {
  fmt::print("{:<26} {:<34} {:8.3f} ms {:6.0f} GB/s {:5.1f}% of copy\n", record.routine, shape,
             record.timing->ms_median, *record.gbps, 100 * *record.fraction_of_ceiling);
}

/// Uniform in [-2, 2), BF16.
inline std::vector<std::uint16_t> noise(std::int64_t count) {
  std::vector<std::uint16_t> values(static_cast<std::size_t>(count));
  std::uint32_t state = 12345;
  for (std::uint16_t& value : values) {
    state = state * 1664525u + 1013904223u;
    value = mx::encode_bf16((static_cast<float>(state >> 8) - 8388608.0f) / 4194304.0f);
  }
  return values;
}

/// Device memory full of noise of one dtype: a block of it, copied over and over.
inline driver::DeviceBuffer noisy(const Bench& bench, std::int64_t elements,
                                  DType dtype = DType::kBF16) {
  constexpr std::int64_t kBlock = std::int64_t{1} << 24;
  static const std::vector<std::uint16_t> block = noise(kBlock);
  const auto element = static_cast<std::int64_t>(dtype_size(dtype));
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(kBlock * element));
  for (std::int64_t i = 0; i < kBlock; ++i) {
    const float value = mx::decode_bf16(block[i]);
    const std::uint16_t half = dtype == DType::kF16 ? mx::encode_f16(value) : block[i];
    if (dtype == DType::kF32) {
      std::memcpy(bytes.data() + i * 4, &value, 4);
    } else if (element == 2) {
      std::memcpy(bytes.data() + i * 2, &half, 2);
    } else {
      bytes[i] = static_cast<std::uint8_t>(block[i] % 120 | (block[i] & 0x80));
    }
  }
  driver::DeviceBuffer buffer(bench.device, static_cast<std::size_t>(elements * element));
  const std::int64_t first = std::min(elements, kBlock) * element;
  buffer.upload(bytes.data(), static_cast<std::size_t>(first));
  const driver::CurrentDevice current(bench.device);
  for (std::int64_t done = first; done < elements * element; done *= 2) {
    const std::int64_t next = std::min(done, elements * element - done);
    bench.device.driver().check(bench.device.calls().cuMemcpyDtoDAsync(
                                    buffer.address() + done, buffer.address(),
                                    static_cast<std::size_t>(next), bench.stream.handle()),
                                "cuMemcpyDtoDAsync");
  }
  return buffer;
}

template <class T>
T* pointer(const driver::DeviceBuffer& buffer) {
  return reinterpret_cast<T*>(buffer.address());
}

/// The parts of device_bench; each appends its records.
void bench_norms(Bench& bench, std::vector<io::Record>& records);
void bench_quantize(Bench& bench, std::vector<io::Record>& records);
void bench_operands(Bench& bench, std::vector<io::Record>& records);
/// Hopper's; nothing on other architectures.
void bench_dq(Bench& bench, std::vector<io::Record>& records);

}  // namespace mxfa::bench
