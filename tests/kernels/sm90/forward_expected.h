#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>
#include <vector>

#include "kernels/sm90/forward_support.h"
#include "mxfa/attention.h"
#include "support/compare.h"

/// What a forward is held against: the recipe, and the oracle on the same operands.
namespace mxfa::testing {

inline recipe::RecipeConfig recipe_config(const ForwardCase& test) {
  recipe::RecipeConfig config = recipe::RecipeConfig::hopper();
  if (test.product == Product::kTokenScales) config = recipe::RecipeConfig::leak_free_of(config);
  config.qk_bf16 = test.product == Product::kBf16;
  config.o_out = test.o_shape ? recipe::OutputFormat::kMxfp8 : recipe::OutputFormat::kBf16;
  config.output_shape = test.o_shape.value_or(BlockShape::k32x32);
  return config;
}

struct HeadTensors {
  std::vector<double> o, lse, row_max;
};

/// One (sequence, head) of the kernel's results.
inline HeadTensors head_of(const ForwardBatch& batch, const ForwardBatch::Results& got,
                           const ForwardCase& test, std::int64_t sequence, std::int64_t head) {
  HeadTensors result;
  for (std::int64_t row = 0; row < batch.seqlen_q(sequence); ++row) {
    const std::int64_t at = batch.o_begin(sequence) + row;
    for (std::int64_t d = 0; d < test.head_dim; ++d) {
      result.o.push_back(got.o[(at * test.num_heads + head) * test.head_dim + d]);
    }
    result.lse.push_back(got.lse[head * batch.rows_o() + at]);
    result.row_max.push_back(got.row_max[head * batch.rows_o() + at]);
  }
  return result;
}

/// The kernel may lose no more than this against the recipe, whose exponential is exact.
struct Allowance {
  double o_db;
  double lse;
};
/// About twice what is lost: of o by each case, of LSE and the rows' maxima by the worst one,
/// relative to max(1, |lse|). That is 1.55e-3 with half scores (divided_half's maxima): its double
/// is stricter than what the call promises. FP32 scores lose 0.002 dB and 5e-7 at most.
inline constexpr double kHalfLse = 3.2e-3;
static_assert(kHalfLse < attention::kHalfScoresLse);
inline Allowance allowance(const ForwardCase& test) {
  const double half_lse = test.drawn ? attention::kHalfScoresLse : kHalfLse;
  if (test.scores == Scores::kF16) return {test.half_o_db + test.sums_o_db, half_lse};
  return {0.02 + test.sums_o_db, 2e-6};
}

/// SQNR of O against the oracle, where the recipe's is `recipe_db`. Of drawn cases that have less
/// than an exact FP32 path: some codes of P are a step off, of which few elements may have more,
/// and half keeps 11 bits of scores of up to 2^5, which shows where the recipe loses next to
/// nothing.
inline double limit_db(const ForwardCase& test, double recipe_db, double count) {
  const double limit = recipe_db - allowance(test).o_db;
  const bool half = test.scores == Scores::kF16 || test.product != Product::kGroupScales;
  if (!test.drawn || !half) return limit;
  constexpr double kHalfDb = 50;
  return -10 * std::log10(std::pow(10, -limit / 10) * (1 + 2 / std::sqrt(count)) +
                          std::pow(10, -kHalfDb / 10));
}

inline void expect_head(const ForwardBatch& batch, const ForwardBatch::Results& got,
                        const ForwardCase& test, std::int64_t sequence, std::int64_t head) {
  const std::string label = fmt::format("{}: sequence {}, head {}", test.name, sequence, head);
  const HeadTensors kernel = head_of(batch, got, test, sequence, head);
  const recipe::Operands operands = batch.operands(sequence, head);
  const recipe::RecipeForward want =
      recipe::recipe_forward(operands, batch.problem(), recipe_config(test));
  const auto oracle = reference::attention_forward(
      recipe::kern_inputs(operands, batch.problem(), recipe_config(test)));
  const std::vector<double> recipe_o(want.saved.o.data.begin(), want.saved.o.data.end());
  const Allowance allowed = allowance(test);
  double hidden = 0;
  for (std::size_t row = 0; row < kernel.lse.size(); ++row) {
    if (std::isinf(oracle.lse[row])) {
      ++hidden;
      EXPECT_EQ(kernel.lse[row], oracle.lse[row]) << label << ", row " << row;
      EXPECT_EQ(kernel.row_max[row], oracle.lse[row]) << label << ", row " << row;
      for (std::int64_t d = 0; d < test.head_dim; ++d) {
        EXPECT_EQ(kernel.o[row * test.head_dim + d], 0) << label << ", row " << row;
      }
      continue;
    }
    const double scale = std::max(1.0, std::abs(oracle.lse[row]));
    const double log2_scale = test.drawn ? scale * std::numbers::log2e : scale;
    EXPECT_NEAR(kernel.lse[row], want.saved.lse[row], allowed.lse * scale)
        << label << " row " << row;
    EXPECT_NEAR(kernel.row_max[row], want.saved.row_max[row], allowed.lse * log2_scale)
        << label << ", row " << row;
  }
  if (hidden == static_cast<double>(kernel.lse.size())) return;
  const double limit = limit_db(test, reference::sqnr_db(oracle.o.data, recipe_o),
                                static_cast<double>(recipe_o.size()));
  EXPECT_TRUE(expect_close(kernel.o, oracle.o.data, {.metric = Metric::kSqnrDb, .limit = limit},
                           {.label = label, .cols = test.head_dim}));
}

inline void expect_as_recipe(const ForwardCase& test) {
  const ForwardBatch batch(test);
  const ForwardBatch::Results got = batch.run();
  EXPECT_TRUE(got.guards_intact) << test.name;
  for (std::int64_t s = 0; s < batch.batch(); ++s) {
    for (std::int64_t head = 0; head < test.num_heads; ++head)
      expect_head(batch, got, test, s, head);
  }
}

}  // namespace mxfa::testing
