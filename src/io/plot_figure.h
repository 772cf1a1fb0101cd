#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/plot.h"
#include "io/svg_canvas.h"

/// The frame that bar and line charts share: texts, legend, axes, guides and their places.
namespace mxfa::io {

inline constexpr double kPlotHeight = 320;
inline constexpr double kMargin = 18;
inline constexpr double kTickSize = 13;
inline constexpr double kLabelSize = 14;
inline constexpr double kTitleSize = 18;
inline constexpr std::string_view kAxisColor = "#444444";

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

/// A figure without data. Throws Error where a guide's y is not finite.
Figure make_figure(const std::string& title, const std::string& subtitle,
                   const std::string& y_label, const std::vector<PlotGuide>& guides);

/// Fixes the y range on round ticks and the margins around the plot.
void set_frame(Figure& figure, double low, double high);

/// Title, subtitle and legend; sets figure.top to where the plot begins.
void draw_header(SvgCanvas& canvas, Figure& figure);

/// Grid, axes and their labels.
void draw_axes(SvgCanvas& canvas, const Figure& figure);

/// Guide lines, with their labels in the right margin, moved apart where they would touch.
void draw_guides(SvgCanvas& canvas, const Figure& figure);

/// How a bar of series `index` is filled; patterns come from draw_header().
std::string bar_fill(int index);

}  // namespace mxfa::io
