#pragma once

#include <fmt/format.h>

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>

#include "mxfa/error.h"
#include "mxfa/tensor.h"

namespace mxfa::core {

/// A text that is made where a check fails only. It refers to its arguments: not to be kept beyond
/// the expression.
template <class... Args>
struct Later {
  fmt::string_view format;
  std::tuple<const Args&...> args;
};
/// later("a multiple of {}", n): fmt::format for the arguments of expect().
template <class... Args>
Later<Args...> later(fmt::format_string<Args...> format, const Args&... args) {
  return {format, {args...}};
}

inline std::string text(std::string_view value) { return std::string(value); }
inline std::string text(std::integral auto value) { return std::to_string(value); }
inline std::string text(const TensorView& tensor) { return describe(tensor); }
template <class... Args>
std::string text(const Later<Args...>& later) {
  return std::apply(
      [&](const Args&... args) {
        return fmt::vformat(later.format, fmt::make_format_args(args...));
      },
      later.args);
}

/// Throws Error(kInvalidArgument) "argument: expected ..., got ..." where `ok` is false. The three
/// are what text() takes, and cost nothing where `ok` is true.
template <class Argument, class Expected, class Got>
void expect(bool ok, const Argument& argument, const Expected& expected, const Got& got,
            SourceLocation where = SourceLocation::current()) {
  if (ok) [[likely]]
    return;
  throw Error(ErrorKind::kInvalidArgument,
              fmt::format("{}: expected {}, got {}", text(argument), text(expected), text(got)),
              where);
}

}  // namespace mxfa::core
