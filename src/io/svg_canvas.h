#pragma once

#include <string>
#include <string_view>
#include <vector>

/// Drawing primitives of the plotter.
namespace mxfa::io {

struct Point {
  double x = 0;
  double y = 0;
};

enum class Anchor { kStart, kMiddle, kEnd };

struct TextStyle {
  double size = 13;
  Anchor anchor = Anchor::kStart;
  std::string color = "#222222";
  bool bold = false;
  double rotate = 0;  ///< degrees about the text's own position
};

/// Collects SVG elements; coordinates are pixels from the top left.
class SvgCanvas {
 public:
  void rect(Point top_left, double width, double height, std::string_view attributes);
  void line(Point from, Point to, std::string_view attributes);
  void polyline(const std::vector<Point>& points, std::string_view attributes);
  void text(Point baseline, std::string_view text, const TextStyle& style);
  /// One of four marker shapes, `index` modulo 4.
  void marker(Point center, int index, std::string_view color);
  /// Appends an element as it is.
  void raw(std::string_view element);

  /// Everything of another canvas, moved to `at`.
  void embed(Point at, const SvgCanvas& other);

  /// The document, with a white background and `title` for screen readers.
  std::string document(double width, double height, std::string_view title) const;

 private:
  std::string body_;
};

/// Escapes for XML text and attributes. Control characters, which XML cannot hold, become '?'.
std::string xml_escape(std::string_view text);

/// Upper estimate of a text's width in pixels: the widest common sans-serif font, no kerning.
double text_width(std::string_view text, double size);

/// Breaks at spaces so that no line is wider than `width` (a longer word stays whole).
std::vector<std::string> wrap_text(std::string_view text, double size, double width);

/// Series `index` has one of eight colours in one of three styles (plain; striped or dashed; banded
/// or dotted), so that 24 series differ.
std::string series_color(int index);
int series_style(int index);
/// The attribute that dashes a line of series `index`, with a leading space; empty for plain ones.
std::string_view series_dashes(int index);

/// "12.5", "0.001", "1e+06": short tick labels.
std::string tick_label(double value);

}  // namespace mxfa::io
