#include <gtest/gtest.h>

#include "kernels/sm90/forward_support.h"
#include "reference/sqnr.h"

/// What half scores must not lose in the mean, or of the keys that decide.
namespace mxfa::testing {
namespace {

recipe::RecipeConfig hopper() {
  recipe::RecipeConfig config = recipe::RecipeConfig::hopper();
  config.o_out = recipe::OutputFormat::kBf16;
  return config;
}

// Exponentials in half are cut off (kernels/sm90/common/half_exponential.h): sums of them, and so
// LSE of rows of many keys of about the same P, would be 3.4e-4 too small.
TEST(ForwardHalfScores, LseIsRightInTheMean) {
  const ForwardCase test{.name = "flat",
                         .cu_seqlens_q = {0, 64},
                         .cu_seqlens_k = {0, 800},
                         .scores = Scores::kF16,
                         .sigma_q = 0.25};
  const ForwardBatch batch(test);
  const ForwardBatch::Results got = batch.run();
  const recipe::RecipeForward want =
      recipe::recipe_forward(batch.operands(0, 0), batch.problem(), hopper());
  double sum = 0;
  for (std::size_t row = 0; row < got.lse.size(); ++row) {
    sum += got.lse[row] - want.saved.lse[row];
  }
  EXPECT_NEAR(sum / static_cast<double>(got.lse.size()), 0.0, 1e-4);
}

// Where V has outliers, blocks have several exponents: maxima of their rows are rounded no more
// often than elsewhere. One row, whose largest key is such an outlier, is three quarters of O here:
// rounded twice it has 42.9 dB, once 45.4; the recipe, whose keys share one maximum, 43.9.
TEST(ForwardHalfScores, LargestKeyOfSeveralExponentsIsExact) {
  const ForwardCase test{.name = "sink",
                         .cu_seqlens_q = {0, 32},
                         .cu_seqlens_k = {0, 16384},
                         .scores = Scores::kF16,
                         .dataset = "sink"};
  const ForwardBatch batch(test);
  const ForwardBatch::Results got = batch.run();
  const recipe::RecipeConfig config = hopper();
  const recipe::Operands operands = batch.operands(0, 0);
  const auto saved = recipe::recipe_forward(operands, batch.problem(), config).saved;
  const auto oracle =
      reference::attention_forward(recipe::kern_inputs(operands, batch.problem(), config));
  EXPECT_GT(reference::sqnr_db(oracle.o.data, got.o),
            reference::sqnr_db(oracle.o.data, {saved.o.data.begin(), saved.o.data.end()}));
}

}  // namespace
}  // namespace mxfa::testing
