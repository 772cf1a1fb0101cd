#include "io/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "core/standard_streams.h"

namespace mxfa::io {
namespace {

constexpr double kRedrawSeconds = 0.1;
constexpr int kBarWidth = 24;

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Progress::Progress(std::string label, std::int64_t total)
    : label_(std::move(label)),
      total_(total),
      visible_(::isatty(STDERR_FILENO) != 0),
      start_(now_seconds()),
      last_draw_(start_) {}

Progress::~Progress() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
}

void Progress::advance(std::int64_t steps) {
  const std::lock_guard lock(mutex_);
  done_ += steps;
  if (!visible_) return;
  const double now = now_seconds();
  if (now - last_draw_ < kRedrawSeconds) return;
  last_draw_ = now;
  draw(now - start_);
}

void Progress::draw(double seconds) {
  drawn_ = true;
  core::print_error("\r{}\x1b[K", line(label_, done_, total_, seconds));
  std::fflush(stderr);
}

std::string Progress::line(const std::string& label, std::int64_t done, std::int64_t total,
                           double seconds) {
  const double share =
      total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0)
                : 1.0;
  const int filled = static_cast<int>(share * kBarWidth);
  std::string text = fmt::format("{} [{:#<{}}{:.<{}}] {:3.0f}%", label, "", filled, "",
                                 kBarWidth - filled, share * 100);
  if (share > 0 && share < 1) {
    text += fmt::format("  {:.0f} s left", seconds * (1 - share) / share);
  }
  return text;
}

}  // namespace mxfa::io
