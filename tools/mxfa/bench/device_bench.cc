#include "bench/device_bench.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>

#include "bench/report.h"
#include "core/check.h"
#include "io/progress.h"
#ifdef MXFA_HAS_DRIVER
#include "device/cublaslt.h"
#include "dispatch/gpu/device_state.h"
#endif

namespace mxfa::cli::bench {

void add_device_options(CLI::App& app, DeviceArguments& arguments, const std::string& variants) {
  app.add_option("--preset", arguments.preset, "Shapes")->capture_default_str();
  add_names_option(app, "--variants", arguments.variants, variants);
  app.add_option("--driver", arguments.driver, "cuda or emulator")->capture_default_str();
  app.add_option("--arch", arguments.arch,
                 "What the emulator is: sm_90a (default), sm_100a, sm_103a");
  app.add_option("--device", arguments.ordinal, "Ordinal of the GPU (default 0)");
  app.add_option("--driver-name", arguments.driver_name, "The driver's version, for records");
  app.add_option("--cublaslt", arguments.cublaslt, "libcublasLt to take, on a GPU")
      ->type_name("FILE");
  app.add_option("--runs", arguments.runs, "Timed runs of each case")->capture_default_str();
  add_json_option(app, arguments.json);
  add_svg_option(app, "--plot", arguments.plot, "A chart of the result");
}

#ifdef MXFA_HAS_DRIVER

namespace {

void check_machine(const DeviceArguments& arguments, const KnownNames& known) {
  expect_one_of(arguments.driver, "driver", {"cuda", "emulator"});
  expect_one_of(arguments.emulated_arch(), "arch", {"sm_90a", "sm_100a", "sm_103a"});
  expect_one_of(arguments.preset, arguments.emulated() ? "preset (on the emulator)" : "preset",
                arguments.emulated() ? known.emulator_presets : known.presets);
  if (!arguments.emulated()) {
    core::expect(!arguments.arch, "arch", "none without --driver emulator",
                 arguments.emulated_arch());
    return;
  }
  core::expect(!arguments.ordinal, "device", "none on the emulator", arguments.ordinal.value_or(0));
  core::expect(arguments.cublaslt.empty(), "cublaslt", "none on the emulator",
               core::later("'{}'", arguments.cublaslt));
}

void print_phases(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    const io::Json& extra = row.record.extra;
    if (!extra.contains("fused_ms_median")) continue;
    fmt::print("{} {}: preparation {:.4g} ms, whole call {:.4g} ms ({:.4g} TFLOP/s)\n", row.label,
               row.record.impl, extra["prepare_ms_median"].get<double>(),
               extra["fused_ms_median"].get<double>(), extra["fused_tflops"].get<double>());
  }
}

std::vector<Row> measured_rows(const DeviceArguments& arguments, const SpeedBench& bench,
                               const mxfa::bench::SpeedOptions& options, io::Progress& progress) {
  const auto cases = mxfa::bench::preset(arguments.preset, mxfa::bench::Scale::kGpu);
  std::vector<Row> rows;
  const auto per_case = arguments.variants.size();
  std::vector<io::Record> records = bench.records(cases, options, [&] { progress.advance(); });
  for (std::size_t i = 0; i < records.size(); ++i) {
    rows.push_back({cases[i / per_case].name, std::move(records[i])});
  }
  if (!options.timed) return rows;
  for (io::Record& record : bench.host_time()) {
    std::string label = record.shape.jagged.value_or(false) ? "jagged" : "dense";
    label += ", " + record.extra["call"].get<std::string>();
    rows.push_back({std::move(label), std::move(record)});
  }
  return rows;
}

}  // namespace

void check_device_arguments(const DeviceArguments& arguments, const KnownNames& known) {
  expect_some_of(arguments.variants, "variants", known.variants);
  check_machine(arguments, known);
  core::expect(arguments.runs >= 1, "runs", "at least 1", arguments.runs);
  core::expect(arguments.ordinal.value_or(0) >= 0, "device", "at least 0",
               arguments.ordinal.value_or(0));
  check_outputs({{"json", arguments.json}, {"plot", arguments.plot}});
}

DeviceOptions device_options(const DeviceArguments& arguments) {
  DeviceOptions options;
  options.ordinal = arguments.ordinal.value_or(0);
  if (arguments.emulated()) options.emulated_arch = arguments.emulated_arch();
  return options;
}

std::string driver_text(const DeviceArguments& arguments, const Device& device) {
  const int version = device.state().device.driver().version();
  return fmt::format("{}{}CUDA {}.{}", arguments.driver_name,
                     arguments.driver_name.empty() ? "" : ", ", version / 1000,
                     version % 1000 / 10);
}

ExitStatus run_speed(const DeviceArguments& arguments, const Device& device,
                     const SpeedBench& bench) {
  mxfa::bench::SpeedOptions options{.plan = {.warm_ups = 5, .runs = arguments.runs},
                                    .timed = !arguments.emulated()};
  std::vector<Row> rows;
  {
    const auto cases = mxfa::bench::preset(arguments.preset, mxfa::bench::Scale::kGpu);
    io::Progress progress(bench.command, std::ssize(cases) * std::ssize(arguments.variants) + 1);
    if (options.timed) {
      options.fp8_gemm_tflops =
          mxfa::bench::measure_fp8_gemm_tflops(device.state().device, arguments.cublaslt);
    }
    progress.advance();
    rows = measured_rows(arguments, bench, options, progress);
  }
  std::vector<io::Record> records;
  for (Row& row : rows) {
    row.record =
        complete_record(std::move(row.record), device.name(), driver_text(arguments, device));
    records.push_back(row.record);
  }
  const std::string ceiling =
      options.fp8_gemm_tflops
          ? fmt::format("FP8 GEMM 8192^3 (cuBLASLt): {:.0f} TFLOP/s", *options.fp8_gemm_tflops)
          : std::string(options.timed ? "no cuBLASLt: no FP8 ceiling"
                                      : "emulated: nothing is timed");
  fmt::print("{}. {}\n\n{}", device.name(), ceiling, report_text(rows));
  print_phases(rows);
  write_svg(arguments.plot, [&] { return report_svg(bench.title, rows); });
  write_json(arguments.json, records);
  return kDone;
}

#endif

}  // namespace mxfa::cli::bench
