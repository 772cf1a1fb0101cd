#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "mxemu/trace.h"

/// The timeline as a picture. Slices are drawn by the pixel: what fills most of one colours it.
namespace mxfa::emu {
namespace {

constexpr std::size_t kGroups = static_cast<std::size_t>(TraceGroup::kCount);
constexpr int kLeft = 190;
constexpr int kPlot = 1180;
constexpr int kWidth = kLeft + kPlot + 20;
constexpr int kLane = 13;
constexpr int kTop = 72;
constexpr std::size_t kMaxOpLanes = 8;
constexpr const char* kColors[kGroups] = {"#4e79a7", "#76b7b2", "#e15759", "#f28e2b",
                                          "#b07aa1", "#9c755f", "#e6e6e6"};

std::string escape(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '&':
        result += "&amp;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return result;
}

class Picture {
 public:
  Picture(const TraceReport& report, std::uint32_t block) : report_(report), block_(block) {
    for (const TraceSlice& slice : report.slices) {
      if (slice.block == block) end_ = std::max(end_, slice.end);
    }
    for (const TraceOp& op : report.ops) {
      if (op.block == block) end_ = std::max(end_, op.end);
    }
  }

  void heading(const std::string& text) {
    y_ += 8;
    label(text, 12, true);
  }

  // One rectangle for each run of pixels with the same group.
  void warp_lane(std::uint32_t warp) {
    std::vector<std::array<double, kGroups>> pixels(kPlot);
    for (const TraceSlice& slice : report_.slices) {
      if (slice.block != block_ || slice.warp != warp) continue;
      const double from = x_of(slice.begin);
      const double to = x_of(slice.end);
      for (int x = static_cast<int>(from); x < std::min<double>(kPlot, to); ++x) {
        pixels[static_cast<std::size_t>(x)][static_cast<std::size_t>(slice.group)] +=
            std::min(to, x + 1.0) - std::max(from, static_cast<double>(x));
      }
    }
    const auto group_at = [&](int x) {
      const auto& pixel = pixels[static_cast<std::size_t>(x)];
      const auto most = std::ranges::max_element(pixel);
      return *most <= 0 ? kGroups : static_cast<std::size_t>(most - pixel.begin());
    };
    label(fmt::format("warp {}", warp), 10, false);
    int begin = 0;
    for (int x = 1; x <= kPlot; ++x) {
      if (x < kPlot && group_at(x) == group_at(begin)) continue;
      if (group_at(begin) < kGroups) rect(begin, x - begin, kColors[group_at(begin)]);
      begin = x;
    }
    y_ += kLane;
  }

  // Work that overlaps lies in lanes of its own, as many as fit; the rest share the last one.
  void op_lanes(const std::string& what) {
    std::vector<const TraceOp*> ops;
    for (const TraceOp& op : report_.ops) {
      if (op.block == block_ && op.what == what) ops.push_back(&op);
    }
    std::ranges::sort(ops, {}, [](const TraceOp* op) { return op->begin; });
    std::vector<std::uint64_t> busy;
    std::vector<std::size_t> lanes;
    for (const TraceOp* op : ops) {
      auto free = std::ranges::find_if(busy, [&](std::uint64_t end) { return end <= op->begin; });
      if (free == busy.end() && busy.size() < kMaxOpLanes) free = busy.insert(free, 0);
      if (free == busy.end()) --free;
      *free = std::max(*free, op->end);
      lanes.push_back(static_cast<std::size_t>(free - busy.begin()));
    }
    label(fmt::format("{} ({})", what, ops.size()), 10, false);
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const double x = x_of(ops[i]->begin);
      body_ += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\" "
          "stroke=\"white\" stroke-width=\"0.5\"><title>{}</title></rect>\n",
          kLeft + x, y_ + kLane * static_cast<int>(lanes[i]), std::max(1.0, x_of(ops[i]->end) - x),
          kLane - 2, kColors[static_cast<std::size_t>(ops[i]->group)], escape(ops[i]->text));
    }
    y_ += kLane * static_cast<int>(std::max<std::size_t>(1, busy.size()));
  }

