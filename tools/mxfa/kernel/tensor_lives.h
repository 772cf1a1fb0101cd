#pragma once

#include <string>
#include <vector>

#include "kernel/forward_trace.h"

/// What lay where in tensor memory, from an execution trace.
namespace mxfa::cli::kernel {

/// What the new content's writer had seen before it took columns from an older one.
struct Guard {
  std::string before;  ///< the older content, "S(0)"
  std::string reader;  ///< who touched it last
  std::string by;      ///< "s_read[0]"; kOrderOfIssue, kNothing
};
/// One thread's MMAs and copies run in the order of their issue: not in the ISA, but relied upon.
inline constexpr const char* kOrderOfIssue = "order of issue";
inline constexpr const char* kNothing = "nothing";

/// One content of some columns, from the issue of its first write to its last use.
struct Life {
  std::string what;  ///< "S(0)", "P(1)", "O(0)", "SF Q", ...
  int column = 0;
  int width = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::string writer;  ///< role
  std::string reader;  ///< role of the last one, "tensor cores" for an MMA
  std::vector<Guard> guards;
};

/// By begin.
std::vector<Life> tensor_lives(const TracedLaunch& launch, const ForwardTrace& trace);

/// A picture: columns by time, a mark at each change of owner that tells what guards it.
std::string lives_svg(const TracedLaunch& launch, const std::vector<Life>& lives);

}  // namespace mxfa::cli::kernel
