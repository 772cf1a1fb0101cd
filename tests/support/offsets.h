#pragma once

#include <cstdint>
#include <vector>

namespace mxfa::testing {

inline std::vector<std::int32_t> equal_offsets(std::int64_t batch, std::int64_t seqlen) {
  std::vector<std::int32_t> cu(static_cast<std::size_t>(batch) + 1);
  for (std::int64_t s = 0; s <= batch; ++s) cu[s] = static_cast<std::int32_t>(s * seqlen);
  return cu;
}

}  // namespace mxfa::testing
