// Surprising inputs through every recipe.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "recipe_support.h"

namespace mxfa::reference::recipe {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<NamedConfig> all_configs() {
  std::vector<NamedConfig> configs = mx_configs();
  configs.push_back({"bf16", RecipeConfig::bf16()});
  configs.push_back({"fp8_per_tensor", RecipeConfig::fp8_per_tensor()});
  return configs;
}

bool all_finite(const StepTensors& step) {
  for (const Matrix<float>* matrix : {&step.o, &step.dq, &step.dk, &step.dv, &step.p, &step.ds}) {
    for (const float value : matrix->data) {
      if (!std::isfinite(value)) return false;
    }
  }
  return true;
}
bool all_zero(const Matrix<float>& matrix) {
  for (const float value : matrix.data) {
    if (value != 0) return false;
  }
  return true;
}
std::size_t count_nan(std::span<const float> values) {
  return static_cast<std::size_t>(
      std::count_if(values.begin(), values.end(), [](float v) { return std::isnan(v); }));
}

class RecipeSpecial : public ::testing::TestWithParam<NamedConfig> {};

// 0xFF is loud: what a NaN or an infinity of Q touches is NaN, and only that.
TEST_P(RecipeSpecial, BadQueryRowsAreNanOthersAreNot) {
  const RecipeConfig& config = GetParam().config;
  for (const float bad : {kNan, kInf, -kInf}) {
    HeadInputs inputs = normal_inputs({64, 150, 64}, 41);
    inputs.q(40, 7) = bad;
    const StepTensors step = run_step(inputs, config);
    EXPECT_TRUE(std::isnan(step.lse[40])) << bad;
    EXPECT_EQ(count_nan(step.o.row(40)), 64u) << bad;
    EXPECT_EQ(count_nan(step.dq.row(40)), 64u) << bad;
    EXPECT_EQ(count_nan(step.dv.data), step.dv.data.size()) << bad;
    EXPECT_EQ(count_nan(step.dk.data), step.dk.data.size()) << bad;
    if (config.machine == Machine::kFp8PerTensor) continue;  // one scale: all rows are touched
    for (std::int64_t i = 0; i < 32; ++i) {                  // another group of 32
      EXPECT_EQ(count_nan(step.o.row(i)), 0u) << bad << " row " << i;
      EXPECT_FALSE(std::isnan(step.lse[i])) << bad << " row " << i;
    }
  }
}

TEST_P(RecipeSpecial, BadKeysAndValuesReachEveryRow) {
  const RecipeConfig& config = GetParam().config;
  for (const float bad : {kNan, kInf}) {
    HeadInputs inputs = normal_inputs({40, 150, 64}, 42);
    inputs.k(70, 3) = bad;
    StepTensors step = run_step(inputs, config);
    // In BF16 an infinite key is one that half of the rows ignore.
    const bool nan = std::isnan(bad) || config.machine != Machine::kBf16;
    for (std::int64_t i = 0; i < 40 && nan; ++i) {
      ASSERT_TRUE(std::isnan(step.lse[i])) << i;
      ASSERT_EQ(count_nan(step.o.row(i)), 64u) << i;
      ASSERT_EQ(count_nan(step.dq.row(i)), 64u) << i;
    }
    inputs = normal_inputs({40, 150, 64}, 42);
    inputs.v(70, 3) = bad;
    step = run_step(inputs, config);
    EXPECT_EQ(count_nan(step.lse), 0u);
    for (std::int64_t i = 0; i < 40; ++i) {
      // An infinity in BF16 stays one.
      EXPECT_FALSE(std::isfinite(step.o(i, 3))) << i;
      EXPECT_EQ(count_nan(step.dq.row(i)), 64u) << i;
    }
    inputs = normal_inputs({40, 150, 64}, 42);
    inputs.dout(20, 5) = bad;
    step = run_step(inputs, config);
    EXPECT_EQ(count_nan(step.dq.row(20)), 64u);
    EXPECT_EQ(count_nan(step.lse), 0u);
    for (std::int64_t j = 0; j < 150; ++j) EXPECT_FALSE(std::isfinite(step.dv(j, 5))) << j;
  }
}

TEST_P(RecipeSpecial, ZeroGradientGivesZeroGradients) {
  HeadInputs inputs = normal_inputs({96, 200, 64}, 43);
  std::ranges::fill(inputs.dout.data, 0.0f);
  const StepTensors step = run_step(inputs, GetParam().config);
  EXPECT_TRUE(all_zero(step.dq));
  EXPECT_TRUE(all_zero(step.dk));
  EXPECT_TRUE(all_zero(step.dv));
}

TEST_P(RecipeSpecial, AllZeroInputs) {
  HeadInputs inputs = normal_inputs({40, 100, 64}, 44);
  for (Matrix<float>* matrix : {&inputs.q, &inputs.k, &inputs.v}) {
    std::ranges::fill(matrix->data, 0.0f);
  }
  const StepTensors step = run_step(inputs, GetParam().config);
  // In leak-free form the maximum is -64 and l 2^64 times larger: LSE is their difference.
  for (const float lse : step.lse) ASSERT_NEAR(lse, std::log(100.0), 6e-6);
  EXPECT_TRUE(all_zero(step.o));
  EXPECT_TRUE(all_zero(step.dq));
  EXPECT_TRUE(all_zero(step.dk));
  EXPECT_TRUE(all_finite(step));
}

// V = 0 next to normal tiles: O must not notice, and l must be the un-folded sum.
TEST_P(RecipeSpecial, ZeroValueTilesCountInTheSum) {
  // Leak-free form spans 2^134 of V at most: its sum undoes each key's exponent in FP32.
  const float huge = GetParam().config.leak_free ? 0x1p30f : 0x1p100f;
  for (const float scale : {1.0f, huge}) {
    HeadInputs inputs = normal_inputs({64, 512, 64}, 45);
    for (std::int64_t j = 0; j < 512; ++j) {
      const bool zero = j / 128 == 0 || j / 32 == 9;
      for (float& value : inputs.v.row(j)) value *= zero ? 0.0f : scale;
    }
    inputs.dout = {};
    const StepTensors step = run_step(inputs, GetParam().config);
    const ForwardResult want = attention_forward(step.kern);
    EXPECT_LE(max_lse_error(want.lse, step.lse), 1e-3) << scale;
    EXPECT_GE(db(want.o, step.o), 29) << scale;
    EXPECT_TRUE(all_finite(step)) << scale;
  }
}

// Tiles of dO so far apart that P' of one would underflow: its own dQ must not notice.
TEST_P(RecipeSpecial, TinyGradientTilesKeepTheirDq) {
  HeadInputs inputs = normal_inputs({128, 200, 64}, 49);
  for (std::int64_t i = 0; i < 128; ++i) {
    for (float& value : inputs.dout.row(i)) value *= i < 64 ? 0x1p60f : 0x1p-100f;
  }
  const StepTensors step = run_step(inputs, GetParam().config);
  const BackwardResult want = attention_backward(step.kern, attention_forward(step.kern));
  const std::vector<double> rows = sorted_row_sqnr(want.dq, step.dq);
  // One scale for all tokens has flushed the tiny half of dO itself: rows are the others then.
  EXPECT_GE(rows.front(), 24) << "worst row of dQ";
  EXPECT_GE(db(want.dv, step.dv), 28.5);
  EXPECT_GE(db(want.dk, step.dk), 28.5);
}

TEST_P(RecipeSpecial, ZeroQueriesStillHaveGradients) {
  HeadInputs inputs = normal_inputs({64, 200, 64}, 46);
  for (std::int64_t i = 17; i < 64; i += 2) std::ranges::fill(inputs.q.row(i), 0.0f);
  const StepTensors step = run_step(inputs, GetParam().config);
  const BackwardResult want = attention_backward(step.kern, attention_forward(step.kern));
  EXPECT_GE(db(want.dq, step.dq), 28.5);
  const std::vector<double> rows = sorted_row_sqnr(want.dq, step.dq);
  EXPECT_GE(rows.front(), 22) << "worst row of dQ";
}

TEST_P(RecipeSpecial, TinyAndHugeInputsStayFinite) {
  for (const float scale : {0x1p-120f, 0x1p-60f, 0x1p40f}) {
    HeadInputs inputs = normal_inputs({64, 130, 64}, 47);
    for (float& value : inputs.v.data) value *= scale;
    for (float& value : inputs.q.data) value /= scale;
    for (float& value : inputs.k.data) value *= scale;
    const StepTensors step = run_step(inputs, GetParam().config);
    EXPECT_TRUE(all_finite(step)) << scale;
    const ForwardResult want = attention_forward(step.kern);
    EXPECT_LE(max_lse_error(want.lse, step.lse), 1e-3) << scale;
    if (scale > 0x1p-100f) {
      EXPECT_GE(db(want.o, step.o), 29) << scale;
    }
  }
}

TEST_P(RecipeSpecial, LengthsOfZero) {
  const RecipeConfig& config = GetParam().config;
  const StepTensors no_keys = run_step(normal_inputs({40, 0, 64}), config);
  for (const float lse : no_keys.lse) EXPECT_EQ(lse, -kInf);
  EXPECT_TRUE(all_zero(no_keys.o));
  EXPECT_TRUE(all_zero(no_keys.dq));
  EXPECT_EQ(no_keys.dk.rows, 0);
  const StepTensors no_queries = run_step(normal_inputs({0, 40, 64}), config);
  EXPECT_EQ(no_queries.o.rows, 0);
  EXPECT_EQ(no_queries.dk.rows, 40);
  EXPECT_TRUE(all_zero(no_queries.dk));
  EXPECT_TRUE(all_zero(no_queries.dv));
}

TEST_P(RecipeSpecial, ForwardAloneEqualsTheStepsForward) {
  HeadInputs inputs = normal_inputs({40, 150, 64}, 48);
  const StepTensors both = run_step(inputs, GetParam().config);
  inputs.dout = {};
  const StepTensors forward = run_step(inputs, GetParam().config);
  EXPECT_TRUE(testing::bitwise_equal(forward.o.data, both.o.data));
  EXPECT_TRUE(testing::bitwise_equal(forward.lse, both.lse));
  EXPECT_EQ(forward.dq.rows, 0);
}

TEST_P(RecipeSpecial, NanIsNotTakenForAnFp16Overflow) {
  HeadInputs inputs = normal_inputs({64, 300, 64}, 50);
  inputs.dout(3, 3) = kNan;
  inputs.q(40, 1) = kNan;
  RecipeConfig config = GetParam().config;
  config.dq_accum = DqAccum::kF16;
  const StepTensors step = run_step(inputs, config);
  EXPECT_EQ(count_nan(step.dq.row(3)), 64u);
  EXPECT_EQ(count_nan(step.dq.row(40)), 64u);
}

INSTANTIATE_TEST_SUITE_P(Machines, RecipeSpecial, ::testing::ValuesIn(all_configs()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace mxfa::reference::recipe
