#include "io/plot_figure.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"

namespace mxfa::io {
namespace {

constexpr double kSwatch = 26;
constexpr double kLegendRow = 22;

double guide_label_width(const Figure& figure) {
  double width = 0;
  for (const PlotGuide& guide : figure.guides) {
    width = std::max(width, text_width(guide.label, kTickSize));
  }
  return width;
}

/// Stripes over the palette's colours for series beyond the eighth.
void draw_hatches(SvgCanvas& canvas, std::size_t series) {
  for (std::size_t i = 0; i < series; ++i) {
    const int style = series_style(static_cast<int>(i));
    if (style == 0) continue;
    canvas.raw(
        fmt::format("<defs><pattern id=\"hatch{}\" width=\"6\" height=\"6\" "
                    "patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate({})\">"
                    "<rect width=\"6\" height=\"6\" fill=\"{}\"/>"
                    "<rect width=\"2.4\" height=\"6\" fill=\"#ffffff\"/></pattern></defs>",
                    i, style == 1 ? 45 : 90, series_color(static_cast<int>(i))));
  }
}

void draw_swatch(SvgCanvas& canvas, const Figure& figure, Point left, int index) {
  if (!figure.lines) {
    canvas.rect(
        {left.x, left.y - 11}, kSwatch, 13,
        fmt::format("fill=\"{}\" stroke=\"#333333\" stroke-width=\"0.6\"", bar_fill(index)));
    return;
  }
  const std::string color = series_color(index);
  canvas.line({left.x, left.y - 4.5}, {left.x + kSwatch, left.y - 4.5},
              fmt::format("stroke=\"{}\" stroke-width=\"2\"{}", color, series_dashes(index)));
  canvas.marker({left.x + kSwatch / 2, left.y - 4.5}, index, color);
}

/// Entries flow from left to right in rows, the first one below `y`. Returns the last row's y.
double draw_legend(SvgCanvas& canvas, const Figure& figure, double y) {
  const double room = figure.width() - 2 * kMargin;
  double x = kMargin;
  if (!figure.legend.empty()) y += kLegendRow;
  for (std::size_t i = 0; i < figure.legend.size(); ++i) {
    const double width = kSwatch + 6 + text_width(figure.legend[i], kTickSize) + 18;
    if (x > kMargin && x + width > kMargin + room) {
      x = kMargin;
      y += kLegendRow;
    }
    draw_swatch(canvas, figure, {x, y}, static_cast<int>(i));
    canvas.text({x + kSwatch + 6, y}, figure.legend[i], {.size = kTickSize});
    x += width;
  }
  return y;
}

}  // namespace

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

void draw_header(SvgCanvas& canvas, Figure& figure) {
  if (!figure.lines) draw_hatches(canvas, figure.legend.size());
  const double room = figure.width() - 2 * kMargin;
  constexpr double kBoldWidth = 1.15;  // of bold letters against the estimate for plain ones
  double y = kMargin;
  for (const std::string& line : wrap_text(figure.title, kTitleSize, room / kBoldWidth)) {
    y += 1.25 * kTitleSize;
    canvas.text({kMargin, y}, line, {.size = kTitleSize, .bold = true});
  }
  for (const std::string& line : wrap_text(figure.subtitle, kTickSize, room)) {
    y += 1.4 * kTickSize;
    canvas.text({kMargin, y}, line, {.size = kTickSize, .color = "#555555"});
  }
  figure.top = draw_legend(canvas, figure, y + 10) + 20;
}

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

std::string bar_fill(int index) {
  return series_style(index) != 0 ? fmt::format("url(#hatch{})", index) : series_color(index);
}

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

}  // namespace mxfa::io
