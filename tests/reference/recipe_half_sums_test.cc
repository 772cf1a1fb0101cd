// The Hopper backward with sums of dV, dK and dQ in half: what it costs, and that nothing
// overflows.
#include <gtest/gtest.h>

#include <algorithm>

#include "mx/bits.h"
#include "numerics_support.h"
#include "recipe_support.h"
#include "reference/datasets.h"
#include "support/half_operands.h"

namespace mxfa::reference::recipe {
namespace {

RecipeConfig half_sums() {
  RecipeConfig config = RecipeConfig::hopper();
  config.half_sums = true;
  config.promote_dk_queries = 4096;
  config.dq_out = config.dkv_out = OutputFormat::kF32;
  return config;
}

/// Operands as half scores want them, and gradients of a forward on them.
struct Step {
  Operands operands;
  HeadProblem problem;
  SavedForward saved;
  BackwardResult exact;

  explicit Step(const HeadInputs& inputs)
      : operands(quantize_operands(inputs, RecipeConfig::hopper())), problem(problem_of(inputs)) {
    testing::lower_for_half_scores(inputs, operands);
    saved = recipe_forward(operands, problem, RecipeConfig::hopper()).saved;
    const HeadInputs kern = kern_inputs(operands, problem, RecipeConfig::hopper());
    exact = attention_backward(kern, attention_forward(kern));
  }
  RecipeBackward run(RecipeConfig config) const {
    return recipe_backward(operands, problem, saved, config);
  }
  RecipeBackward run_f32() const {
    RecipeConfig config = half_sums();
    config.half_sums = false;
    return run(config);
  }
};

bool finite(const Matrix<float>& matrix) {
  return std::ranges::all_of(matrix.data, [](float value) { return mx::is_finite(value); });
}

TEST(RecipeHalfSums, CostNextToNothing) {
  for (const char* name : {"normal", "diffuse", "rmsnorm", "sink", "lognorm", "vbias", "dorow"}) {
    const Step step(make_dataset(name, {.seqlen_q = 192, .seqlen_k = 400}));
    const RecipeBackward half = step.run(half_sums()), f32 = step.run_f32();
    EXPECT_NEAR(db(step.exact.dv, half.dv), db(step.exact.dv, f32.dv), 0.1) << name;
    EXPECT_NEAR(db(step.exact.dk, half.dk), db(step.exact.dk, f32.dk), 0.2) << name;
    EXPECT_NEAR(db(step.exact.dq, half.dq), db(step.exact.dq, f32.dq), 0.2) << name;
  }
}

TEST(RecipeHalfSums, OneSignedSumsLeaveEvery512Queries) {
  HeadInputs inputs = make_dataset("normal", {.seqlen_q = 2048, .seqlen_k = 16, .head_dim = 64});
  for (float& value : inputs.dout.data) value = mx::round_bf16(value + 2.0f);
  const Step step(inputs);
  RecipeConfig config = half_sums();
  const double often = db(step.exact.dv, step.run(config).dv);
  const double f32 = db(step.exact.dv, step.run_f32().dv);
  EXPECT_GT(often, f32 - 0.5);
  config.promote_queries = 2048;
  EXPECT_LT(db(step.exact.dv, step.run(config).dv), often - 8);
}

/// Every query sees the first key with P = 1, and dO and Q have one sign: no sums grow faster.
TEST(RecipeHalfSums, LargestSumsOfDvFit) {
  HeadInputs inputs = make_dataset("normal", {.seqlen_q = 1536, .seqlen_k = 16, .head_dim = 64});
  for (std::int64_t i = 0; i < inputs.q.rows; ++i) {
    for (std::int64_t c = 0; c < inputs.q.cols; ++c) {
      inputs.q(i, c) = 4.0f;
      // Of the values in a binade, what E4M3 rounds up by the most.
      inputs.dout(i, c) = 1.0703125f;
    }
  }
  for (std::int64_t c = 0; c < inputs.k.cols; ++c) inputs.k(0, c) = 4.0f;
  const Step step(inputs);
  const RecipeBackward got = step.run(half_sums());
  ASSERT_TRUE(finite(got.dv));
  EXPECT_GT(db(step.exact.dv, got.dv), 40);
}

/// Two keys share P, and dS has a sign for each: dK grows with every query.
TEST(RecipeHalfSums, ExponentOfDkRisesWhereSumsNearTheEnd) {
  HeadInputs inputs = make_dataset("normal", {.seqlen_q = 4096, .seqlen_k = 2, .head_dim = 64});
  for (std::int64_t c = 0; c < inputs.q.cols; ++c) {
    for (std::int64_t i = 0; i < inputs.q.rows; ++i) inputs.q(i, c) = inputs.dout(i, c) = 1.75f;
    for (const std::int64_t key : {0, 1}) {
      inputs.k(key, c) = 0.0f;
      inputs.v(key, c) = key == 0 ? 1.0f : -1.0f;
    }
  }
  const Step step(inputs);
  const RecipeBackward got = step.run(half_sums());
  ASSERT_TRUE(finite(got.dk));
  EXPECT_GE(got.ds_rescales, 2);
  RecipeConfig f32 = half_sums();
  f32.half_sums = false;
  f32.promote_queries = f32.promote_dk_queries;
  EXPECT_GT(db(step.exact.dk, got.dk), db(step.exact.dk, step.run(f32).dk) - 0.5);
}

}  // namespace
}  // namespace mxfa::reference::recipe
