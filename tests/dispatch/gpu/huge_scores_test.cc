#include "support/huge_scores.h"

#include <gtest/gtest.h>

#include <vector>

#include "dispatch/gpu/device_call.h"

/// The largest scores that kernels are right for: what attention.h says of them.
namespace mxfa::testing {
namespace {

std::vector<std::uint16_t> bf16(const std::vector<float>& values) {
  std::vector<std::uint16_t> codes;
  for (const float value : values) codes.push_back(mx::encode_bf16(value));
  return codes;
}

/// o of scores up to 2^exponent * 0.35 keeps the weight of the largest, but for P's rounding.
void expect_whole_weight(int exponent, bool leak_free) {
  constexpr std::int64_t kDim = HugeScores::kDim;
  const HugeScores inputs(exponent);
  const DeviceArray<std::uint16_t> q(bf16(inputs.q)), k(bf16(inputs.k)), v(bf16(inputs.v)),
      o(HugeScores::kRows * kDim);
  const DeviceArray<float> lse(HugeScores::kRows);
  const auto tensor = [](const DeviceArray<std::uint16_t>& rows, std::int64_t count) {
    return Tensor{make_tensor(rows.data(), DType::kBF16, {1, count, 1, kDim})};
  };
  attention::Options options{.device = &device()};
  options.recipe = attention::native_recipe(device());
  options.leak_free = leak_free;
  attention::ForwardArgs args{.q = tensor(q, HugeScores::kRows),
                              .k = tensor(k, HugeScores::kKeys),
                              .v = tensor(v, HugeScores::kKeys)};
  args.o = tensor(o, HugeScores::kRows);
  args.lse = make_tensor(lse.data(), DType::kF32, {1, HugeScores::kRows});
  const DeviceArray<std::byte> workspace(attention::forward_workspace_bytes(args, options));
  attention::forward(args, options, workspace.bytes());
  device().synchronize();
  const std::vector<double> got = decoded(o.download());
  for (std::int64_t i = 0; i < HugeScores::kRows * kDim; ++i) {
    const double want = inputs.want(i / kDim, i % kDim);
    ASSERT_NEAR(got[i], want, want * 0x1p-4) << "2^" << exponent << " at " << i;
  }
}

TEST(GpuForward, ScoresUpTo2To21) {
  for (const int exponent : {12, 16, 20, 23}) expect_whole_weight(exponent, false);
}
TEST(GpuForward, LeakFreeScoresUpTo2To21) {
  for (const int exponent : {12, 16, 20, 23}) expect_whole_weight(exponent, true);
}

}  // namespace
}  // namespace mxfa::testing
