#include <gtest/gtest.h>

#include "kernels/sm90/forward_expected.h"
#include "support/random_cases.h"

namespace mxfa::testing {
namespace {

class RandomForward : public ::testing::TestWithParam<int> {};

void draw_shape(Rng& rng, ForwardCase& test) {
  const std::int64_t batch = rng.integer(1, 4), most = batch > 2 ? 200 : 300;
  const RandomHeads heads = random_heads(rng);
  test.num_heads = heads.q;
  test.num_heads_kv = heads.kv;
  test.head_dim = one_of<std::int64_t>(rng, {64, 128});
  test.mask = random_mask(rng);
  if (chance(rng, 0.2)) {
    test.dense_batch = batch;
    test.dense_seqlen_q = rng.integer(1, most);
    // Long ones are divided along the keys.
    test.dense_seqlen_k = chance(rng, 0.3) ? rng.integer(300, 1200) : rng.integer(1, most);
    test.o_by_head = chance(rng, 0.3);
    return;
  }
  test.cu_seqlens_k = random_offsets(rng, batch, most);
  if (chance(rng, 0.25)) {
    test.broadcast_seqlen_q = rng.integer(1, most);
  } else {
    test.cu_seqlens_q = random_offsets(rng, batch, most);
  }
  if (chance(rng, 0.5)) test.slack_rows = rng.integer(1, 40);
}

ForwardCase random_case(std::int64_t number) {
  Rng rng(static_cast<std::uint64_t>(number));
  ForwardCase test;
  test.name = fmt::format("random {}", number);
  draw_shape(rng, test);
  test.product =
      one_of<Product>(rng, {Product::kGroupScales, Product::kTokenScales, Product::kBf16});
  if (test.product != Product::kBf16 && chance(rng, 0.5)) test.scores = Scores::kF16;
  if (!test.o_by_head && chance(rng, 0.3)) {
    test.o_shape = one_of<BlockShape>(rng, {BlockShape::k1x32, BlockShape::k32x32});
  }
  test.workspace = test.dense_batch == 0 || chance(rng, 0.7);
  test.seed = rng.bits();
  test.drawn = true;
  test.half_o_db = 1.0;  // as Options::half_scores says
  // Half sums of 320 cases cost 0.06 dB at most, in the emulator.
  if (test.product != Product::kGroupScales) test.sums_o_db = 0.1;
  test.sigma_q = rng.uniform(0.3, 2.0);
  if (chance(rng, 0.3)) test.spread = rng.uniform(0.0, 2.0);
  if (chance(rng, 0.2)) test.softmax_scale = rng.uniform(0.02, 0.3);
  return test;
}

TEST_P(RandomForward, AsTheRecipe) {
  for_each_random(GetParam(), 40,
                  [](std::int64_t number) { expect_as_recipe(random_case(number)); });
}

INSTANTIATE_TEST_SUITE_P(Parts, RandomForward, ::testing::Range(0, kRandomParts));

}  // namespace
}  // namespace mxfa::testing
