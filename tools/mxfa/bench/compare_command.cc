#include "bench/compare_command.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>

#include "bench/report.h"
#include "core/check.h"

namespace mxfa::cli::bench {
namespace {

constexpr std::string_view kWholeCall = "whole call";
constexpr const char* kPreparedOrWhole =
    "; mxfa on prepared MXFP8 operands, whole calls from BF16 tensors";

struct CompareArguments {
  std::string input;
  std::string routine;  ///< empty: all
  std::string plot;
};

/// TFLOP/s of one routine by shape and implementation, in the order of the file.
struct Rates {
  std::string routine;
  std::vector<std::string> shapes, impls;
  std::map<std::pair<std::string, std::string>, double> tflops;

  double at(const std::string& shape, const std::string& impl) const {
    const auto found = tflops.find({shape, impl});
    return found == tflops.end() ? std::numeric_limits<double>::quiet_NaN() : found->second;
  }
  /// The best of all but mxfa's whose name ends in `kind`; NaN where there is none.
  double best_peer(const std::string& shape, std::string_view kind) const {
    double best = std::numeric_limits<double>::quiet_NaN();
    for (const std::string& impl : impls) {
      if (impl.starts_with("mxfa") || !impl.ends_with(kind)) continue;
      best = std::fmax(best, at(shape, impl));
    }
    return best;
  }
};

struct RatesOfFile {
  std::string device;
  std::vector<Rates> routines;
};

std::string shape_name(const io::Json& shape) {
  const int heads = shape.value("num_heads", 0), heads_kv = shape.value("num_heads_kv", heads);
  const int head_dim = shape.value("head_dim", 128);
  std::string name =
      fmt::format("{}x{}x{}", shape.value("batch", 0), heads, shape.value("seqlen_q", 0));
  const bool jagged = shape.value("jagged", false);
  if (jagged) {
    const double mean = shape.value("total_k", 0.0) / std::max(1, shape.value("batch", 0));
    name += fmt::format(" keys to {}, mean {:.0f}", shape.value("seqlen_k", 0), mean);
  } else if (shape.value("seqlen_q", 0) != shape.value("seqlen_k", 0)) {
    name += fmt::format("x{}", shape.value("seqlen_k", 0));
  }
  if (heads_kv != heads) name += fmt::format(" kv{}", heads_kv);
  if (head_dim != 128) name += fmt::format(" d{}", head_dim);
  return !jagged && shape.value("causal", false) ? name + " causal" : name;
}

void add_once(std::vector<std::string>& values, const std::string& value) {
  if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
}

io::Json read_json(const std::string& path) {
  if (std::filesystem::is_directory(path)) {
    throw Error(ErrorKind::kIo, fmt::format("{}: cannot read: a folder", path));
  }
  std::ifstream file(path);
  if (!file) throw Error(ErrorKind::kIo, fmt::format("{}: cannot open", path));
  io::Json records = io::Json::parse(file, nullptr, false);
  if (!records.is_array()) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("{}: expected a JSON array of records", path));
  }
  return records;
}

Rates& rates_of(RatesOfFile& all, const std::string& routine) {
  for (Rates& rates : all.routines) {
    if (rates.routine == routine) return rates;
  }
  all.routines.push_back({.routine = routine, .shapes = {}, .impls = {}, .tflops = {}});
  return all.routines.back();
}

