#pragma once

#include <fmt/format.h>

#include <string>

#include "mxfa/error.h"
#include "mxfa/tensor.h"

namespace mxfa::core {

/// Throws Error(kInvalidArgument) "argument: expected ..., got ..." where `ok` is false.
inline void expect(bool ok, std::string_view argument, std::string_view expected,
                   const std::string& got, SourceLocation where = SourceLocation::current()) {
  if (!ok) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("{}: expected {}, got {}", argument, expected, got), where);
  }
}

inline std::string text(std::int64_t value) { return std::to_string(value); }
inline std::string text(const TensorView& tensor) { return describe(tensor); }

}  // namespace mxfa::core
