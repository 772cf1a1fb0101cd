#pragma once

#include <cstdint>
#include <vector>

#include "mx/bits.h"
#include "support/rng.h"

namespace mxfa::testing {

/// N(0, 1), rounded to BF16.
inline std::vector<std::uint16_t> random_bf16(std::int64_t count, std::uint64_t seed) {
  std::vector<std::uint16_t> values;
  for (const float value : Rng(seed).normal_values<float>(count)) {
    values.push_back(mx::encode_bf16(value));
  }
  return values;
}

}  // namespace mxfa::testing
