#include "report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "io/plot.h"

namespace mxfa::examples {
namespace {

std::string verdict(const Outcome& outcome, std::size_t arm) {
  const Spread base = spread_of(outcome.arms[0].finals());
  const Spread spread = spread_of(outcome.arms[arm].finals());
  const std::vector<double> differences = outcome.differences(arm);
  const Spread difference = spread_of(differences);
  const double error = difference.deviation / std::sqrt(static_cast<double>(differences.size()));
  return fmt::format(
      "{}: {:+.6f} +- {:.6f} (standard error) against BF16; the mean {:.6f} lies {} BF16's seed "
      "spread, {:.6f} to {:.6f}\n",
      outcome.arms[arm].arm.name, difference.mean, error, spread.mean,
      outcome.within_spread(arm) ? "within" : "outside", base.low, base.high);
}

io::LineChart chart_of(const Outcome& outcome, const ArmResult& result,
                       std::pair<double, double> range) {
  const Spread spread = spread_of(result.finals());
  io::LineChart chart;
  chart.title = fmt::format("Training in {}", result.arm.name);
  chart.subtitle =
      fmt::format("final {:.5f} +- {:.5f} ({} seeds, {} held-out users); curves: {} others",
                  spread.mean, spread.deviation, result.runs.size(), kFinalUsers, kCurveUsers);
  chart.x_label = "step";
  chart.y_label = "normalized entropy, held out";
  chart.y_range = range;
  chart.markers = false;
  for (std::size_t i = 0; i < result.runs.size(); ++i) {
    chart.series.push_back(
        {fmt::format("seed {}", i), result.runs[i].step, result.runs[i].entropy});
  }
  chart.guides = {{outcome.best_entropy, "true probabilities"}};
  return chart;
}

}  // namespace

std::string report_text(const Outcome& outcome, const Settings& settings) {
  std::string text = fmt::format(
      "normalized entropy of {} held-out users after {} steps of {} users; {} recipe{}\n{:5}",
      kFinalUsers, settings.steps, settings.users, settings.recipe,
      settings.queries_bf16 ? ", queries in BF16" : "", "seed");
  const auto row = [&](const std::string& label, const auto& value) {
    text += fmt::format("\n{:5}", label);
    for (const ArmResult& result : outcome.arms) text += fmt::format("{:>16.6f}", value(result));
  };
  for (const ArmResult& result : outcome.arms) text += fmt::format("{:>16}", result.arm.name);
  for (std::size_t i = 0; i < outcome.arms[0].runs.size(); ++i) {
    row(fmt::format("{}", i),
        [i](const ArmResult& result) { return result.runs[i].final_entropy; });
  }
  row("mean", [](const ArmResult& result) { return spread_of(result.finals()).mean; });
  if (settings.seeds > 1) {
    row("std", [](const ArmResult& result) { return spread_of(result.finals()).deviation; });
  }
  text += fmt::format("\nwho knows the true probabilities: {:.6f}\n", outcome.best_entropy);
  for (std::size_t arm = 1; arm < outcome.arms.size() && settings.seeds > 1; ++arm) {
    text += verdict(outcome, arm);
  }
  if (settings.seeds == 1) text += "no verdict: a spread needs two seeds or more\n";
  return text;
}

std::string report_svg(const Outcome& outcome) {
  double low = outcome.best_entropy, high = 1;
  for (const ArmResult& result : outcome.arms) {
    for (const Run& run : result.runs) {
      low = std::min(low, std::ranges::min(run.entropy));
      high = std::max(high, std::ranges::max(run.entropy));
    }
  }
  std::vector<io::LineChart> charts;
  for (const ArmResult& result : outcome.arms) {
    charts.push_back(chart_of(outcome, result, {low, high}));
  }
  return io::line_charts_svg(charts, "Normalized entropy along training, BF16 and MXFP8");
}

std::vector<io::Record> report_records(const Outcome& outcome, const Settings& settings) {
  std::vector<io::Record> records;
  for (std::size_t arm = 0; arm < outcome.arms.size(); ++arm) {
    const ArmResult& result = outcome.arms[arm];
    io::Record& record = records.emplace_back();
    const Spread spread = spread_of(result.finals());
    record.routine = "train_synthetic";
    record.impl = fmt::format("mxfa {}", result.arm.name);
    record.device = io::cpu_name();
    record.date = io::utc_date();
    record.extra = {{"steps", settings.steps},
                    {"users", settings.users},
                    {"learning_rate", settings.learning_rate},
                    {"best_entropy", outcome.best_entropy},
                    {"final_entropy", result.finals()},
                    {"mean", spread.mean},
                    {"std", spread.deviation}};
    if (arm > 0) {
      record.extra["recipe"] = settings.recipe;
      record.extra["queries_bf16"] = settings.queries_bf16;
      record.extra["mean_difference"] = spread_of(outcome.differences(arm)).mean;
      record.extra["within_spread"] = outcome.within_spread(arm);
    }
    for (const Run& run : result.runs) record.extra["curves"].push_back(run.entropy);
    record.extra["curve_steps"] = result.runs[0].step;
  }
  return records;
}

}  // namespace mxfa::examples
