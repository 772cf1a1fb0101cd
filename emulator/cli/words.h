#pragma once

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/check.h"

namespace mxfa::emu::cli {

/// A whole number in decimal, all of `number`. Throws Error that names `what`, as all here do.
template <class T>
T parse_whole(const std::string& what, const std::string& number,
              T min = std::numeric_limits<T>::min(), T max = std::numeric_limits<T>::max()) {
  T value{};
  const char* const end = number.data() + number.size();
  const auto parsed = std::from_chars(number.data(), end, value);
  const bool ok = parsed.ec == std::errc{} && parsed.ptr == end && value >= min && value <= max;
  core::expect(ok, what, fmt::format("a whole number of {} to {}", min, max), "'" + number + "'");
  return value;
}

/// "4", "4,2" or "4,2,1": none is zero.
std::array<std::uint32_t, 3> parse_dim3(const std::string& text, const std::string& option);

inline constexpr std::uint64_t kMaxTextBytes = std::uint64_t{1} << 30;
/// A regular file of at most `max_bytes`. `what`: names it in errors, as it was asked for.
std::string read_text(const std::string& path, const std::string& what,
                      std::uint64_t max_bytes = kMaxTextBytes);

/// The words of a command line with each word @FILE replaced by the words in that file: separated
/// by white space, '...' and "..." hold words together, # begins a comment. `files` gets their
/// names.
std::vector<std::string> expand_files(const std::vector<std::string>& words,
                                      std::vector<std::string>& files);

}  // namespace mxfa::emu::cli