RatesOfFile read_rates(const CompareArguments& arguments) {
  RatesOfFile all;
  std::vector<std::string> others;
  bool emulated = false;
  for (const io::Json& record : read_json(arguments.input)) {
    const io::Json device = record.is_object() ? record.value("device", io::Json()) : io::Json();
    emulated |= device.is_string() && device.get<std::string>().starts_with("mxemu");
    if (!record.is_object() || !record.contains("tflops") || !record.contains("case")) continue;
    if (!record["tflops"].is_number() || !record["case"].is_object()) continue;
    const std::string routine = record.value("routine", "");
    if (!arguments.routine.empty() && routine != arguments.routine) {
      add_once(others, routine);
      continue;
    }
    Rates& rates = rates_of(all, routine);
    const std::string shape = shape_name(record["case"]), impl = record.value("impl", "");
    add_once(rates.shapes, shape);
    add_once(rates.impls, impl);
    rates.tflops[{shape, impl}] = record["tflops"].get<double>();
    all.device = record.value("device", "");
  }
  core::expect(!all.routines.empty(), arguments.routine.empty() ? arguments.input : "routine",
               arguments.routine.empty() ? std::string("records with a case and tflops")
                                         : fmt::format("one of {}", fmt::join(others, ", ")),
               !arguments.routine.empty() ? arguments.routine
               : emulated                 ? std::string("none (emulated records hold no speed)")
                                          : std::string("none"));
  return all;
}

std::string table_of(const Rates& rates) {
  const auto cell = [](double value, const char* form) {
    return std::isnan(value) ? std::string("-") : fmt::format(fmt::runtime(form), value);
  };
  std::vector<std::vector<std::string>> table{
      {"shape", "what", "TFLOP/s", "x best BF16", "x best FP8"}};
  for (const std::string& shape : rates.shapes) {
    for (const std::string& impl : rates.impls) {
      const double rate = rates.at(shape, impl);
      if (std::isnan(rate)) continue;
      table.push_back({shape, impl, cell(rate, "{:.4g}"),
                       cell(rate / rates.best_peer(shape, "bf16"), "{:.2f}"),
                       cell(rate / rates.best_peer(shape, "fp8"), "{:.2f}")});
    }
  }
  return format_table(table);
}

std::string chart_of(const RatesOfFile& all) {
  std::vector<Bar> bars;
  const bool one = all.routines.size() == 1;
  for (const Rates& rates : all.routines) {
    for (const std::string& impl : rates.impls) {
      for (const std::string& shape : rates.shapes) {
        bars.push_back({one ? shape : rates.routine + " " + shape, impl, rates.at(shape, impl)});
      }
    }
  }
  const auto whole = [](const Rates& rates) {
    return std::ranges::any_of(rates.impls, [](const std::string& impl) {
      return impl.find(kWholeCall) != std::string::npos;
    });
  };
  const bool any_whole = std::ranges::any_of(all.routines, whole);
  return bars_svg({.title = one ? all.routines.front().routine : "Rates",
                   .subtitle = all.device + (any_whole ? kPreparedOrWhole : ""),
                   .x_label = "batch x heads x queries (x keys)",
                   .y_label = "TFLOP/s"},
                  bars);
}

ExitStatus run_compare(const CompareArguments& arguments) {
  check_outputs({{"plot", arguments.plot}}, arguments.input);
  const RatesOfFile all = read_rates(arguments);
  fmt::print("{}\n", all.device);
  for (const Rates& rates : all.routines) {
    fmt::print("\n{}\n{}", rates.routine, table_of(rates));
  }
  write_svg(arguments.plot, [&] { return chart_of(all); });
  return kDone;
}

}  // namespace

Command add_compare(CLI::App& bench) {
  CLI::App* app = bench.add_subcommand("compare", "Rates of a result file side by side");
  app->footer(
      "Reads records (benchmarks/peers/run.py, --json of the others) and shows, shape by shape,\n"
      "what each implementation reaches and how it compares with the best BF16 and FP8 library.\n\n"
      "Example:\n"
      "  mxfa bench compare peers.json --plot peers.svg");
  const auto arguments = std::make_shared<CompareArguments>();
  app->add_option("input", arguments->input, "Records")
      ->type_name("FILE")
      ->required()
      ->check(kFileName);
  app->add_option("--routine", arguments->routine,
                  "Of these records: attention_forward, attention_backward. Default: all");
  add_svg_option(*app, "--plot", arguments->plot, "Bars by shape");
  return {app, [arguments] { return run_compare(*arguments); }};
}

}  // namespace mxfa::cli::bench
