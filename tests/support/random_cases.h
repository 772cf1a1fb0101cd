#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <vector>

#include "attention/mask.h"
#include "support/range.h"
#include "support/rng.h"

/// Attention problems that are drawn: number N is the same problem everywhere. The tests go through
/// the first few, or through those of the program's --random FIRST:COUNT.
namespace mxfa::testing {

/// Given, or the first `few`.
Range random_cases(std::int64_t few);

/// So many tests share the cases.
inline constexpr int kRandomParts = 8;

/// check(number) of the part's cases, until one cannot be run.
template <class Check>
void for_each_random(int part, std::int64_t few, Check check) {
  const Range range = random_cases(few);
  for (std::int64_t number = range.first + part; range.contains(number); number += kRandomParts) {
    SCOPED_TRACE(fmt::format("--random {}:1", number));
    try {
      check(number);
    } catch (const std::exception& error) {
      FAIL() << error.what();
    }
  }
}

inline bool chance(Rng& rng, double probability) { return rng.uniform() < probability; }

template <class T>
T one_of(Rng& rng, const std::vector<T>& values) {
  return values[static_cast<std::size_t>(rng.integer(0, std::ssize(values) - 1))];
}

/// Tokens of one sequence: none, few or some, often around the ends of tiles.
inline std::int32_t random_length(Rng& rng, std::int64_t most) {
  if (chance(rng, 0.12)) return 0;
  const std::int64_t tile = one_of<std::int64_t>(rng, {32, 64, 128, 192});
  std::int64_t length = rng.integer(1, most);
  if (chance(rng, 0.2)) length = rng.integer(1, 33);
  if (chance(rng, 0.3)) length = tile * rng.integer(1, 2) + rng.integer(-1, 1);
  return static_cast<std::int32_t>(std::min(length, most));
}

inline std::vector<std::int32_t> random_offsets(Rng& rng, std::int64_t batch, std::int64_t most) {
  std::vector<std::int32_t> offsets{0};
  for (std::int64_t s = 0; s < batch; ++s) {
    offsets.push_back(offsets.back() + random_length(rng, most));
  }
  return offsets;
}

inline attention::Mask random_mask(Rng& rng) {
  attention::Mask mask;
  mask.causal = chance(rng, 0.4);
  if (chance(rng, 0.3)) mask.alignment = CausalAlignment::kTopLeft;
  if (chance(rng, 0.25)) mask.window_left = static_cast<int>(rng.integer(0, 150));
  if (chance(rng, 0.25)) mask.window_right = static_cast<int>(rng.integer(0, 80));
  return mask;
}

/// Heads of q, and of k and v.
struct RandomHeads {
  std::int64_t q = 1, kv = 1;
};
inline RandomHeads random_heads(Rng& rng) {
  const std::int64_t kv = rng.integer(1, 3);
  return {kv * one_of<std::int64_t>(rng, {1, 1, 2, 3}), kv};
}

}  // namespace mxfa::testing
