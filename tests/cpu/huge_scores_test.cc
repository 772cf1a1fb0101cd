#include "support/huge_scores.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cpu/attention_call.h"

/// Scores so large that FP32 rounds them by binades.
namespace mxfa::testing {
namespace {

class CpuHugeScores : public ::testing::TestWithParam<Mode> {};

/// A row that sees one key alone has its value, but for P's own rounding.
TEST_P(CpuHugeScores, TheLargestHasAllTheWeight) {
  const bool bf16 = GetParam().options.precision == attention::Precision::kBf16;
  const double rounding = bf16 ? 0x1p-8 : 0x1p-4;
  constexpr std::int64_t kDim = HugeScores::kDim;
  for (int exponent = 10; exponent <= 100; ++exponent) {
    const HugeScores inputs(exponent);
    AttentionCall call{.head_dim = kDim,
                       .cu_seqlens_q = {0, HugeScores::kRows},
                       .cu_seqlens_k = {0, HugeScores::kKeys},
                       .q = inputs.q,
                       .k = inputs.k,
                       .v = inputs.v,
                       .options = GetParam().options};
    call.run_forward();
    for (std::int64_t r = 0; r < HugeScores::kRows; ++r) {
      const std::string label = fmt::format("2^{} row {}", exponent, r);
      EXPECT_NEAR(static_cast<double>(call.lse[r]) / inputs.lse(r), 1, 1e-6) << label;
      for (std::int64_t d = 0; d < kDim; ++d) {
        const double want = inputs.want(r, d);
        ASSERT_NEAR(static_cast<double>(call.o[r * kDim + d]), want, want * rounding)
            << label << " column " << d;
      }
    }
  }
}

const auto name_of = [](const ::testing::TestParamInfo<Mode>& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(Modes, CpuHugeScores, ::testing::ValuesIn(all_modes()), name_of);

}  // namespace
}  // namespace mxfa::testing
