#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "mxemu/error.h"

namespace mxfa::emu::ptx {

/// A PTX text and the name that errors give it. Everything parsed from it points into `text`.
struct Source {
  std::string name;
  std::string text;

  /// The line's text without indentation and comment, shortened for messages.
  std::string line_text(std::uint32_t line) const;
  [[noreturn]] void fail(std::uint32_t line, const std::string& reason,
                         ErrorKind kind = ErrorKind::kInvalidArgument) const;
};

}  // namespace mxfa::emu::ptx
