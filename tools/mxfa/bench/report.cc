#include "bench/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "command.h"
#include "io/plot.h"

namespace mxfa::cli::bench {
namespace {

std::string rate_text(const io::Record& record) {
  if (record.tflops) return fmt::format("{:.4g} TFLOP/s", *record.tflops);
  if (record.gbps) return fmt::format("{:.4g} GB/s", *record.gbps);
  return "";
}

std::string ceiling_text(const io::Record& record) {
  if (!record.fraction_of_ceiling || !record.ceiling) return "";
  return fmt::format("{:.0f}% of {}", 100 * *record.fraction_of_ceiling, record.ceiling->name);
}

std::string accuracy_text(const io::Record& record) {
  std::string text;
  for (const auto& [tensor, db] : record.sqnr_db) {
    text += fmt::format("{}{} {:.1f}", text.empty() ? "" : ", ", tensor, db);
  }
  return text.empty() ? text : text + " dB";
}

/// Index of `value` in `values`, where it is put if it is new.
std::size_t index_of(std::vector<std::string>& values, const std::string& value) {
  const auto found = std::find(values.begin(), values.end(), value);
  if (found != values.end()) return static_cast<std::size_t>(found - values.begin());
  values.push_back(value);
  return values.size() - 1;
}

}  // namespace

std::string report_text(const std::vector<Row>& rows) {
  std::vector<std::vector<std::string>> table{
      {"routine", "shape", "what", "median ms", "min", "max", "rate", "of ceiling", "SQNR"}};
  for (const auto& [label, record] : rows) {
    const io::TimingRecord timing = record.timing.value_or(io::TimingRecord{});
    const bool timed = record.timing.has_value();
    const auto ms = [timed](double value) {
      return timed ? fmt::format("{:.4g}", value) : std::string();
    };
    table.push_back({record.routine, label, record.impl, ms(timing.ms_median), ms(timing.ms_min),
                     ms(timing.ms_max), rate_text(record), ceiling_text(record),
                     accuracy_text(record)});
  }
  return format_table(table);
}

std::string report_svg(const std::string& title, const std::vector<Row>& rows) {
  const auto any = [&](auto has) {
    return std::ranges::any_of(rows, [&](const Row& row) { return has(row.record); });
  };
  const bool ceilings = any([](const io::Record& x) { return x.fraction_of_ceiling.has_value(); });
  const bool rates = any([](const io::Record& x) { return x.tflops.has_value(); });
  std::vector<Bar> bars;
  for (const auto& [label, record] : rows) {
    const std::string category = record.routine + " " + label;
    if (ceilings) {
      if (!record.fraction_of_ceiling) continue;
      bars.push_back({category, record.impl, 100 * *record.fraction_of_ceiling});
    } else if (rates) {
      if (record.tflops) bars.push_back({category, record.impl, *record.tflops});
    } else {
      for (const auto& [tensor, db] : record.sqnr_db) {
        bars.push_back({category + ", " + tensor, record.impl, db});
      }
    }
  }
  return bars_svg({.title = title,
                   .subtitle = rows.empty() ? "" : rows.front().record.device,
                   .x_label = ceilings || rates ? "routine and shape" : "routine, shape and tensor",
                   .y_label = ceilings ? "% of its ceiling"
                              : rates  ? "TFLOP/s"
                                       : "SQNR (dB)"},
                  bars);
}

std::string bars_svg(const ChartText& text, const std::vector<Bar>& bars) {
  std::vector<std::string> categories, names;
  for (const Bar& bar : bars) {
    index_of(categories, bar.category);
    index_of(names, bar.series);
  }
  io::BarChart chart{.title = text.title,
                     .subtitle = text.subtitle,
                     .x_label = text.x_label,
                     .y_label = text.y_label,
                     .categories = categories,
                     .series = {},
                     .guides = {}};
  for (const std::string& name : names) {
    chart.series.push_back(
        {name, std::vector<double>(categories.size(), std::numeric_limits<double>::quiet_NaN())});
  }
  for (const Bar& bar : bars) {
    chart.series[index_of(names, bar.series)].values[index_of(categories, bar.category)] =
        bar.value;
  }
  return io::bar_chart_svg(chart);
}

}  // namespace mxfa::cli::bench
