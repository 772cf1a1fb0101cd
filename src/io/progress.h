#pragma once

#include <cstdint>
#include <mutex>
#include <string>

namespace mxfa::io {

/// A progress bar on standard error: one line that is redrawn at most ten times a second and erased
/// at the end. Shows nothing where standard error is no terminal. advance() may be called from
/// several threads.
class Progress {
 public:
  /// `total` steps of work, 0 allowed.
  Progress(std::string label, std::int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void advance(std::int64_t steps = 1);

  /// The line for `done` steps after `seconds`: label, bar, percentage, time left.
  static std::string line(const std::string& label, std::int64_t done, std::int64_t total,
                          double seconds);

 private:
  void draw(double seconds);

  std::string label_;
  std::int64_t total_ = 0;
  std::int64_t done_ = 0;
  bool visible_ = false;
  bool drawn_ = false;
  double start_ = 0;
  double last_draw_ = 0;
  std::mutex mutex_;
};

}  // namespace mxfa::io
