#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "mxfa/error.h"

/// Errors of the models: what a program under emulation does wrong. The interpreter catches them
/// and adds the PTX line, the warp and the lanes.
namespace mxfa::emu::model {

/// Throws Error(kInvalidArgument) "what: expected ..., got ...".
[[noreturn]] inline void fault(std::string_view what, std::string_view expected,
                               const std::string& got) {
  throw Error(ErrorKind::kInvalidArgument,
              fmt::format("{}: expected {}, got {}", what, expected, got));
}
[[noreturn]] inline void fault(std::string_view what, std::string_view expected, std::int64_t got) {
  fault(what, expected, std::to_string(got));
}

/// Throws Error(kUnsupported): a valid instruction or mode that the emulator does not model.
[[noreturn]] inline void unsupported(std::string_view what, const std::string& got) {
  throw Error(ErrorKind::kUnsupported, fmt::format("{}: not modelled: {}", what, got));
}

/// Bytes [begin, begin + size) that an operation read or wrote.
struct ByteRange {
  std::uint64_t begin = 0;
  std::uint64_t size = 0;
  friend constexpr bool operator==(const ByteRange&, const ByteRange&) = default;
};

}  // namespace mxfa::emu::model
