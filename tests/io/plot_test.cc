#include "io/plot.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "io/svg_canvas.h"
#include "io/xml_check.h"
#include "mxfa/error.h"

namespace mxfa::io {
namespace {

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t hits = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++hits;
  }
  return hits;
}

BarChart chart_of(std::size_t series, std::size_t categories) {
  BarChart chart{
      .title = "t", .subtitle = "s", .y_label = "dB", .categories = {}, .series = {}, .guides = {}};
  for (std::size_t c = 0; c < categories; ++c) chart.categories.push_back("c" + std::to_string(c));
  for (std::size_t s = 0; s < series; ++s) {
    chart.series.push_back({"series " + std::to_string(s), std::vector<double>(categories, 20.0)});
  }
  return chart;
}

TEST(Plot, BarsAreOneEachAndMissingOnesAreLeftOut) {
  BarChart chart = chart_of(3, 4);
  const std::size_t all = count(bar_chart_svg(chart), "<rect");
  chart.series[1].values[2] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(count(bar_chart_svg(chart), "<rect"), all - 1);
  chart.series[1].values[2] = std::numeric_limits<double>::infinity();
  const std::string svg = bar_chart_svg(chart);
  EXPECT_EQ(count(svg, "<rect"), all);
  EXPECT_EQ(count(svg, "<polygon"), 1U) << "an infinite bar is not marked";
  chart.y_cap = 15;
  EXPECT_EQ(count(bar_chart_svg(chart), "<polygon"), 12U);
}

TEST(Plot, BarsTellWhatBothAxesAre) {
  BarChart chart = chart_of(2, 3);
  chart.x_label = "what x is";
  const std::string svg = bar_chart_svg(chart);
  EXPECT_EQ(count(svg, ">what x is<"), 1U);
  EXPECT_EQ(count(svg, ">dB<"), 1U);
}

TEST(Plot, BarHeightsAreProportional) {
  BarChart chart = chart_of(1, 2);
  chart.series[0].values = {40, 10};
  const std::string svg = bar_chart_svg(chart);
  std::vector<double> heights;
  for (const XmlElement& rect : XmlReader(svg).named("rect")) {
    if (rect.attributes.at("fill") == "#0072b2") heights.push_back(rect.number("height"));
  }
  ASSERT_EQ(heights.size(), 3U) << "legend and two bars";
  EXPECT_NEAR(heights[1], 4 * heights[2], 0.05);
}

TEST(Plot, LineChartsBesideEachOther) {
  LineChart chart{.title = "t",
                  .subtitle = "",
                  .x_label = "step",
                  .y_label = "loss",
                  .series = {{"a", {0, 1, 2}, {0.9, 0.8, 0.75}}},
                  .guides = {}};
  const std::string one = line_chart_svg(chart);
  const std::string two = line_charts_svg({chart, chart}, "both");
  EXPECT_EQ(xml_fault(two), "");
  EXPECT_EQ(count(two, "<polyline"), 2U);
  EXPECT_EQ(count(two, ">loss<"), 2U);
  const auto width = [](const std::string& svg) {
    return XmlReader(svg).named("svg").at(0).number("width");
  };
  EXPECT_NEAR(width(two), 2 * width(one), 1.01);
  // A range of its own in place of 0 and the data; no markers.
  EXPECT_EQ(count(one, ">0.7<"), 0U);
  chart.y_range = {{0.7, 0.9}};
  chart.markers = false;
  const std::string ranged = line_chart_svg(chart);
  EXPECT_EQ(count(ranged, ">0.7<"), 1U);
  EXPECT_EQ(count(ranged, ">0<"), count(one, ">0<") - 1);
  EXPECT_LT(count(ranged, "<circle"), count(one, "<circle"));
}

TEST(Plot, EveryChartIsWellFormed) {
  BarChart bars = chart_of(20, 9);
  bars.title = "a <b> & \"c\" \x01";
  bars.guides = {{18, "<safe>"}, {18.1, "&"}};
  bars.categories[0] = "a category with a very long name that does not fit";
  EXPECT_EQ(xml_fault(bar_chart_svg(bars)), "");
  EXPECT_EQ(xml_fault(bar_chart_svg(BarChart{})), "");
  EXPECT_EQ(xml_fault(line_chart_svg(LineChart{})), "");
  LineChart lines;
  lines.series = {{"one", {1, 2, 4}, {1, std::nan(""), -3}}, {"point", {2}, {1e9}}};
  EXPECT_EQ(xml_fault(line_chart_svg(lines)), "");
  lines.x_log2 = true;
  EXPECT_EQ(xml_fault(line_chart_svg(lines)), "");
}

