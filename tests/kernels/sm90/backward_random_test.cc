#include <gtest/gtest.h>

#include "kernels/sm90/backward_expected.h"
#include "support/offsets.h"
#include "support/random_cases.h"

namespace mxfa::testing {
namespace {

class RandomBackward : public ::testing::TestWithParam<int> {};

void draw_shape(Rng& rng, BackwardCase& test) {
  const std::int64_t batch = rng.integer(1, 4), most = batch > 2 ? 160 : 300;
  const RandomHeads heads = random_heads(rng);
  test.num_heads = heads.q;
  test.num_heads_kv = heads.kv;
  test.head_dim = chance(rng, 0.7) ? one_of<std::int64_t>(rng, {64, 128}) : 8 * rng.integer(1, 16);
  test.mask = random_mask(rng);
  test.cu_seqlens_q = random_offsets(rng, batch, most);
  test.cu_seqlens_k = random_offsets(rng, batch, most);
  test.dense = chance(rng, 0.15);
  test.broadcast_q = !test.dense && chance(rng, 0.2);
  if (test.dense || test.broadcast_q) {
    const auto seqlen = static_cast<std::int32_t>(rng.integer(1, most));
    test.cu_seqlens_q = equal_offsets(test.broadcast_q ? 1 : batch, seqlen);
  }
  if (test.dense) {
    test.cu_seqlens_k = equal_offsets(batch, static_cast<std::int32_t>(rng.integer(1, most)));
  }
  if (!test.dense && !test.broadcast_q && chance(rng, 0.05)) {  // more than one set of sums
    test.cu_seqlens_q = {0, static_cast<std::int32_t>(rng.integer(1000, 1400))};
    test.cu_seqlens_k = {0, static_cast<std::int32_t>(rng.integer(1, 40))};
  }
  if (chance(rng, 0.5)) test.slack_rows = test.dense ? 0 : rng.integer(1, 40);
  if (chance(rng, 0.5)) test.slack_columns = 8 * rng.integer(1, 3);
}

void draw_kind(Rng& rng, BackwardCase& test) {
  if (chance(rng, 0.4)) {
    test.scores = Scores::kF16;
  } else if (chance(rng, 0.6)) {
    test.product = one_of<Product>(
        rng, {Product::kTokenScales, Product::kBf16S, Product::kBf16Dp, Product::kBf16});
  }
  if (test.product == Product::kGroupScales && chance(rng, 0.4)) test.dq_sums = DqSums::kF16;
  const bool masked = test.mask.causal || test.mask.window_left >= 0 || test.mask.window_right >= 0;
  test.deterministic = !(test.broadcast_q && masked) && chance(rng, 0.25);
  test.row_max = chance(rng, 0.8);
}

BackwardCase random_case(std::int64_t number) {
  Rng rng(static_cast<std::uint64_t>(number));
  BackwardCase test;
  test.name = fmt::format("random {}", number);
  draw_shape(rng, test);
  draw_kind(rng, test);
  test.seed = rng.bits();
  test.drawn = true;
  test.half_oracle_db = 1.0;  // as Options::half_scores says
  test.sigma_q = rng.uniform(0.3, 2.0);
  if (chance(rng, 0.3)) test.spread = rng.uniform(0.0, 1.5);
  if (chance(rng, 0.3)) test.dout_spread = rng.uniform(0.0, 4.0);
  if (test.product == Product::kTokenScales) test.token_spread = rng.uniform(0.0, 4.0);
  return test;
}

TEST_P(RandomBackward, AsTheRecipe) {
  for_each_random(GetParam(), 40,
                  [](std::int64_t number) { expect_as_recipe(random_case(number)); });
}

INSTANTIATE_TEST_SUITE_P(Parts, RandomBackward, ::testing::Range(0, kRandomParts));

}  // namespace
}  // namespace mxfa::testing
