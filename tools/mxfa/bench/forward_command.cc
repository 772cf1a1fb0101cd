#include "bench/forward_command.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>
#include <optional>

#include "bench/device_bench.h"
#include "core/check.h"
#include "io/plot.h"
#include "io/progress.h"
#ifdef MXFA_HAS_DRIVER
#include "device/forward_suite.h"
#include "device/sqnr_suite.h"
#endif

namespace mxfa::cli::bench {
namespace {

struct ForwardArguments {
  DeviceArguments device;
  std::optional<double> slack_db = std::nullopt;

  bool sqnr() const { return device.preset == "sqnr" || device.preset == "sqnr-tiny"; }
};

#ifdef MXFA_HAS_DRIVER

/// Of the bars: kinds of scores only.
std::vector<bool> half_scores(const DeviceArguments& arguments) {
  std::vector<bool> result;
  for (const std::string& variant : arguments.variants) {
    core::expect(variant == "f32" || variant == "half", "variants", "f32, half with sqnr",
                 core::later("'{}'", variant));
    result.push_back(variant == "half");
  }
  return result;
}

std::string sqnr_text(const std::vector<io::Record>& records) {
  std::vector<std::vector<std::string>> table{{"data", "keys", "call", "scores", "O kern dB", "bar",
                                               "fixed bar", "O f64 dB", "bar", "LSE recipe", "bar",
                                               "LSE f64", "bar", "verdict"}};
  std::string missed;
  for (const io::Record& record : records) {
    const auto& own = record.extra["lse_recipe_relative"];
    const auto& f64 = record.extra["lse_f64_relative"];
    const auto db = [](double value) { return fmt::format("{:.2f}", value); };
    const auto small = [](const io::Json& value) {
      return fmt::format("{:.2g}", value.get<double>());
    };
    const io::SqnrRecord& o = record.sqnr[0];
    const std::string dataset = record.extra["dataset"].get<std::string>();
    const std::string call = *record.shape.jagged ? "jagged" : "dense";
    table.push_back({dataset, fmt::format("{}", *record.shape.seqlen_k), call,
                     record.impl.find("half") != std::string::npos ? "half" : "f32", db(o.db),
                     db(o.threshold_db), o.fixed_db ? db(*o.fixed_db) : "-", db(record.sqnr[1].db),
                     db(record.sqnr[1].threshold_db), small(own["value"]), small(own["bar"]),
                     small(f64["value"]), small(f64["bar"]),
                     mxfa::bench::all_pass({record}) ? "pass" : "FAIL"});
    if (!o.fixed_db || o.fixed_verdict == "pass") continue;
    missed += fmt::format("{} with {} keys, {}: {} dB, fixed bar {}: {}\n", dataset,
                          *record.shape.seqlen_k, call, db(o.db), db(*o.fixed_db), o.fixed_verdict);
  }
  return format_table(table) + missed;
}

/// Bars of o against both references, one for each dataset and number of keys.
std::string sqnr_svg(const std::vector<io::Record>& records, const std::string& device) {
  io::BarChart chart{.title = "Attention forward: SQNR of O",
                     .subtitle = device,
                     .x_label = "data and keys",
                     .y_label = "SQNR (dB)",
                     .categories = {},
                     .series = {{"against float64 on the operands", {}},
                                {"its bar", {}},
                                {"against float64 on BF16", {}},
                                {"its bar", {}}},
                     .guides = {}};
  for (const io::Record& record : records) {
    if (record.impl.find("half") != std::string::npos || *record.shape.jagged) continue;
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
  const DeviceArguments& common = arguments.device;
  mxfa::bench::SqnrOptions options{.half_scores = half_scores(common)};
  options.slack_db = arguments.slack_db.value_or(options.slack_db);
  if (common.preset == "sqnr-tiny") {
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
    record = complete_record(std::move(record), device.name(), driver_text(common, device));
  }
  fmt::print("{}\n\n{}", device.name(), sqnr_text(records));
  write_svg(common.plot, [&] { return sqnr_svg(records, device.name()); });
  write_json(common.json, records);
  return mxfa::bench::all_pass(records) ? kDone : kCheckFailed;
}

ExitStatus run_forward(const ForwardArguments& arguments) {
  const DeviceArguments& common = arguments.device;
  static constexpr std::string_view kPresets[] = {"peer", "dense", "causal", "jagged",
                                                  "all",  "sqnr",  "tiny",   "sqnr-tiny"};
  using namespace mxfa::bench;
  check_device_arguments(common, {kForwardVariants, kPresets, std::span(kPresets).last(2)});
  core::expect(arguments.sqnr() || !arguments.slack_db, "slack-db", "none without --preset sqnr",
               core::later("{}", arguments.slack_db.value_or(0)));
  if (arguments.sqnr()) half_scores(common);
  const Device device(device_options(common));
  if (arguments.sqnr()) return run_sqnr(arguments, device);
  return run_speed_of<ForwardCase>(common, device, kForwardVariants);
}

#else

ExitStatus run_forward(const ForwardArguments&) {
  throw Error(ErrorKind::kDevice, "device: this build has no device code (" MXFA_WITHOUT_CUDA ")");
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
  add_device_options(*app, arguments->device,
                     "Some of f32, half (scores), qk-bf16, leak-free, leak-free-half; but f32 and "
                     "leak-free on Hopper only. "
                     "Default: f32,half, and f32 where the emulator is a Blackwell");
  app->add_option(
         "--slack-db", arguments->slack_db,
         "With sqnr: how far below the recipe and docs/numerics.md the bars lie. Default: 1")
      ->check(kFiniteNumber);
  return {app, [arguments] {
            DeviceArguments& device = arguments->device;
            if (device.variants.empty()) {
              const bool blackwell = device.emulated() && device.emulated_arch() != "sm_90a";
              device.variants = {"f32"};
              if (!blackwell) device.variants.emplace_back("half");
            }
            return run_forward(*arguments);
          }};
}

}  // namespace mxfa::cli::bench