TEST(Plot, TheCheckOfXmlCanFail) {
  EXPECT_EQ(xml_fault("<a><b c=\"&lt;\"/>x</a>"), "");
  for (const char* bad : {"<a>", "<a></b>", "<a/><b/>", "<a b=c/>", "<a>&</a>", "<a b=\"&x;\"/>",
                          "x<a/>", "<a>\x01</a>", "<a b=\"<\"/>", "< a/>"}) {
    EXPECT_NE(xml_fault(bad), "") << bad;
  }
}

TEST(Plot, BadInputIsRefused) {
  BarChart bars = chart_of(2, 3);
  bars.series[1].values.pop_back();
  EXPECT_THROW(bar_chart_svg(bars), Error);
  LineChart lines;
  lines.x_log2 = true;
  lines.series = {{"zero", {0}, {1}}};
  EXPECT_THROW(line_chart_svg(lines), Error);
  lines.series = {{"short", {1, 2}, {1}}};
  EXPECT_THROW(line_chart_svg(lines), Error);
}

/// Boxes of all horizontal texts, from the width estimate: no two may touch.
TEST(Plot, LabelsDoNotOverlap) {
  BarChart chart = chart_of(14, 8);
  chart.guides = {{18, "safe"}, {17.5, "borderline"}, {15, "fail"}};
  const std::string svg = bar_chart_svg(chart);
  struct Box {
    double left, right, top, bottom;
    std::string text;
  };
  std::vector<Box> boxes;
  for (const XmlElement& text : XmlReader(svg).named("text")) {
    if (text.attributes.contains("transform")) continue;
    const double size = text.number("font-size");
    const double width = text_width(text.text, size);
    const std::string anchor = text.attributes.at("text-anchor");
    double left = text.number("x");
    if (anchor == "middle") left -= width / 2;
    if (anchor == "end") left -= width;
    const double baseline = text.number("y");
    boxes.push_back({left, left + width, baseline - 0.75 * size, baseline + 0.2 * size, text.text});
  }
  ASSERT_GT(boxes.size(), 14U + 8U + 3U);
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    EXPECT_GE(boxes[i].left, 0) << boxes[i].text;
    for (std::size_t j = 0; j < i; ++j) {
      const bool apart = boxes[i].right <= boxes[j].left || boxes[j].right <= boxes[i].left ||
                         boxes[i].bottom <= boxes[j].top || boxes[j].bottom <= boxes[i].top;
      EXPECT_TRUE(apart) << '"' << boxes[i].text << "\" and \"" << boxes[j].text << '"';
    }
  }
}

TEST(Plot, TicksAreRoundAndCover) {
  EXPECT_EQ(nice_ticks(0, 57, 6), (std::vector<double>{0, 10, 20, 30, 40, 50, 60}));
  EXPECT_EQ(nice_ticks(-3, 4, 7), (std::vector<double>{-3, -2, -1, 0, 1, 2, 3, 4}));
  for (const double high : {1e-9, 0.3, 7.0, 1234.5, 8e12}) {
    const std::vector<double> ticks = nice_ticks(0, high, 7);
    EXPECT_GE(ticks.back(), high * (1 - 1e-8));
    EXPECT_LE(ticks.size(), 9U);
    EXPECT_GE(ticks.size(), 3U);
  }
}

TEST(Plot, TwentyFourSeriesDiffer) {
  std::set<std::pair<std::string, int>> looks;
  for (int i = 0; i < 24; ++i) looks.insert({series_color(i), series_style(i)});
  EXPECT_EQ(looks.size(), 24U);
  const XmlReader xml(bar_chart_svg(chart_of(24, 1)));
  EXPECT_EQ(xml.named("pattern").size(), 16U);
}

TEST(Plot, LongTextIsWrapped) {
  const std::vector<std::string> lines = wrap_text("aaaa bbbb cccc", 10, 60);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0], "aaaa bbbb");
  EXPECT_EQ(wrap_text("", 10, 60).size(), 0U);
}

}  // namespace
}  // namespace mxfa::io
