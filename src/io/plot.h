#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

/// Charts as stand-alone SVG files: light background, a colour-blind safe palette (Okabe and Ito),
/// no script, no external font. Text is escaped. Values that are NaN leave a gap.
namespace mxfa::io {

/// A horizontal line across the chart, such as a pass bar.
struct PlotGuide {
  double y = 0;
  std::string label;
};

struct BarSeries {
  std::string name;
  std::vector<double> values;  ///< one a category
};

/// Groups of bars: one group for each category, one bar in it for each series. A bar that does not
/// fit (above y_cap, infinite) is drawn to the top and marked with a triangle.
struct BarChart {
  std::string title;
  std::string subtitle;  ///< may be empty
  std::string x_label = {};
  std::string y_label;
  std::vector<std::string> categories;
  std::vector<BarSeries> series;
  std::vector<PlotGuide> guides;
  std::optional<double> y_cap = {};  ///< largest value that the axis is stretched for
};

struct LineSeries {
  std::string name;
  std::vector<double> x;
  std::vector<double> y;
};

struct LineChart {
  std::string title;
  std::string subtitle;
  std::string x_label;
  std::string y_label;
  bool x_log2 = false;  ///< x on a base-2 logarithmic axis; every x must be above 0
  bool markers = true;  ///< at each point
  /// What the y axis covers at least, in place of 0 and the data.
  std::optional<std::pair<double, double>> y_range = {};
  std::vector<LineSeries> series;
  std::vector<PlotGuide> guides;
};

/// Throw Error where a series' length does not match, or a coordinate is not finite on an axis
/// that needs it.
std::string bar_chart_svg(const BarChart& chart);
std::string line_chart_svg(const LineChart& chart);

/// Charts beside each other in one document; `title` is for screen readers.
std::string line_charts_svg(const std::vector<LineChart>& charts, const std::string& title);

/// About `count` round numbers (1, 2 or 5 times a power of ten) that cover [low, high].
std::vector<double> nice_ticks(double low, double high, int count);

}  // namespace mxfa::io
