#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/attention_call.h"

/// Scores so large that FP32 rounds them by binades.
namespace mxfa::testing {
namespace {

constexpr std::int64_t kDim = 32, kKeys = 300, kRows = 6;

/// Every value is exact in E4M3, so that each row's output is the value of the key it sees most.
struct HugeCase {
  AttentionCall call;
  std::vector<std::int64_t> seen;  ///< key of each row

  HugeCase(const attention::Options& options, int exponent) {
    call = {.head_dim = kDim, .cu_seqlens_k = {0, kKeys}, .options = options};
    call.cu_seqlens_q = {0, kRows};
    call.q.assign(kRows * kDim, 0.0f);
    call.k.assign(kKeys * kDim, 0.0f);
    call.v.assign(kKeys * kDim, 0.0f);
    // Row r: +-1.5 * 2^exponent in column r; column r of a key: 1 to 1.75, and 1.875 at one of the
    // first, second or third tile.
    for (std::int64_t r = 0; r < kRows; ++r) {
      const float sign = r % 2 == 0 ? 1.0f : -1.0f;
      call.q[r * kDim + r] = std::ldexp(sign * 1.5f, exponent);
      seen.push_back((r * 128 + 17 * r) % kKeys);
      for (std::int64_t j = 0; j < kKeys; ++j) {
        const float ordinary = 1.0f + 0.125f * static_cast<float>((j * 5 + r) % 7);
        call.k[j * kDim + r] = sign > 0 ? ordinary : 0.25f + ordinary;
      }
      call.k[seen.back() * kDim + r] = sign > 0 ? 1.875f : 1.0f;
    }
    for (std::int64_t j = 0; j < kKeys; ++j) {
      for (std::int64_t d = 0; d < kDim; ++d) {
        call.v[j * kDim + d] = static_cast<float>((j * 7 + d) % 13 + 1);
      }
    }
  }
  double lse(std::int64_t row) const {
    const double product = static_cast<double>(call.q[row * kDim + row]) *
                           static_cast<double>(call.k[seen[row] * kDim + row]);
    return product / std::sqrt(static_cast<double>(kDim));
  }
};

class CpuHugeScores : public ::testing::TestWithParam<Mode> {};

/// A row that sees one key alone has its value, but for P's own rounding.
TEST_P(CpuHugeScores, TheLargestHasAllTheWeight) {
  const bool bf16 = GetParam().options.precision == attention::Precision::kBf16;
  const double rounding = bf16 ? 0x1p-8 : 0x1p-4;
  for (int exponent = 10; exponent <= 100; ++exponent) {
    HugeCase c(GetParam().options, exponent);
    c.call.run_forward();
    for (std::int64_t r = 0; r < kRows; ++r) {
      const std::string label = fmt::format("2^{} row {}", exponent, r);
      EXPECT_NEAR(c.call.lse[r] / c.lse(r), 1, 1e-6) << label;
      for (std::int64_t d = 0; d < kDim; ++d) {
        const double want = static_cast<double>(c.call.v[c.seen[r] * kDim + d]);
        ASSERT_NEAR(static_cast<double>(c.call.o[r * kDim + d]), want, want * rounding)
            << label << " column " << d;
      }
    }
  }
}

const auto name_of = [](const ::testing::TestParamInfo<Mode>& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(Modes, CpuHugeScores, ::testing::ValuesIn(all_modes()), name_of);

}  // namespace
}  // namespace mxfa::testing
