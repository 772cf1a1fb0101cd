#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

/// Random numbers that are the same on every platform for the same seed (the distributions of
/// <random> are not).
namespace mxfa::testing {

/// SplitMix64: one 64-bit state, full period, any seed.
class Rng {
 public:
  explicit Rng(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  /// In [0, 1), a multiple of 2^-53.
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  /// In [low, high], both included; the bias of the remainder is below 2^-32 for ranges of 32 bits.
  std::int64_t integer(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(high - low + 1));
  }
  /// Mean 0, variance 1 (Box-Muller, one value of the pair).
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

  template <class T>
  std::vector<T> normal_values(std::int64_t count, double sigma = 1, double mean = 0) {
    std::vector<T> values(static_cast<std::size_t>(count));
    for (T& value : values) value = static_cast<T>(mean + sigma * normal());
    return values;
  }
  /// Offsets of `batch` sequences with lengths in [low, high].
  std::vector<std::int32_t> cu_seqlens(std::int64_t batch, std::int64_t low, std::int64_t high) {
    std::vector<std::int32_t> offsets{0};
    for (std::int64_t s = 0; s < batch; ++s) {
      offsets.push_back(static_cast<std::int32_t>(offsets.back() + integer(low, high)));
    }
    return offsets;
  }

 private:
  std::uint64_t state_;
};

}  // namespace mxfa::testing
