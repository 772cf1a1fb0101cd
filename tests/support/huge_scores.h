#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

/// Inputs of one head whose scores are as large as one likes, and what attention makes of them.
namespace mxfa::testing {

/// Every value is exact in E4M3 but for its scale. Row r of q is +-1.5 * 2^exponent in column r and
/// sees one key more than all others, of the first, second or third 128 of them: its o is that
/// key's v.
struct HugeScores {
  static constexpr std::int64_t kDim = 64, kKeys = 300, kRows = 6;
  std::vector<float> q = std::vector<float>(kRows * kDim);
  std::vector<float> k = std::vector<float>(kKeys * kDim);
  std::vector<float> v = std::vector<float>(kKeys * kDim);
  std::vector<std::int64_t> seen;  ///< key of each row

  explicit HugeScores(int exponent) {
    for (std::int64_t r = 0; r < kRows; ++r) {
      const float sign = r % 2 == 0 ? 1.0f : -1.0f;
      q[r * kDim + r] = std::ldexp(sign * 1.5f, exponent);
      seen.push_back((r * 128 + 17 * r) % kKeys);
      // 1 to 1.75, or 1.25 to 2, beside one of 1.875, or 1.
      for (std::int64_t j = 0; j < kKeys; ++j) {
        const float ordinary = 1.0f + 0.125f * static_cast<float>((j * 5 + r) % 7);
        k[j * kDim + r] = sign > 0 ? ordinary : 0.25f + ordinary;
      }
      k[seen.back() * kDim + r] = sign > 0 ? 1.875f : 1.0f;
    }
    for (std::int64_t j = 0; j < kKeys; ++j) {
      for (std::int64_t d = 0; d < kDim; ++d) {
        v[j * kDim + d] = static_cast<float>((j * 7 + d) % 13 + 1);
      }
    }
  }
  double want(std::int64_t row, std::int64_t column) const {
    return static_cast<double>(v[seen[row] * kDim + column]);
  }
  double lse(std::int64_t row) const {
    const double product =
        static_cast<double>(q[row * kDim + row]) * static_cast<double>(k[seen[row] * kDim + row]);
    return product / std::sqrt(static_cast<double>(kDim));
  }
};

}  // namespace mxfa::testing
