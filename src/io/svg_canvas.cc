#include "io/svg_canvas.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace mxfa::io {
namespace {

constexpr std::string_view kFonts =
    "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif";

std::string_view anchor_name(Anchor anchor) {
  switch (anchor) {
    case Anchor::kStart:
      return "start";
    case Anchor::kMiddle:
      return "middle";
    case Anchor::kEnd:
      return "end";
  }
  return "start";
}

/// Bytes of a UTF-8 text that start a character.
bool starts_character(char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }

}  // namespace

void SvgCanvas::rect(Point top_left, double width, double height, std::string_view attributes) {
  body_ += fmt::format("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" {}/>\n",
                       top_left.x, top_left.y, width, height, attributes);
}

void SvgCanvas::line(Point from, Point to, std::string_view attributes) {
  body_ += fmt::format("<line x1=\"{:.2f}\" y1=\"{:.2f}\" x2=\"{:.2f}\" y2=\"{:.2f}\" {}/>\n",
                       from.x, from.y, to.x, to.y, attributes);
}

void SvgCanvas::polyline(const std::vector<Point>& points, std::string_view attributes) {
  std::string list;
  for (const Point& point : points) list += fmt::format("{:.2f},{:.2f} ", point.x, point.y);
  body_ += fmt::format("<polyline points=\"{}\" fill=\"none\" {}/>\n", list, attributes);
}

void SvgCanvas::text(Point baseline, std::string_view text, const TextStyle& style) {
  std::string extra;
  if (style.bold) extra += " font-weight=\"bold\"";
  if (style.rotate != 0) {
    extra += fmt::format(" transform=\"rotate({:.0f} {:.2f} {:.2f})\"", style.rotate, baseline.x,
                         baseline.y);
  }
  body_ += fmt::format(
      "<text x=\"{:.2f}\" y=\"{:.2f}\" font-size=\"{:g}\" text-anchor=\"{}\" fill=\"{}\"{}>"
      "{}</text>\n",
      baseline.x, baseline.y, style.size, anchor_name(style.anchor), style.color, extra,
      xml_escape(text));
}

void SvgCanvas::marker(Point center, int index, std::string_view color) {
  constexpr double kRadius = 4;
  std::vector<Point> corners;
  switch (index % 4) {
    case 0:
      body_ += fmt::format("<circle cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"{:g}\" fill=\"{}\"/>\n",
                           center.x, center.y, kRadius, color);
      return;
    case 1:
      corners = {{-1, -1}, {1, -1}, {1, 1}, {-1, 1}};
      break;
    case 2:
      corners = {{0, -1.3}, {1.2, 0.9}, {-1.2, 0.9}};
      break;
    default:
      corners = {{0, -1.4}, {1.2, 0}, {0, 1.4}, {-1.2, 0}};
  }
  std::string list;
  for (const Point& c : corners) {
    list += fmt::format("{:.2f},{:.2f} ", center.x + kRadius * c.x, center.y + kRadius * c.y);
  }
  body_ += fmt::format("<polygon points=\"{}\" fill=\"{}\"/>\n", list, color);
}

void SvgCanvas::raw(std::string_view element) {
  body_ += element;
  body_ += '\n';
}

void SvgCanvas::embed(Point at, const SvgCanvas& other) {
  raw(fmt::format("<g transform=\"translate({:.2f} {:.2f})\">\n{}</g>", at.x, at.y, other.body_));
}

std::string SvgCanvas::document(double width, double height, std::string_view title) const {
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"{2}\" role=\"img\">\n"
      "<title>{3}</title>\n"
      "<rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"#ffffff\"/>\n{4}</svg>\n",
      width, height, kFonts, xml_escape(title), body_);
}

std::string xml_escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    }
  }
  return out;
}

double text_width(std::string_view text, double size) {
  double units = 0;  // thousandths of the font size
  for (const char c : text) {
    if (!starts_character(c)) continue;
    if (std::string_view("iljtfI.,:;'|!()[] ").find(c) != std::string_view::npos) {
      units += 380;
    } else if (std::string_view("mwMW%@").find(c) != std::string_view::npos) {
      units += 960;
    } else if (c >= 'A' && c <= 'Z') {
      units += 720;
    } else {
      units += 620;
    }
  }
  return units / 1000 * size;
}

std::vector<std::string> wrap_text(std::string_view text, double size, double width) {
  std::vector<std::string> lines;
  std::string line;
  while (!text.empty()) {
    const std::size_t space = text.find(' ');
    const std::string_view word = text.substr(0, space);
    text.remove_prefix(space == std::string_view::npos ? text.size() : space + 1);
    const std::string longer = line.empty() ? std::string(word) : line + " " + std::string(word);
    if (!line.empty() && text_width(longer, size) > width) {
      lines.push_back(std::move(line));
      line = word;
    } else {
      line = longer;
    }
  }
  if (!line.empty()) lines.push_back(std::move(line));
  return lines;
}

std::string series_color(int index) {
  constexpr std::array<std::string_view, 8> kPalette = {"#0072b2", "#e69f00", "#009e73", "#cc79a7",
                                                        "#56b4e9", "#d55e00", "#666666", "#b2a300"};
  return std::string(kPalette[static_cast<std::size_t>(index) % kPalette.size()]);
}

int series_style(int index) { return index / 8 % 3; }

std::string_view series_dashes(int index) {
  constexpr std::array<std::string_view, 3> kDashes = {"", " stroke-dasharray=\"7 4\"",
                                                       " stroke-dasharray=\"2 3\""};
  return kDashes[static_cast<std::size_t>(series_style(index))];
}

std::string tick_label(double value) {
  if (std::abs(value) < 1e-12) return "0";
  return fmt::format("{:.6g}", value);
}

}  // namespace mxfa::io
