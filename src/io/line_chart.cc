#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "io/plot.h"
#include "io/plot_figure.h"

namespace mxfa::io {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double x_position(const LineChart& chart, double x) { return chart.x_log2 ? std::log2(x) : x; }

void check_lines(const LineChart& chart) {
  for (const LineSeries& series : chart.series) {
    core::expect(series.x.size() == series.y.size(), series.name, "as many y as x",
                 fmt::format("{} x and {} y", series.x.size(), series.y.size()));
    for (const double x : series.x) {
      core::expect(std::isfinite(x_position(chart, x)), series.name,
                   chart.x_log2 ? "finite x above 0" : "finite x", fmt::format("{}", x));
    }
  }
}

/// x ticks: the data's own values on a logarithmic axis, round numbers otherwise.
std::vector<double> x_ticks(const LineChart& chart, double low, double high) {
  if (!chart.x_log2) return nice_ticks(low, high, 8);
  std::vector<double> ticks;
  for (const LineSeries& series : chart.series) {
    ticks.insert(ticks.end(), series.x.begin(), series.x.end());
  }
  std::sort(ticks.begin(), ticks.end());
  ticks.erase(std::unique(ticks.begin(), ticks.end()), ticks.end());
  return ticks;
}

struct Range {
  double low = kInfinity;
  double high = -kInfinity;
  void include(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

/// Never empty, so that it can be divided by.
Range x_range(const LineChart& chart) {
  Range range;
  for (const LineSeries& series : chart.series) {
    for (const double x : series.x) range.include(x);
  }
  if (!(range.low <= range.high)) return {1, 2};
  if (range.low == range.high) range.high = chart.x_log2 ? 2 * range.low : range.low + 1;
  return range;
}

/// Ticks below the axis; a crowded axis drops labels, not ticks.
template <class ToPixel>
void draw_x_ticks(SvgCanvas& canvas, const Figure& figure, const std::vector<double>& ticks,
                  const ToPixel& x_pixel) {
  double free_from = -kInfinity;
  for (const double tick : ticks) {
    const double x = x_pixel(tick);
    canvas.line({x, figure.bottom()}, {x, figure.bottom() + 5},
                fmt::format("stroke=\"{}\" stroke-width=\"1.2\"", kAxisColor));
    const double half = text_width(tick_label(tick), kTickSize) / 2;
    if (x - half < free_from) continue;
    canvas.text({x, figure.bottom() + 1.5 * kTickSize}, tick_label(tick),
                {.size = kTickSize, .anchor = Anchor::kMiddle});
    free_from = x + half + 8;
  }
}

void draw_line_series(SvgCanvas& canvas, const Figure& figure, const LineSeries& series, int index,
                      const std::vector<double>& x_pixels, bool markers) {
  const std::string color = series_color(index);
  const std::string style =
      fmt::format("stroke=\"{}\" stroke-width=\"2\"{}", color, series_dashes(index));
  std::vector<Point> piece;
  const auto flush = [&] {
    if (piece.size() > 1) canvas.polyline(piece, style);
    for (const Point& point : piece) {
      if (markers || piece.size() == 1) canvas.marker(point, index, color);
    }
    piece.clear();
  };
  for (std::size_t i = 0; i < series.y.size(); ++i) {
    if (std::isfinite(series.y[i])) {
      piece.push_back({x_pixels[i], figure.y_pixel(series.y[i])});
    } else {
      flush();
    }
  }
  flush();
}

struct Drawing {
  SvgCanvas canvas;
  double width = 0;
  double height = 0;
};

Drawing draw(const LineChart& chart) {
  check_lines(chart);
  Figure figure = make_figure(chart.title, chart.subtitle, chart.y_label, chart.guides);
  figure.x_label = chart.x_label;
  figure.lines = true;
  figure.plot_width = 760;
  figure.bottom_margin = 1.8 * kTickSize;
  Range y_range{0, 0};
  for (const LineSeries& series : chart.series) {
    figure.legend.push_back(series.name);
    for (const double y : series.y) y_range.include(y);
  }
  if (chart.y_range) y_range = {chart.y_range->first, chart.y_range->second};
  set_frame(figure, y_range.low, y_range.high);
  Range range = x_range(chart);
  const std::vector<double> ticks = x_ticks(chart, range.low, range.high);
  if (!chart.x_log2) range = {ticks.front(), ticks.back()};
  const auto x_pixel = [&](double x) {
    constexpr double kInset = 24;
    const double share = (x_position(chart, x) - x_position(chart, range.low)) /
                         (x_position(chart, range.high) - x_position(chart, range.low));
    return figure.left + kInset + share * (figure.plot_width - 2 * kInset);
  };
  Drawing drawing;
  SvgCanvas& canvas = drawing.canvas;
  draw_header(canvas, figure);
  draw_axes(canvas, figure);
  draw_x_ticks(canvas, figure, ticks, x_pixel);
  draw_guides(canvas, figure);
  for (std::size_t s = 0; s < chart.series.size(); ++s) {
    std::vector<double> x_pixels;
    for (const double x : chart.series[s].x) x_pixels.push_back(x_pixel(x));
    draw_line_series(canvas, figure, chart.series[s], static_cast<int>(s), x_pixels, chart.markers);
  }
  drawing.width = figure.width();
  drawing.height = figure.height();
  return drawing;
}

}  // namespace

std::string line_chart_svg(const LineChart& chart) { return line_charts_svg({chart}, chart.title); }

std::string line_charts_svg(const std::vector<LineChart>& charts, const std::string& title) {
  SvgCanvas canvas;
  double width = 0, height = 0;
  for (const LineChart& chart : charts) {
    const Drawing drawing = draw(chart);
    if (charts.size() == 1) return drawing.canvas.document(drawing.width, drawing.height, title);
    canvas.embed({width, 0}, drawing.canvas);
    width += drawing.width;
    height = std::max(height, drawing.height);
  }
  return canvas.document(width, height, title);
}

}  // namespace mxfa::io
