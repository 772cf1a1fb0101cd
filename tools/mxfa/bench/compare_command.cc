#include "bench/compare_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <memory>

#include "core/check.h"
#include "io/atomic_file.h"
#include "io/plot.h"

namespace mxfa::cli::bench {
namespace {

struct CompareArguments {
  std::string input;
  std::string routine = "attention_forward";
  std::string plot;
};

/// TFLOP/s by shape and implementation, in the order of the file.
struct Rates {
  std::vector<std::string> shapes, impls;
  std::map<std::pair<std::string, std::string>, double> tflops;
  std::string device;

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

std::string shape_name(const io::Json& shape) {
  std::string name = fmt::format("{}x{}x{}", shape.value("batch", 0), shape.value("num_heads", 0),
                                 shape.value("seqlen_q", 0));
  if (shape.value("jagged", false)) {
    const double keys = shape.value("total_k", 0.0) / 1e6;
    return name + fmt::format(" keys to {} ({:.2f} M)", shape.value("seqlen_k", 0), keys);
  }
  if (shape.value("seqlen_q", 0) != shape.value("seqlen_k", 0)) {
    name += fmt::format("x{}", shape.value("seqlen_k", 0));
  }
  return shape.value("causal", false) ? name + " causal" : name;
}

void add_once(std::vector<std::string>& values, const std::string& value) {
  if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
}

Rates read_rates(const CompareArguments& arguments) {
  std::ifstream file(arguments.input);
  if (!file) throw Error(ErrorKind::kIo, fmt::format("{}: cannot open", arguments.input));
  const io::Json records = io::Json::parse(file, nullptr, false);
  core::expect(records.is_array(), "input", "a JSON array of records", arguments.input);
  Rates rates;
  for (const io::Json& record : records) {
    const bool wanted = record.is_object() && record.value("routine", "") == arguments.routine &&
                        record.contains("tflops") && record.contains("case");
    if (!wanted || !record["tflops"].is_number() || !record["case"].is_object()) continue;
    const std::string shape = shape_name(record["case"]), impl = record.value("impl", "");
    add_once(rates.shapes, shape);
    add_once(rates.impls, impl);
    rates.tflops[{shape, impl}] = record["tflops"].get<double>();
    rates.device = record.value("device", "");
  }
  core::expect(!rates.shapes.empty(), "input",
               fmt::format("records of {} with tflops", arguments.routine), "none");
  return rates;
}

ExitStatus run_compare(const CompareArguments& arguments) {
  check_outputs({{"plot", arguments.plot}}, arguments.input);
  const Rates rates = read_rates(arguments);
  const auto cell = [](double value, const char* form) {
    return std::isnan(value) ? std::string("-") : fmt::format(fmt::runtime(form), value);
  };
  std::vector<std::vector<std::string>> table{
      {"shape", "what", "TFLOP/s", "x best BF16", "x best FP8"}};
  for (const std::string& shape : rates.shapes) {
    for (const std::string& impl : rates.impls) {
      const double rate = rates.at(shape, impl);
      if (std::isnan(rate)) continue;
      table.push_back({shape, impl, cell(rate, "{:.0f}"),
                       cell(rate / rates.best_peer(shape, "bf16"), "{:.2f}"),
                       cell(rate / rates.best_peer(shape, "fp8"), "{:.2f}")});
    }
  }
  if (!arguments.plot.empty()) {
    io::BarChart chart{.title = arguments.routine,
                       .subtitle = rates.device,
                       .y_label = "TFLOP/s",
                       .categories = rates.shapes,
                       .series = {},
                       .guides = {}};
    for (const std::string& impl : rates.impls) {
      chart.series.push_back({impl, {}});
      for (const std::string& shape : rates.shapes) {
        chart.series.back().values.push_back(rates.at(shape, impl));
      }
    }
    io::write_text_file(arguments.plot, io::bar_chart_svg(chart));
  }
  fmt::print("{}\n\n{}", rates.device, format_table(table));
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
  app->add_option("input", arguments->input, "Records")->type_name("FILE")->required();
  app->add_option("--routine", arguments->routine, "Of these records")->capture_default_str();
  app->add_option("--plot", arguments->plot, "Bars by shape")->type_name("FILE.svg");
  return {app, [arguments] { return run_compare(*arguments); }};
}

}  // namespace mxfa::cli::bench
