#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <vector>

#include "device/ops.h"
#include "driver/device.h"
#include "io/json_records.h"
#include "mx/bits.h"
#include "mx/scale_layout.h"

/// Speed of the memory-bound kernels, against the device-to-device copy of the same run.
namespace mxfa {
namespace {

constexpr int kWarmUps = 5;
constexpr int kRuns = 30;

struct Bench {
  driver::Device device;
  driver::KernelCache kernels{device, device::kernel_images()};
  driver::Stream stream{device};

  /// Rotating over buffers far larger than the L2 is up to `body`: it gets the run's number.
  io::TimingRecord time(const std::function<void(int)>& body) const {
    std::vector<double> ms;
    for (int run = -kWarmUps; run < kRuns; ++run) {
      const driver::Event start(device), stop(device);
      start.record(stream.handle());
      body(run + kWarmUps);
      stop.record(stream.handle());
      const double elapsed = stop.elapsed_ms(start);
      if (run >= 0) ms.push_back(elapsed);
    }
    std::sort(ms.begin(), ms.end());
    return {
        .ms_median = ms[ms.size() / 2], .ms_min = ms.front(), .ms_max = ms.back(), .runs = kRuns};
  }
};

double gbps(double bytes, const io::TimingRecord& timing) { return bytes / timing.ms_median / 1e6; }

double copy_gbps(const Bench& bench) {
  constexpr std::size_t kBytes = std::size_t{2} << 30;
  const driver::DeviceBuffer source(bench.device, kBytes), target(bench.device, kBytes);
  source.fill(1);
  const auto timing = bench.time([&](int) {
    const driver::CurrentDevice current(bench.device);
    bench.device.driver().check(
        bench.device.calls().cuMemcpyDtoDAsync(target.address(), source.address(), kBytes,
                                               bench.stream.handle()),
        "cuMemcpyDtoDAsync");
  });
  return gbps(2.0 * kBytes, timing);
}

std::vector<std::uint16_t> noise(std::int64_t count) {
  std::vector<std::uint16_t> values(static_cast<std::size_t>(count));
  std::uint32_t state = 12345;
  for (auto& value : values) {
    state = state * 1664525u + 1013904223u;
    value = mx::encode_bf16((static_cast<float>(state >> 8) - 8388608.0f) / 4194304.0f);
  }
  return values;
}

io::Record rmsnorm(Bench& bench, std::int64_t rows, std::int32_t dim, double copy) {
  const mx::TiledScaleLayout along_dim{rows, dim / 32}, along_rows{dim, (rows + 31) / 32};
  const driver::DeviceBuffer x(bench.device, rows * dim * 2), weight(bench.device, dim * 2),
      codes(bench.device, rows * dim), dim_scales(bench.device, along_dim.size_bytes()),
      row_scales(bench.device, along_rows.size_bytes()), rstd(bench.device, rows * 4);
  const auto host = noise(rows * dim);
  x.upload(host.data(), host.size() * 2);
  weight.upload(host.data(), dim * 2);
  const auto pointer = []<class T>(const driver::DeviceBuffer& buffer, T*) {
    return reinterpret_cast<T*>(buffer.address());
  };
  const device::RmsNormQuantizeParams params{
      .x = pointer(x, static_cast<const std::uint16_t*>(nullptr)),
      .weight = pointer(weight, static_cast<const std::uint16_t*>(nullptr)),
      .codes = pointer(codes, static_cast<std::uint8_t*>(nullptr)),
      .scales_dim = pointer(dim_scales, static_cast<std::uint8_t*>(nullptr)),
      .scales_rows = pointer(row_scales, static_cast<std::uint8_t*>(nullptr)),
      .rstd = pointer(rstd, static_cast<float*>(nullptr)),
      .rows = rows,
      .dim = dim,
      .eps = 1e-6f};
  const device::Queue queue{bench.device, bench.kernels, bench.stream.handle()};
  const auto timing = bench.time([&](int) { device::rmsnorm_quantize(queue, params); });
  const double bytes = static_cast<double>(rows * dim) * 3 + along_dim.size_bytes() +
                       along_rows.size_bytes() + rows * 4.0 + dim * 2.0;
  io::Record record;
  record.routine = "rmsnorm_quantize";
  record.impl = "mxfa mxfp8";
  record.timing = timing;
  record.gbps = gbps(bytes, timing);
  record.ceiling = io::CeilingRecord{"copy_gbps", copy};
  record.fraction_of_ceiling = *record.gbps / copy;
  record.variant.block_shape = "32x32";
  record.extra = {{"rows", rows}, {"dim", dim}};
  fmt::print("rmsnorm_quantize [{}, {}]: {:.3f} ms, {:.0f} GB/s, {:.1f}% of copy\n", rows, dim,
             timing.ms_median, *record.gbps, 100 * *record.fraction_of_ceiling);
  return record;
}

int run(int argc, char** argv) {
  CLI::App app("Speed of the memory-bound kernels");
  std::string json, commit;
  app.add_option("--json", json, "write result records to this file");
  app.add_option("--commit", commit, "the commit that was built, for the records");
  CLI11_PARSE(app, argc, argv);
  auto driver = std::make_shared<const driver::Driver>(driver::DriverOptions{});
  Bench bench{driver::Device(driver, 0)};
  const double copy = copy_gbps(bench);
  fmt::print("{}: copy {:.0f} GB/s\n", bench.device.name(), copy);
  std::vector<io::Record> records;
  constexpr std::pair<std::int64_t, std::int32_t> kShapes[] = {
      {2097152, 384}, {1048576, 512}, {1048576, 256}, {524288, 1024},
      {262144, 2048}, {131072, 4096}, {32768, 16384}};
  for (const auto& [rows, dim] : kShapes) {
    records.push_back(rmsnorm(bench, rows, dim, copy));
  }
  for (io::Record& record : records) {
    record.device = bench.device.name();
    record.driver = std::to_string(driver->version());
    record.commit = commit;
    record.date = io::utc_date();
  }
  if (!json.empty()) io::write_records(json, records);
  return 0;
}

}  // namespace
}  // namespace mxfa

int main(int argc, char** argv) {
  try {
    return mxfa::run(argc, argv);
  } catch (const mxfa::Error& error) {
    fmt::print(stderr, "device_bench: {}\n", error.what());
    return error.kind() == mxfa::ErrorKind::kDevice ? 3 : 2;
  }
}
