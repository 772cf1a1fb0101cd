#include "bench/forward_command.h"

#include <fmt/format.h>

#include <memory>

#include "bench/report.h"
#include "core/check.h"
#include "io/atomic_file.h"
#include "io/plot.h"
#include "io/progress.h"
#ifdef MXFA_HAS_DRIVER
#include "device/cublaslt.h"
#include "device/forward_suite.h"
#include "device/sqnr_suite.h"
#include "dispatch/gpu/device_state.h"
#endif

namespace mxfa::cli::bench {
namespace {

struct ForwardArguments {
  std::string preset = "peer";
  std::vector<std::string> variants;
  std::string driver = "cuda";
  std::string arch = "sm_90a";
  std::string driver_name;
  std::string cublaslt;
  int ordinal = 0;
  int runs = 30;
  std::string json;
  std::string plot;
};

#ifdef MXFA_HAS_DRIVER

void check(const ForwardArguments& arguments) {
  for (const std::string& variant : arguments.variants) {
    const auto& known = mxfa::bench::kForwardVariants;
    core::expect(std::find(std::begin(known), std::end(known), variant) != std::end(known),
                 "variants", fmt::format("{}", fmt::join(known, ", ")),
                 fmt::format("'{}'", variant));
  }
  expect_one_of(arguments.driver, "driver", {"cuda", "emulator"});
  expect_one_of(arguments.arch, "arch", {"sm_90a", "sm_100a", "sm_103a"});
  core::expect(arguments.runs >= 1, "runs", "at least 1", core::text(arguments.runs));
  core::expect(arguments.ordinal >= 0, "device", "at least 0", core::text(arguments.ordinal));
  const bool tiny = arguments.preset == "tiny" || arguments.preset == "sqnr-tiny";
  core::expect(arguments.driver == "cuda" || tiny, "preset", "tiny or sqnr-tiny on the emulator",
               fmt::format("'{}'", arguments.preset));
}

DeviceOptions device_options(const ForwardArguments& arguments) {
  DeviceOptions options;
  options.ordinal = arguments.ordinal;
  if (arguments.driver == "emulator") options.emulated_arch = arguments.arch;
  return options;
}

std::vector<mxfa::bench::ForwardVariant> variants_of(const ForwardArguments& arguments) {
  std::vector<mxfa::bench::ForwardVariant> result;
  for (const std::string& variant : arguments.variants) {
    const auto* const found = std::find(std::begin(mxfa::bench::kForwardVariants),
                                        std::end(mxfa::bench::kForwardVariants), variant);
    result.push_back(
        static_cast<mxfa::bench::ForwardVariant>(found - mxfa::bench::kForwardVariants));
  }
  return result;
}

/// Of the bars: kinds of scores only.
std::vector<bool> half_scores(const ForwardArguments& arguments) {
  std::vector<bool> result;
  for (const std::string& variant : arguments.variants) {
    core::expect(variant == "f32" || variant == "half", "variants", "f32, half with sqnr",
                 fmt::format("'{}'", variant));
    result.push_back(variant == "half");
  }
  return result;
}

std::string driver_text(const ForwardArguments& arguments, const Device& device) {
  const int version = device.state().device.driver().version();
  return fmt::format("{}{}CUDA {}.{}", arguments.driver_name,
                     arguments.driver_name.empty() ? "" : ", ", version / 1000,
                     version % 1000 / 10);
}

std::string sqnr_text(const std::vector<io::Record>& records) {
  std::vector<std::vector<std::string>> table{{"data", "keys", "scores", "O kern dB", "bar",
                                               "O f64 dB", "bar", "LSE recipe", "bar", "LSE f64",
                                               "bar", "verdict"}};
  for (const io::Record& record : records) {
    const auto& own = record.extra["lse_recipe"];
    const auto& f64 = record.extra["lse_f64"];
    const auto db = [](double value) { return fmt::format("{:.2f}", value); };
    const auto small = [](const io::Json& value) {
      return fmt::format("{:.2g}", value.get<double>());
    };
    table.push_back(
        {record.extra["dataset"].get<std::string>(), fmt::format("{}", *record.shape.seqlen_k),
         record.impl.find("half") != std::string::npos ? "half" : "f32", db(record.sqnr[0].db),
         db(record.sqnr[0].threshold_db), db(record.sqnr[1].db), db(record.sqnr[1].threshold_db),
         small(own["value"]), small(own["bar"]), small(f64["value"]), small(f64["bar"]),
         mxfa::bench::all_pass({record}) ? "pass" : "FAIL"});
  }
  return format_table(table);
}

/// Bars of o against both references, one for each dataset and number of keys.
std::string sqnr_svg(const std::vector<io::Record>& records, const std::string& device) {
  io::BarChart chart{.title = "Attention forward: SQNR of O",
                     .subtitle = device,
                     .y_label = "dB",
                     .categories = {},
                     .series = {{"against float64 on the operands", {}},
                                {"its bar", {}},
                                {"against float64 on BF16", {}},
                                {"its bar", {}}},
                     .guides = {}};
  for (const io::Record& record : records) {
    if (record.impl.find("half") != std::string::npos) continue;
    chart.categories.push_back(
        fmt::format("{} {}", record.extra["dataset"].get<std::string>(), *record.shape.seqlen_k));
    for (std::size_t i = 0; i < 2; ++i) {
      chart.series[2 * i].values.push_back(record.sqnr[i].db);
      chart.series[2 * i + 1].values.push_back(record.sqnr[i].threshold_db);
    }
  }
  return io::bar_chart_svg(chart);
}

ExitStatus run_sqnr(const ForwardArguments& arguments, const Device& device) {
  mxfa::bench::SqnrOptions options{.half_scores = half_scores(arguments)};
  if (arguments.preset == "sqnr-tiny") {
    options.seqlens_k = {256};
    options.max_pairs = 64 * 256;
  }
  std::vector<io::Record> records;
  {
    io::Progress progress("mxfa bench forward",
                          5 * std::ssize(options.seqlens_k) * std::ssize(options.half_scores));
    records = mxfa::bench::sqnr_records(device, options, [&] { progress.advance(); });
  }
  for (io::Record& record : records) {
    record = complete_record(std::move(record), device.name(), driver_text(arguments, device));
  }
  if (!arguments.plot.empty()) {
    io::write_text_file(arguments.plot, sqnr_svg(records, device.name()));
  }
  write_json(arguments.json, records);
  fmt::print("{}\n\n{}", device.name(), sqnr_text(records));
  return mxfa::bench::all_pass(records) ? kDone : kCheckFailed;
}

ExitStatus run_speed(const ForwardArguments& arguments, const Device& device) {
  const bool emulated = arguments.driver == "emulator";
  mxfa::bench::ForwardOptions options{
      .cases = mxfa::bench::preset(arguments.preset, mxfa::bench::Scale::kGpu),
      .variants = variants_of(arguments),
      .plan = {.warm_ups = 5, .runs = arguments.runs},
      .timed = !emulated};
  std::vector<Row> rows;
  {
    io::Progress progress("mxfa bench forward",
                          std::ssize(options.cases) * std::ssize(options.variants) + 2);
    if (!emulated) {
      options.fp8_gemm_tflops =
          mxfa::bench::measure_fp8_gemm_tflops(device.state().device, arguments.cublaslt);
    }
    progress.advance();
    std::vector<io::Record> records =
        mxfa::bench::forward_records(device, options, [&] { progress.advance(); });
    const auto per_case = std::ssize(options.variants);
    for (std::ptrdiff_t i = 0; i < std::ssize(records); ++i) {
      rows.push_back({options.cases[static_cast<std::size_t>(i / per_case)].name,
                      std::move(records[static_cast<std::size_t>(i)])});
    }
    if (!emulated) {
      for (io::Record& record : mxfa::bench::host_time_records(device)) {
        rows.push_back(
            {record.shape.jagged.value_or(false) ? "jagged" : "dense", std::move(record)});
      }
    }
  }
  std::vector<io::Record> records;
  for (Row& row : rows) {
    row.record =
        complete_record(std::move(row.record), device.name(), driver_text(arguments, device));
    records.push_back(row.record);
  }
  if (!arguments.plot.empty()) {
    io::write_text_file(arguments.plot, report_svg("Attention forward", rows));
  }
  write_json(arguments.json, records);
  const std::string ceiling =
      options.fp8_gemm_tflops
          ? fmt::format("FP8 GEMM 8192^3 (cuBLASLt): {:.0f} TFLOP/s", *options.fp8_gemm_tflops)
          : std::string(emulated ? "emulated: nothing is timed" : "no cuBLASLt: no FP8 ceiling");
  fmt::print("{}. {}\n\n{}", device.name(), ceiling, report_text(rows));
  for (const Row& row : rows) {
    if (!row.record.extra.contains("fused_ms_median")) continue;
    fmt::print("{} {}: preparation {:.4g} ms, whole call {:.4g} ms ({:.4g} TFLOP/s)\n", row.label,
               row.record.impl, row.record.extra["prepare_ms_median"].get<double>(),
               row.record.extra["fused_ms_median"].get<double>(),
               row.record.extra["fused_tflops"].get<double>());
  }
  return kDone;
}

ExitStatus run_forward(const ForwardArguments& arguments) {
  check(arguments);
  check_outputs({{"json", arguments.json}, {"plot", arguments.plot}});
  const bool sqnr = arguments.preset == "sqnr" || arguments.preset == "sqnr-tiny";
  if (!sqnr) mxfa::bench::preset(arguments.preset, mxfa::bench::Scale::kGpu);
  const Device device(device_options(arguments));
  return sqnr ? run_sqnr(arguments, device) : run_speed(arguments, device);
}

#else

ExitStatus run_forward(const ForwardArguments&) {
  throw Error(ErrorKind::kDevice, "device: this build has no device code (nvcc was not found)");
}

#endif

}  // namespace

Command add_forward(CLI::App& bench) {
  CLI::App* app = bench.add_subcommand("forward", "Attention forward on a GPU");
  app->footer(
      "Attention on prepared operands, the preparation, and the whole call from BF16, in turns;\n"
      "the fraction of cuBLASLt's FP8 GEMM rate in the same run; accuracy of what was timed\n"
      "against attention in float64, on rows of one head. Host time of a call back to back.\n\n"
      "Presets: peer, dense, causal, jagged, all; sqnr: accuracy on five kinds of data and up to\n"
      "16384 keys, each held to its bars (exit status 1 where one fails). On the emulator: tiny,\n"
      "sqnr-tiny.\n"
      "Examples:\n"
      "  mxfa bench forward --preset dense --json dense.json --plot dense.svg\n"
      "  mxfa bench forward --preset sqnr\n"
      "  mxfa bench forward --driver emulator --arch sm_90a --preset tiny");
  const auto arguments = std::make_shared<ForwardArguments>();
  app->add_option("--preset", arguments->preset, "Shapes, or sqnr")->capture_default_str();
  app->add_option(
         "--variants", arguments->variants,
         "Some of f32, half (scores), qk-bf16, leak-free; half and qk-bf16 on Hopper only. "
         "Default: f32,half, and f32 where the emulator is a Blackwell")
      ->delimiter(',');
  app->add_option("--driver", arguments->driver, "cuda or emulator")->capture_default_str();
  app->add_option("--arch", arguments->arch, "What the emulator is: sm_90a, sm_100a, sm_103a")
      ->capture_default_str();
  app->add_option("--device", arguments->ordinal, "Ordinal of the GPU")->capture_default_str();
  app->add_option("--driver-name", arguments->driver_name, "The driver's version, for records");
  app->add_option("--cublaslt", arguments->cublaslt, "libcublasLt to take")->type_name("FILE");
  app->add_option("--runs", arguments->runs, "Timed runs of each case")->capture_default_str();
  add_json_option(*app, arguments->json);
  app->add_option("--plot", arguments->plot, "A chart of the result")->type_name("FILE.svg");
  return {app, [arguments] {
            if (arguments->variants.empty()) {
              const bool blackwell = arguments->driver == "emulator" && arguments->arch != "sm_90a";
              arguments->variants = {"f32"};
              if (!blackwell) arguments->variants.emplace_back("half");
            }
            return run_forward(*arguments);
          }};
}

}  // namespace mxfa::cli::bench
