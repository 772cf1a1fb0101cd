#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <optional>
#include <utility>
#include <vector>

#include "reference/matrix.h"

namespace mxfa::reference {

/// SplitMix64 from a hash of seed and purpose: the same draws on every machine; streams of one seed
/// are independent of each other.
class Stream {
 public:
  Stream(std::uint64_t seed, std::uint64_t purpose)
      : state_(mixed(mixed(seed + 0x9E3779B97F4A7C15u) + purpose)) {}

  std::uint64_t bits() { return mixed(state_ += 0x9E3779B97F4A7C15u); }
  /// In [0, 1).
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  std::int64_t index(std::int64_t count) {
    return static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(count));
  }
  double sign() { return bits() >> 63 ? -1.0 : 1.0; }
  double normal() {
    if (spare_) return *std::exchange(spare_, std::nullopt);
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    const double angle = 2.0 * std::numbers::pi * uniform();
    spare_ = radius * std::sin(angle);
    return radius * std::cos(angle);
  }
  std::vector<double> normals(std::int64_t count) {
    std::vector<double> values(static_cast<std::size_t>(count));
    for (double& value : values) value = normal();
    return values;
  }
  Matrix<double> normals(std::int64_t rows, std::int64_t cols) {
    Matrix<double> values(rows, cols);
    for (double& value : values.data) value = normal();
    return values;
  }
  /// The first `count` places of a random order of [begin, end).
  std::vector<std::int64_t> distinct(std::int64_t begin, std::int64_t end, std::int64_t count) {
    std::vector<std::int64_t> places;
    while (static_cast<std::int64_t>(places.size()) < std::min(count, end - begin)) {
      const std::int64_t place = begin + index(end - begin);
      if (std::find(places.begin(), places.end(), place) == places.end()) places.push_back(place);
    }
    return places;
  }

 private:
  static std::uint64_t mixed(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

  std::uint64_t state_;
  std::optional<double> spare_;
};

}  // namespace mxfa::reference
