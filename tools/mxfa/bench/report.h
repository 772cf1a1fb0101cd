#pragma once

#include <string>
#include <vector>

#include "io/json_records.h"

/// What every `mxfa bench ...` prints and draws from its records.
namespace mxfa::cli::bench {

/// A record and the name of its shape.
struct Row {
  std::string label;
  io::Record record;
};

/// One line a record: routine, shape, what ran, median and range in ms, rate, fraction of the
/// ceiling, SQNR.
std::string report_text(const std::vector<Row>& rows);

/// Bars by routine and shape: the fraction of its ceiling that each implementation reaches; its
/// rate where no ceiling was measured, its SQNR where nothing was timed.
std::string report_svg(const std::string& title, const std::vector<Row>& rows);

struct Bar {
  std::string category, series;
  double value = 0;
};
struct ChartText {
  std::string title, subtitle, x_label, y_label;
};
/// In the order in which categories and series come.
std::string bars_svg(const ChartText& text, const std::vector<Bar>& bars);

}  // namespace mxfa::cli::bench