  std::string document() {
    std::string out = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
        "viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\">\n"
        "<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
        kWidth, y_ + 40);
    out += fmt::format("<text x=\"10\" y=\"22\" font-size=\"15\" font-weight=\"bold\">{}</text>\n",
                       escape(fmt::format("{}, block {}", report_.kernel, block_)));
    int x = 10;
    for (std::size_t group = 0; group < kGroups; ++group) {
      out += fmt::format(
          "<rect x=\"{}\" y=\"36\" width=\"12\" height=\"12\" fill=\"{}\"/>"
          "<text x=\"{}\" y=\"46\" font-size=\"11\">{}</text>\n",
          x, kColors[group], x + 16, name_of(static_cast<TraceGroup>(group)));
      x += 80;
    }
    return out + axis() + body_ + "</svg>\n";
  }

 private:
  double x_of(std::uint64_t time) const {
    return static_cast<double>(time) * kPlot /
           static_cast<double>(std::max<std::uint64_t>(1, end_));
  }
  void rect(int x, int width, const char* color) {
    body_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>\n",
                         kLeft + x, y_, width, kLane - 2, color);
  }
  void label(const std::string& text, int size, bool bold) {
    body_ += fmt::format("<text x=\"{}\" y=\"{}\" font-size=\"{}\"{}>{}</text>\n", bold ? 10 : 22,
                         y_ + 9, size, bold ? " font-weight=\"bold\"" : "", escape(text));
    if (bold) y_ += 12;
  }
  std::string axis() const {
    // 1, 2 or 5 times a power of ten, for at most twelve marks.
    std::uint64_t power = 1;
    while (end_ / power > 120) power *= 10;
    const std::uint64_t step = end_ / power > 60   ? power * 10
                               : end_ / power > 24 ? power * 5
                               : end_ / power > 12 ? power * 2
                                                   : power;
    std::string out;
    for (std::uint64_t time = 0; time <= end_; time += step) {
      const double x = kLeft + x_of(time);
      out += fmt::format(
          "<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#dddddd\"/>"
          "<text x=\"{0:.1f}\" y=\"{3}\" font-size=\"10\" text-anchor=\"middle\">{4}</text>\n",
          x, kTop - 8, y_ + 6, y_ + 20, time);
    }
    return out + fmt::format(
                     "<text x=\"{}\" y=\"{}\" font-size=\"10\" fill=\"#666666\">"
                     "ticks of the emulator: nominal, not a time on a GPU</text>\n",
                     10, y_ + 36);
  }

  const TraceReport& report_;
  std::uint32_t block_;
  std::uint64_t end_ = 1;
  int y_ = kTop - 8;
  std::string body_;
};

/// Ticks that a warp spends on each group.
using Profile = std::array<std::uint64_t, kGroups>;

// More lines in common than apart.
bool alike(const std::vector<std::uint64_t>& a, const std::vector<std::uint64_t>& b) {
  std::size_t common = 0;
  std::size_t apart = 0;
  for (std::size_t line = 0; line < a.size(); ++line) {
    common += a[line] > 0 && b[line] > 0 ? 1 : 0;
    apart += (a[line] > 0) != (b[line] > 0) ? 1 : 0;
  }
  return common > apart;
}

std::string role_name(const Profile& ticks) {
  const auto has = [&](TraceGroup group) { return ticks[static_cast<std::size_t>(group)] > 0; };
  if (has(TraceGroup::kMatrix)) return "issues matrix work";
  if (has(TraceGroup::kCopy)) return "issues copies";
  const auto busy = std::ranges::max_element(ticks.begin(), ticks.end() - 1);
  return name_of(static_cast<TraceGroup>(busy - ticks.begin()));
}

}  // namespace

std::vector<TraceRole> guess_roles(const TraceReport& report) {
  std::vector<Profile> profiles(report.warps);
  for (const TraceSlice& slice : report.slices) {
    profiles[slice.warp][static_cast<std::size_t>(slice.group)] += slice.end - slice.begin;
  }
  std::vector<TraceRole> roles;
  for (std::uint32_t warp = 0; warp < report.warps; ++warp) {
    if (!roles.empty() && alike(report.executed[roles.back().first], report.executed[warp])) {
      roles.back().last = warp;
    } else {
      roles.push_back({role_name(profiles[warp]), warp, warp});
    }
  }
  return roles;
}

std::string timeline_svg(const TraceReport& report, const std::vector<TraceRole>& roles,
                         std::uint32_t block) {
  Picture picture(report, block);
  std::set<std::uint32_t> drawn;
  for (const TraceRole& role : roles) {
    picture.heading(role.name);
    for (std::uint32_t warp = role.first; warp <= role.last && warp < report.warps; ++warp) {
      if (drawn.insert(warp).second) picture.warp_lane(warp);
    }
  }
  if (drawn.size() < report.warps) picture.heading("other warps");
  for (std::uint32_t warp = 0; warp < report.warps; ++warp) {
    if (!drawn.contains(warp)) picture.warp_lane(warp);
  }
  std::set<std::string> kinds;
  for (const TraceOp& op : report.ops) {
    if (op.block == block) kinds.insert(op.what);
  }
  if (!kinds.empty()) picture.heading("asynchronous work");
  for (const std::string& what : kinds) picture.op_lanes(what);
  return picture.document();
}

}  // namespace mxfa::emu
