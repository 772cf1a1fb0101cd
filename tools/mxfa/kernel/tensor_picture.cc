#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "io/svg_canvas.h"
#include "kernel/tensor_lives.h"

namespace mxfa::cli::kernel {
namespace {

using io::Anchor;
using io::Point;
using io::SvgCanvas;

constexpr double kLeft = 132, kTop = 58, kPlot = 1460, kBand = 25, kGap = 14;
constexpr int kAccumulator = 128;

struct Kind {
  std::string_view prefix;
  std::string_view color;
  std::string_view meaning;
};
// Okabe and Ito.
constexpr Kind kKinds[] = {
    {"S(", "#56B4E9", "S, scores in FP32"}, {"O(", "#009E73", "O, FP32"},
    {"P(", "#E69F00", "P, E4M3"},           {"SF Q", "#CC79A7", "scales of Q"},
    {"SF K", "#B8A0D8", "scales of K"},     {"SF P", "#D55E00", "scales of P"},
    {"SF V", "#F0E442", "scales of V"}};

std::string_view color_of(const Life& life) {
  for (const Kind& kind : kKinds) {
    if (life.what.starts_with(kind.prefix)) return kind.color;
  }
  return "#BBBBBB";
}

/// Bands of columns whose contents differ, each drawn equally high; a gap between accumulators.
class Bands {
 public:
  explicit Bands(const std::vector<Life>& lives) {
    std::set<int> edges;
    for (const Life& life : lives) {
      edges.insert(life.column);
      edges.insert(life.column + life.width);
    }
    edges_.assign(edges.begin(), edges.end());
    double y = kTop;
    for (std::size_t i = 0; i < edges_.size(); ++i) {
      if (i > 0 && edges_[i] % kAccumulator == 0) y += kGap;
      y_.push_back(y);
      y += kBand;
    }
  }
  double top(int column) const { return y_[index(column)]; }
  double bottom(int end) const { return y_[index(end) - 1] + kBand; }
  double end() const { return y_.back(); }
  void label(SvgCanvas& canvas) const {
    for (std::size_t i = 0; i + 1 < edges_.size(); ++i) {
      canvas.text({kLeft - 8, y_[i] + kBand / 2 + 4},
                  fmt::format("{} - {}", edges_[i], edges_[i + 1] - 1),
                  {.size = 11, .anchor = Anchor::kEnd, .color = "#444444"});
      if (edges_[i] % kAccumulator != 0) continue;
      canvas.text({8, y_[i] + kBand / 2 + 4},
                  fmt::format("{}({})", edges_[i] < 2 * kAccumulator ? "S" : "O",
                              edges_[i] / kAccumulator % 2),
                  {.size = 14, .bold = true});
    }
  }

 private:
  std::size_t index(int column) const {
    return static_cast<std::size_t>(std::ranges::lower_bound(edges_, column) - edges_.begin());
  }
  std::vector<int> edges_;
  std::vector<double> y_;
};

/// A letter for each guard: barriers without their index, the index is that of the region.
class Letters {
 public:
  char of(const std::string& guard) {
    const std::string name = guard.substr(0, guard.find('['));
    const auto at = std::ranges::find(names_, name);
    const auto index = at - names_.begin();
    if (at == names_.end()) names_.push_back(name);
    return static_cast<char>('a' + index);
  }
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<std::string> names_;
};

void draw_life(SvgCanvas& canvas, const Bands& bands, const Life& life, double x, double width) {
  const double top = bands.top(life.column) + 1;
  const double height = bands.bottom(life.column + life.width) - 1 - top;
  canvas.rect({x, top}, width, height,
              fmt::format("fill=\"{}\" stroke=\"#333333\" stroke-width=\"0.6\"", color_of(life)));
  const double room = width - 26;
  if (io::text_width(life.what, 11) > room) return;
  canvas.text({x + 13 + room / 2, top + height / 2 + 4}, life.what,
              {.size = 11, .anchor = Anchor::kMiddle});
}

void draw_guards(SvgCanvas& canvas, const Bands& bands, const Life& life, double x,
                 Letters& letters) {
  std::set<char> marks;
  for (const Guard& guard : life.guards) marks.insert(letters.of(guard.by));
  if (marks.empty()) return;
  const double y = (bands.top(life.column) + bands.bottom(life.column + life.width)) / 2;
  const double height = 13.0 * static_cast<double>(marks.size());
  canvas.rect({x - 6, y - height / 2}, 12, height,
              "rx=\"5\" fill=\"#ffffff\" stroke=\"#222222\" stroke-width=\"0.8\"");
  double baseline = y - height / 2 + 10;
  for (const char mark : marks) {
    canvas.text({x, baseline}, std::string(1, mark),
                {.size = 10, .anchor = Anchor::kMiddle, .bold = true});
    baseline += 13;
  }
}

void draw_legend(SvgCanvas& canvas, double y, const Letters& letters) {
  double x = kLeft;
  for (const Kind& kind : kKinds) {
    canvas.rect({x, y - 10}, 14, 12,
                fmt::format("fill=\"{}\" stroke=\"#333333\" stroke-width=\"0.6\"", kind.color));
    canvas.text({x + 19, y}, kind.meaning, {.size = 12});
    x += 19 + io::text_width(kind.meaning, 12) + 22;
  }
  x = kLeft;
  y += 24;
  const std::string_view intro = "What the writer had seen of the owner before:";
  canvas.text({x, y}, intro, {.size = 12});
  x += io::text_width(intro, 12) + 16;
  for (std::size_t i = 0; i < letters.names().size(); ++i) {
    const std::string text = fmt::format("{}  {}", static_cast<char>('a' + i), letters.names()[i]);
    canvas.text({x, y}, text, {.size = 12, .bold = true});
    x += io::text_width(text, 12) * 1.08 + 22;
  }
}

}  // namespace

std::string lives_svg(const TracedLaunch& launch, const std::vector<Life>& lives) {
  std::uint64_t end = 1;
  std::uint64_t begin = ~std::uint64_t{0};
  for (const Life& life : lives) {
    begin = std::min(begin, life.begin);
    end = std::max(end, life.end);
  }
  const auto x_of = [&](std::uint64_t time) {
    return kLeft + kPlot * static_cast<double>(time - begin) / static_cast<double>(end - begin);
  };
  SvgCanvas canvas;
  const Bands bands(lives);
  const std::string title =
      fmt::format("Tensor memory of the Blackwell forward, {}, head_dim {}: who owns which columns",
                  launch.arch, launch.head_dim);
  canvas.text({8, 24}, title, {.size = 16, .bold = true});
  canvas.text({8, 43},
              fmt::format("{} work tiles of 2 x 128 queries, {} steps of 128 keys; from what ran "
                          "in the emulator, its ticks and not a GPU's times",
                          (launch.seqlen_q + 255) / 256, (launch.seqlen_k + 127) / 128),
              {.size = 12, .color = "#444444"});
  bands.label(canvas);
  for (const Life& life : lives) {
    draw_life(canvas, bands, life, x_of(life.begin), x_of(life.end) - x_of(life.begin));
  }
  Letters letters;
  for (const Life& life : lives) draw_guards(canvas, bands, life, x_of(life.begin), letters);
  canvas.text({kLeft, bands.end() + 16}, "time", {.size = 12, .color = "#444444"});
  draw_legend(canvas, bands.end() + 42, letters);
  return canvas.document(kLeft + kPlot + 20, bands.end() + 84, title);
}

}  // namespace mxfa::cli::kernel
