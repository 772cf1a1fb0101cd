#pragma once

#include <cstdint>
#include <limits>

namespace mxfa::testing {

/// Some of what is numbered from 0: a long run goes in parts.
struct Range {
  std::int64_t first = 0;
  std::int64_t count = std::numeric_limits<std::int64_t>::max();

  bool contains(std::int64_t number) const { return number >= first && number - first < count; }
};

}  // namespace mxfa::testing
