#include "io/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "io/svg_canvas.h"

namespace mxfa::io {
namespace {

constexpr double kPlotHeight = 320;
constexpr double kMargin = 18;
constexpr double kTickSize = 13;
constexpr double kLabelSize = 14;
constexpr double kTitleSize = 18;
constexpr double kLegendRow = 22;
constexpr std::string_view kAxisColor = "#444444";

/// What bars and lines have in common: the texts, and where everything lies.
struct Figure {
  std::string title;
  std::string subtitle;
  std::string x_label;
  std::string y_label;
  std::vector<std::string> legend;
  std::vector<PlotGuide> guides;
  double y_low = 0;
  double y_high = 1;
  double plot_width = 0;
  double bottom_margin = 0;  ///< below the axis, for tick labels
  bool lines = false;        ///< legend swatches are lines with markers

  double left = 0;
  double y_label_x = 0;
  double top = 0;
  double right_margin = 0;
  std::vector<double> y_ticks;

  double width() const { return left + plot_width + right_margin; }
  double bottom() const { return top + kPlotHeight; }
  double height() const {
    return bottom() + bottom_margin + (x_label.empty() ? 0 : 1.6 * kLabelSize) + kMargin;
  }
  double y_pixel(double y) const { return bottom() - (y - y_low) / (y_high - y_low) * kPlotHeight; }
};

double guide_label_width(const Figure& figure) {
  double width = 0;
  for (const PlotGuide& guide : figure.guides) {
    width = std::max(width, text_width(guide.label, kTickSize));
  }
  return width;
}

/// Fixes the y range on round ticks and the margins around the plot.
void set_frame(Figure& figure, double low, double high) {
  for (const PlotGuide& guide : figure.guides) {
    low = std::min(low, guide.y);
    high = std::max(high, guide.y);
  }
  if (!(high > low)) high = low + 1;
  figure.y_ticks = nice_ticks(low, high, 7);
  figure.y_low = figure.y_ticks.front();
  figure.y_high = figure.y_ticks.back();
  double tick_width = 0;
  for (const double tick : figure.y_ticks) {
    tick_width = std::max(tick_width, text_width(tick_label(tick), kTickSize));
  }
  figure.y_label_x = kMargin + kLabelSize;
  figure.left = kMargin + 1.6 * kLabelSize + tick_width + 8;
  figure.right_margin = kMargin + (figure.guides.empty() ? 0 : 8 + guide_label_width(figure));
}

/// Title, subtitle and legend; sets figure.top to where the plot begins.
void draw_header(SvgCanvas& canvas, Figure& figure) {
  const double room = figure.width() - 2 * kMargin;
  double y = kMargin;
  constexpr double kBoldWidth = 1.15;  // of bold letters against the estimate for plain ones
  for (const std::string& line : wrap_text(figure.title, kTitleSize, room / kBoldWidth)) {
    y += 1.25 * kTitleSize;
    canvas.text({kMargin, y}, line, {.size = kTitleSize, .bold = true});
  }
  for (const std::string& line : wrap_text(figure.subtitle, kTickSize, room)) {
    y += 1.4 * kTickSize;
    canvas.text({kMargin, y}, line, {.size = kTickSize, .color = "#555555"});
  }
  y += 10;
  constexpr double kSwatch = 26;
  double x = kMargin;
  if (!figure.legend.empty()) y += kLegendRow;
  for (std::size_t i = 0; i < figure.legend.size(); ++i) {
    const int index = static_cast<int>(i);
    const double width = kSwatch + 6 + text_width(figure.legend[i], kTickSize) + 18;
    if (x > kMargin && x + width > kMargin + room) {
      x = kMargin;
      y += kLegendRow;
    }
    const std::string color = series_color(index);
    if (figure.lines) {
      canvas.line({x, y - 4.5}, {x + kSwatch, y - 4.5},
                  fmt::format("stroke=\"{}\" stroke-width=\"2\"{}", color,
                              series_is_hatched(index) ? " stroke-dasharray=\"6 4\"" : ""));
      canvas.marker({x + kSwatch / 2, y - 4.5}, index, color);
    } else {
      const std::string fill = series_is_hatched(index) ? fmt::format("url(#hatch{})", i) : color;
      canvas.rect({x, y - 11}, kSwatch, 13,
                  fmt::format("fill=\"{}\" stroke=\"#333333\" "
                              "stroke-width=\"0.6\"",
                              fill));
    }
    canvas.text({x + kSwatch + 6, y}, figure.legend[i], {.size = kTickSize});
    x += width;
  }
  figure.top = y + 20;
}

/// Grid, y axis, guides with their labels in the right margin (moved apart where they would touch).
void draw_axes(SvgCanvas& canvas, const Figure& figure) {
  const double right = figure.left + figure.plot_width;
  for (const double tick : figure.y_ticks) {
    const double y = figure.y_pixel(tick);
    canvas.line({figure.left, y}, {right, y}, "stroke=\"#dddddd\" stroke-width=\"1\"");
    canvas.text({figure.left - 8, y + 4.5}, tick_label(tick),
                {.size = kTickSize, .anchor = Anchor::kEnd});
  }
  const double zero = figure.y_pixel(std::clamp(0.0, figure.y_low, figure.y_high));
  const std::string axis = fmt::format("stroke=\"{}\" stroke-width=\"1.2\"", kAxisColor);
  canvas.line({figure.left, figure.top}, {figure.left, figure.bottom()}, axis);
  canvas.line({figure.left, zero}, {right, zero}, axis);
  canvas.text({figure.y_label_x, (figure.top + figure.bottom()) / 2}, figure.y_label,
              {.size = kLabelSize, .anchor = Anchor::kMiddle, .rotate = -90});
  if (!figure.x_label.empty()) {
    canvas.text({figure.left + figure.plot_width / 2,
                 figure.bottom() + figure.bottom_margin + 1.3 * kLabelSize},
                figure.x_label, {.size = kLabelSize, .anchor = Anchor::kMiddle});
  }
}

void draw_guides(SvgCanvas& canvas, const Figure& figure) {
  std::vector<PlotGuide> guides = figure.guides;
  std::sort(guides.begin(), guides.end(),
            [](const PlotGuide& a, const PlotGuide& b) { return a.y < b.y; });
  const double right = figure.left + figure.plot_width;
  double previous = std::numeric_limits<double>::infinity();
  for (const PlotGuide& guide : guides) {
    const double y = figure.y_pixel(guide.y);
    canvas.line({figure.left, y}, {right, y},
                "stroke=\"#222222\" stroke-width=\"1.3\" stroke-dasharray=\"7 4\"");
    const double label_y = std::min(y + 4.5, previous - 1.25 * kTickSize);
    canvas.text({right + 8, label_y}, guide.label, {.size = kTickSize});
    previous = label_y;
  }
}

/// Stripes over the palette's colours for series beyond the eighth.
void draw_hatches(SvgCanvas& canvas, std::size_t series) {
  for (std::size_t i = 0; i < series; ++i) {
    if (!series_is_hatched(static_cast<int>(i))) continue;
    canvas.raw(
        fmt::format("<defs><pattern id=\"hatch{}\" width=\"6\" height=\"6\" "
                    "patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">"
                    "<rect width=\"6\" height=\"6\" fill=\"{}\"/>"
                    "<rect width=\"2.4\" height=\"6\" fill=\"#ffffff\"/></pattern></defs>",
                    i, series_color(static_cast<int>(i))));
  }
}

struct BarLayout {
  double bar = 0;
  double gap = 0;
  double group = 0;
  bool rotated = false;
};

BarLayout layout_bars(const BarChart& chart) {
  constexpr double kTargetWidth = 900;
  constexpr double kLeastWidth = 460;
  const double groups = static_cast<double>(std::max<std::size_t>(1, chart.categories.size()));
  const double bars = static_cast<double>(std::max<std::size_t>(1, chart.series.size()));
  BarLayout layout;
  layout.bar = std::clamp(kTargetWidth / (groups * (bars + 1.2)), 5.0, 34.0);
  layout.gap = std::max(10.0, 1.2 * layout.bar);
  layout.group = std::max(bars * layout.bar + layout.gap, kLeastWidth / groups);
  for (const std::string& category : chart.categories) {
    layout.rotated = layout.rotated || text_width(category, kTickSize) > layout.group - 6;
  }
  return layout;
}

void draw_bar(SvgCanvas& canvas, const Figure& figure, double x, double width, double value,
              int series) {
  if (std::isnan(value)) return;
  const double zero = figure.y_pixel(std::clamp(0.0, figure.y_low, figure.y_high));
  const double end = figure.y_pixel(std::clamp(value, figure.y_low, figure.y_high));
  const std::string fill =
      series_is_hatched(series) ? fmt::format("url(#hatch{})", series) : series_color(series);
  canvas.rect({x, std::min(zero, end)}, width, std::abs(zero - end),
              fmt::format("fill=\"{}\" stroke=\"#333333\" stroke-width=\"0.6\"", fill));
  if (value > figure.y_high) {
    const double middle = x + width / 2;
    canvas.raw(
        fmt::format("<polygon points=\"{:.2f},{:.2f} {:.2f},{:.2f} {:.2f},{:.2f}\" "
                    "fill=\"#222222\"/>",
                    middle - 4, end - 3, middle + 4, end - 3, middle, end - 10));
  }
}

void check_bars(const BarChart& chart) {
  for (const BarSeries& series : chart.series) {
    core::expect(series.values.size() == chart.categories.size(), series.name,
                 fmt::format("{} values, one a category", chart.categories.size()),
                 fmt::format("{}", series.values.size()));
  }
}

Figure make_figure(const std::string& title, const std::string& subtitle,
                   const std::string& y_label, const std::vector<PlotGuide>& guides) {
  Figure figure{.title = title,
                .subtitle = subtitle,
                .x_label = {},
                .y_label = y_label,
                .legend = {},
                .guides = guides,
                .y_ticks = {}};
  for (const PlotGuide& guide : guides) {
    core::expect(std::isfinite(guide.y), "guide", "a finite y", guide.label);
  }
  return figure;
}

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

void draw_line_series(SvgCanvas& canvas, const Figure& figure, const LineSeries& series, int index,
                      const std::vector<double>& x_pixels) {
  const std::string color = series_color(index);
  const std::string style =
      fmt::format("stroke=\"{}\" stroke-width=\"2\"{}", color,
                  series_is_hatched(index) ? " stroke-dasharray=\"6 4\"" : "");
  std::vector<Point> piece;
  const auto flush = [&] {
    if (piece.size() > 1) canvas.polyline(piece, style);
    for (const Point& point : piece) canvas.marker(point, index, color);
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

}  // namespace

std::vector<double> nice_ticks(double low, double high, int count) {
  const double raw = (high - low) / std::max(1, count);
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (raw <= factor * power * (1 + 1e-9)) {
      step = factor * power;
      break;
    }
  }
  const double first = std::floor(low / step + 1e-9);
  const double last = std::ceil(high / step - 1e-9);
  std::vector<double> ticks;
  for (double i = first; i <= last; ++i) ticks.push_back(i * step);
  return ticks;
}

std::string bar_chart_svg(const BarChart& chart) {
  check_bars(chart);
  Figure figure = make_figure(chart.title, chart.subtitle, chart.y_label, chart.guides);
  double low = 0;
  double high = 0;
  for (const BarSeries& series : chart.series) {
    figure.legend.push_back(series.name);
    for (const double value : series.values) {
      if (!std::isfinite(value)) continue;
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }
  if (chart.y_cap) high = std::min(high, *chart.y_cap);
  const BarLayout layout = layout_bars(chart);
  figure.plot_width = layout.group * static_cast<double>(chart.categories.size());
  figure.bottom_margin = 1.6 * kTickSize;
  if (layout.rotated) {
    for (const std::string& category : chart.categories) {
      figure.bottom_margin =
          std::max(figure.bottom_margin, 0.6 * text_width(category, kTickSize) + 1.6 * kTickSize);
    }
  }
  set_frame(figure, low, high);
  if (layout.rotated) {
    const double reach = 0.82 * text_width(chart.categories.front(), kTickSize);
    const double shift = std::max(0.0, kMargin + reach - layout.group / 2 - figure.left);
    figure.left += shift;
    figure.y_label_x += shift;
  }
  SvgCanvas canvas;
  draw_hatches(canvas, chart.series.size());
  draw_header(canvas, figure);
  draw_axes(canvas, figure);
  for (std::size_t c = 0; c < chart.categories.size(); ++c) {
    const double start = figure.left + layout.group * static_cast<double>(c);
    const double bars = layout.bar * static_cast<double>(chart.series.size());
    double x = start + (layout.group - bars) / 2;
    for (std::size_t s = 0; s < chart.series.size(); ++s, x += layout.bar) {
      draw_bar(canvas, figure, x, layout.bar, chart.series[s].values[c], static_cast<int>(s));
    }
    canvas.text({start + layout.group / 2, figure.bottom() + 1.4 * kTickSize}, chart.categories[c],
                {.size = kTickSize,
                 .anchor = layout.rotated ? Anchor::kEnd : Anchor::kMiddle,
                 .rotate = layout.rotated ? -35.0 : 0.0});
  }
  draw_guides(canvas, figure);
  return canvas.document(figure.width(), figure.height(), chart.title);
}

std::string line_chart_svg(const LineChart& chart) {
  check_lines(chart);
  Figure figure = make_figure(chart.title, chart.subtitle, chart.y_label, chart.guides);
  figure.x_label = chart.x_label;
  figure.lines = true;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double low = 0;
  double high = 0;
  double x_low = kInfinity;
  double x_high = -kInfinity;
  for (const LineSeries& series : chart.series) {
    figure.legend.push_back(series.name);
    for (const double y : series.y) {
      if (!std::isfinite(y)) continue;
      low = std::min(low, y);
      high = std::max(high, y);
    }
    for (const double x : series.x) {
      x_low = std::min(x_low, x);
      x_high = std::max(x_high, x);
    }
  }
  if (!(x_low <= x_high)) {
    x_low = 1;
    x_high = 2;
  }
  if (x_low == x_high) x_high = chart.x_log2 ? 2 * x_low : x_low + 1;
  figure.plot_width = 760;
  figure.bottom_margin = 1.8 * kTickSize;
  set_frame(figure, low, high);
  const std::vector<double> ticks = x_ticks(chart, x_low, x_high);
  if (!chart.x_log2) {
    x_low = ticks.front();
    x_high = ticks.back();
  }
  const auto x_pixel = [&](double x) {
    constexpr double kInset = 24;
    const double share = (x_position(chart, x) - x_position(chart, x_low)) /
                         (x_position(chart, x_high) - x_position(chart, x_low));
    return figure.left + kInset + share * (figure.plot_width - 2 * kInset);
  };
  SvgCanvas canvas;
  draw_header(canvas, figure);
  draw_axes(canvas, figure);
  double free_from = -kInfinity;
  for (const double tick : ticks) {
    const double x = x_pixel(tick);
    canvas.line({x, figure.bottom()}, {x, figure.bottom() + 5},
                fmt::format("stroke=\"{}\" stroke-width=\"1.2\"", kAxisColor));
    const double half = text_width(tick_label(tick), kTickSize) / 2;
    if (x - half < free_from) continue;  // a crowded axis drops labels, not ticks
    canvas.text({x, figure.bottom() + 1.5 * kTickSize}, tick_label(tick),
                {.size = kTickSize, .anchor = Anchor::kMiddle});
    free_from = x + half + 8;
  }
  draw_guides(canvas, figure);
  for (std::size_t s = 0; s < chart.series.size(); ++s) {
    std::vector<double> x_pixels;
    for (const double x : chart.series[s].x) x_pixels.push_back(x_pixel(x));
    draw_line_series(canvas, figure, chart.series[s], static_cast<int>(s), x_pixels);
  }
  return canvas.document(figure.width(), figure.height(), chart.title);
}

}  // namespace mxfa::io
