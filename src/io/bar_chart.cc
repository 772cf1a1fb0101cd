#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "io/plot.h"
#include "io/plot_figure.h"

namespace mxfa::io {
namespace {

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

struct Bar {
  double left = 0;
  double width = 0;
  double value = 0;
  int series = 0;
};

void draw_bar(SvgCanvas& canvas, const Figure& figure, const Bar& bar) {
  if (std::isnan(bar.value)) return;
  const double zero = figure.y_pixel(std::clamp(0.0, figure.y_low, figure.y_high));
  const double end = figure.y_pixel(std::clamp(bar.value, figure.y_low, figure.y_high));
  canvas.rect(
      {bar.left, std::min(zero, end)}, bar.width, std::abs(zero - end),
      fmt::format("fill=\"{}\" stroke=\"#333333\" stroke-width=\"0.6\"", bar_fill(bar.series)));
  if (bar.value > figure.y_high) {
    const double middle = bar.left + bar.width / 2;
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

/// The y range of the bars.
std::pair<double, double> value_range(const BarChart& chart) {
  double low = 0;
  double high = 0;
  for (const BarSeries& series : chart.series) {
    for (const double value : series.values) {
      if (!std::isfinite(value)) continue;
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }
  if (chart.y_cap) high = std::min(high, *chart.y_cap);
  return {low, high};
}

/// Room for category labels: below the axis, and to the left of it where they slant.
void make_room(Figure& figure, const BarChart& chart, const BarLayout& layout) {
  if (!layout.rotated) return;
  const double reach = 0.82 * text_width(chart.categories.front(), kTickSize);
  const double shift = std::max(0.0, kMargin + reach - layout.group / 2 - figure.left);
  figure.left += shift;
  figure.y_label_x += shift;
  for (const std::string& category : chart.categories) {
    figure.bottom_margin =
        std::max(figure.bottom_margin, 0.6 * text_width(category, kTickSize) + 1.6 * kTickSize);
  }
}

void draw_group(SvgCanvas& canvas, const Figure& figure, const BarChart& chart,
                const BarLayout& layout, std::size_t category) {
  const double start = figure.left + layout.group * static_cast<double>(category);
  const double bars = layout.bar * static_cast<double>(chart.series.size());
  double x = start + (layout.group - bars) / 2;
  for (std::size_t s = 0; s < chart.series.size(); ++s, x += layout.bar) {
    draw_bar(canvas, figure,
             {x, layout.bar, chart.series[s].values[category], static_cast<int>(s)});
  }
  canvas.text({start + layout.group / 2, figure.bottom() + 1.4 * kTickSize},
              chart.categories[category],
              {.size = kTickSize,
               .anchor = layout.rotated ? Anchor::kEnd : Anchor::kMiddle,
               .rotate = layout.rotated ? -35.0 : 0.0});
}

}  // namespace

std::string bar_chart_svg(const BarChart& chart) {
  check_bars(chart);
  Figure figure = make_figure(chart.title, chart.subtitle, chart.y_label, chart.guides);
  for (const BarSeries& series : chart.series) figure.legend.push_back(series.name);
  const BarLayout layout = layout_bars(chart);
  figure.plot_width = layout.group * static_cast<double>(chart.categories.size());
  figure.bottom_margin = 1.6 * kTickSize;
  figure.x_label = chart.x_label;
  const auto [low, high] = value_range(chart);
  set_frame(figure, low, high);
  make_room(figure, chart, layout);
  SvgCanvas canvas;
  draw_header(canvas, figure);
  draw_axes(canvas, figure);
  for (std::size_t c = 0; c < chart.categories.size(); ++c) {
    draw_group(canvas, figure, chart, layout, c);
  }
  draw_guides(canvas, figure);
  return canvas.document(figure.width(), figure.height(), chart.title);
}

}  // namespace mxfa::io
