#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <string>
#include <utility>

namespace mxfa::core {

/// fmt::print on standard error that never throws over it: a message that nobody can receive is
/// lost, and the exit status still tells.
template <class... Args>
void print_error(fmt::format_string<Args...> format, Args&&... args) {
  const std::string text = fmt::format(format, std::forward<Args>(args)...);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

/// Flushes standard output; false where what was printed could not be written, as on a full disk.
inline bool output_written() {
  return std::cout.flush() && std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
}

}  // namespace mxfa::core
