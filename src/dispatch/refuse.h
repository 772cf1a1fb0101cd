#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "mxfa/error.h"

namespace mxfa::dispatch {

/// For checks on paths where a microsecond counts: the message is made where it is needed only.
[[noreturn]] inline void refuse(std::string_view argument, std::string_view expected,
                                const std::string& got) {
  throw Error(ErrorKind::kInvalidArgument,
              fmt::format("{}: expected {}, got {}", argument, expected, got));
}
[[noreturn]] inline void unsupported(std::string_view argument, std::string_view expected,
                                     std::string_view got) {
  throw Error(ErrorKind::kUnsupported,
              fmt::format("{}: expected {}, got {}", argument, expected, got));
}

}  // namespace mxfa::dispatch
