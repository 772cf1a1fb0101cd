#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "mxemu/error.h"

namespace mxfa::emu::ptx {

class DebugInfo;

/// A PTX text and the name that errors give it. Everything parsed from it points into `text`, which
/// stays as it is once anything has been asked for below.
struct Source {
  Source();
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  ~Source();

  std::string name;
  std::string text;

  /// Made when somebody asks first.
  const DebugInfo& debug_info() const;

  /// The line's text without indentation and comment, shortened for messages.
  std::string line_text(std::uint32_t number) const;
  [[noreturn]] void fail(std::uint32_t line, const std::string& reason,
                         ErrorKind kind = ErrorKind::kInvalidArgument) const;

 private:
  std::string_view line(std::uint32_t number) const;

  mutable std::once_flag lines_made_;
  mutable std::vector<std::size_t> lines_;  ///< where each begins
  mutable std::once_flag debug_info_made_;
  mutable std::unique_ptr<const DebugInfo> debug_info_;
};

}  // namespace mxfa::emu::ptx
