#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "kernels/sm90/backward_expected.h"
#include "support/compare.h"

namespace mxfa::testing {
namespace {

class Backward : public ::testing::TestWithParam<BackwardCase> {};

// Every key tile of the sums in one order: what they are is then the recipe's to the last bit, but
// for half scores.
class BackwardInOrder : public ::testing::TestWithParam<BackwardCase> {};

TEST_P(BackwardInOrder, SameBitsEveryTime) {
  BackwardCase test = GetParam();
  test.deterministic = true;
  const BackwardBatch batch(test);
  const BackwardBatch::Results got = batch.run();
  EXPECT_TRUE(got.guards_intact);
  const Wanted want = expected(batch, test);
  std::vector<std::uint16_t> rounded;
  for (const double value : want.recipe_dq) {
    rounded.push_back(mx::encode_bf16(static_cast<float>(value)));
  }
  std::int64_t differing = 0;
  for (std::size_t i = 0; i < rounded.size(); ++i) differing += got.dq[i] != rounded[i];
  if (test.scores == Scores::kF16) {
    expect_gradient(gradient(got.dq, batch.q(), batch.pitch()), want.recipe_dq, want.oracle_dq,
                    "dq", test);
  } else {
    // An exponential that rounds another way moves a code, and with it 64 sums by a step.
    EXPECT_LE(differing, std::ssize(rounded) / 100) << test.name;
  }
  for (int run = 0; run < 2; ++run) {
    const BackwardBatch::Results again = batch.run();
    EXPECT_TRUE(bitwise_equal(again.dq, got.dq, {.label = "dq"})) << test.name;
    EXPECT_TRUE(bitwise_equal(again.dk, got.dk, {.label = "dk"})) << test.name;
    EXPECT_TRUE(bitwise_equal(again.dv, got.dv, {.label = "dv"})) << test.name;
  }
}

// In a fixed order, on a device that has other work to do: a hundred times on a GPU.
TEST(BackwardOrder, SameBitsBesideAnotherStream) {
  const bool gpu = machine().options().kind == driver::DriverKind::kCuda;
  BackwardCase test{.name = "beside",
                    .cu_seqlens_q = {0, 100},
                    .cu_seqlens_k = {0, 300},
                    .head_dim = 64,
                    .deterministic = true};
  if (gpu) {
    test.cu_seqlens_q = {0, 300, 900};
    test.cu_seqlens_k = {0, 1500, 2900};
    test.num_heads = test.num_heads_kv = 4;
  }
  const BackwardBatch batch(test);
  const driver::Device& device = machine().device();
  const driver::Stream other(device);
  const driver::DeviceBuffer busy(device, gpu ? std::size_t{256} << 20 : 256);
  const BackwardBatch::Results first = batch.run();
  for (int run = 1; run < (gpu ? 100 : 2); ++run) {
    {
      const driver::CurrentDevice current(device);
      for (int i = 0; i < 1 + run % 8; ++i) {
        device.driver().check(
            device.calls().cuMemsetD8Async(busy.address(), 0, busy.size_bytes(), other.handle()),
            "cuMemsetD8Async");
      }
    }
    const BackwardBatch::Results again = batch.run();
    ASSERT_EQ(again.dq, first.dq) << run;
    ASSERT_EQ(again.dk, first.dk) << run;
    ASSERT_EQ(again.dv, first.dv) << run;
  }
  other.synchronize();
}

// A NaN reaches what the mathematics says, and no row that does not see it.
TEST(BackwardNan, StaysWhereTheMaskHoldsIt) {
  for (const Product product :
       {Product::kGroupScales, Product::kTokenScales, Product::kBf16S, Product::kBf16Dp}) {
    const BackwardCase test{.name = "nan",
                            .cu_seqlens_q = {0, 100, 140},
                            .cu_seqlens_k = {0, 200, 260},
                            .head_dim = 64,
                            .mask = {.causal = true},
                            .product = product,
                            .nan_v = 160};
    const BackwardBatch batch(test);
    const BackwardBatch::Results got = batch.run();
    const Wanted want = expected(batch, test);
    const auto dq = gradient(got.dq, batch.q(), batch.pitch());
    const auto dv = gradient(got.dv, batch.k(), batch.pitch());
    // Where some GEMMs take BF16, the oracle's operands are not those of the others: 26.6 dB or
    // more of dQ; else 31.5 and more.
    const bool bf16 = product == Product::kBf16S || product == Product::kBf16Dp;
    const Tolerance of_dq{.metric = Metric::kSqnrDb, .limit = bf16 ? 24.0 : 28.0};
    const Tolerance of_dv{.metric = Metric::kSqnrDb, .limit = 28.0};
    EXPECT_TRUE(expect_close(dq, want.oracle_dq, of_dq, {.label = "dq", .cols = 64}));
    EXPECT_TRUE(expect_close(dv, want.oracle_dv, of_dv, {.label = "dv", .cols = 64}));
    const auto nans = std::count_if(dq.begin(), dq.end(), [](double x) { return std::isnan(x); });
    // The group of V begins at key 160, which query 60 is the first to see.
    EXPECT_EQ(nans, 40 * 64) << static_cast<int>(product);
  }
}

// Keys of the next sequence lie behind a tile's own, in rows and in columns.
TEST(BackwardNan, StaysInItsSequence) {
  for (const Scores scores : {Scores::kF32, Scores::kF16}) {
    for (const std::int32_t keys : {50, 100, 128, 180}) {
      BackwardCase test{.name = "nan_k",
                        .cu_seqlens_q = {0, 70, 100},
                        .cu_seqlens_k = {0, keys, keys + 40},
                        .scores = scores};
      const BackwardBatch::Results plain = BackwardBatch(test).run();
      test.nan_k = keys;
      const BackwardBatch batch(test);
      const BackwardBatch::Results got = batch.run();
      const auto same = [&](const std::vector<std::uint16_t>& a,
                            const std::vector<std::uint16_t>& b, std::int64_t rows) {
        return std::equal(a.begin(), a.begin() + rows * batch.pitch(), b.begin());
      };
      EXPECT_TRUE(same(got.dq, plain.dq, 70)) << keys;
      EXPECT_TRUE(same(got.dk, plain.dk, keys)) << keys;
      EXPECT_TRUE(same(got.dv, plain.dv, keys)) << keys;
      EXPECT_FALSE(same(got.dq, plain.dq, 100)) << keys;
    }
  }
}

// dS grows by more than what half leaves room for, or shrinks: dQ of both tiles is as good as ever.
TEST(BackwardHalfScores, TilesOfOtherMagnitudes) {
  for (const double growth : {9.0, -9.0}) {
    const BackwardCase test{.name = growth > 0 ? "growing" : "shrinking",
                            .cu_seqlens_q = {0, 128},
                            .cu_seqlens_k = {0, 140},
                            .head_dim = 64,
                            .tile_growth = growth,
                            .scores = Scores::kF16};
    const BackwardBatch batch(test);
    const BackwardBatch::Results got = batch.run();
    const Wanted want = expected(batch, test);
    const auto dq = gradient(got.dq, batch.q(), batch.pitch());
    for (const std::int64_t first : {0, 64 * 64}) {
      const auto tile = [&](const std::vector<double>& x) {
        return std::vector<double>(x.begin() + first, x.begin() + first + 64 * 64);
      };
      expect_gradient(tile(dq), tile(want.recipe_dq), tile(want.oracle_dq),
                      test.name + " dq from " + std::to_string(first), test);
    }
    expect_gradient(gradient(got.dk, batch.k(), batch.pitch()), want.recipe_dk, want.oracle_dk,
                    test.name + " dk", test);
    expect_gradient(gradient(got.dv, batch.k(), batch.pitch()), want.recipe_dv, want.oracle_dv,
                    test.name + " dv", test);
  }
}

// Every query gives nearly all of its P to one key, whose dV takes dO of one sign: nothing else
// adds as much to a sum of dV. And dK that grows with every query: Q has one sign, and dS one a
// key.
TEST(BackwardHalfScores, LargestSums) {
  BackwardCase test{.name = "one_key",
                    .cu_seqlens_q = {0, 4300},
                    .cu_seqlens_k = {0, 40},
                    .head_dim = 64,
                    .dout_mean = 2.0,
                    .dout_sigma = 0.1,
                    .q_mean = 6.0,
                    .scores = Scores::kF16};
  for (const bool grows : {false, true}) {
    if (grows) {
      test.name = "dk_grows";
      test.sigma_q = 0.2;
      test.q_mean = 1.0;
      test.v_signs = true;
    }
    const BackwardBatch batch(test);
    const BackwardBatch::Results got = batch.run();
    const Wanted want = expected(batch, test);
    // Where nearly all of P is one key's, dS is what rounding leaves.
    const auto dk = gradient(got.dk, batch.k(), batch.pitch());
    EXPECT_TRUE(std::ranges::all_of(dk, [](double x) { return std::isfinite(x); })) << test.name;
    if (grows) {
      EXPECT_GT(reference::sqnr_db(want.oracle_dk, dk),
                reference::sqnr_db(want.oracle_dk, want.recipe_dk) - 1);
    }
    const auto dv = gradient(got.dv, batch.k(), batch.pitch());
    EXPECT_TRUE(expect_close(dv, want.oracle_dv, {.metric = Metric::kSqnrDb, .limit = 43},
                             {.label = test.name + " dv", .cols = test.head_dim}));
  }
}

// Every key of a tile adds as much to dQ as it can: 192 * 1.75 * 98 of 65504.
TEST(BackwardHalfScores, LargestSumsOfDq) {
  const BackwardCase test{.name = "dq",
                          .cu_seqlens_q = {0, 70},
                          .cu_seqlens_k = {0, 192},
                          .head_dim = 64,
                          .sigma_q = 0.02,
                          .dout_mean = 4.6,
                          .dout_sigma = 0.0,
                          .v_signs = true,
                          .k_size = 0.4375,
                          .scores = Scores::kF16};
  const BackwardBatch batch(test);
  const BackwardBatch::Results got = batch.run();
  const Wanted want = expected(batch, test);
  EXPECT_TRUE(expect_close(gradient(got.dq, batch.q(), batch.pitch()), want.oracle_dq,
                           {.metric = Metric::kSqnrDb, .limit = 28}, {.label = "dq", .cols = 64}));
}

TEST(BackwardHalfScores, ZeroDoutMakesZeros) {
  const BackwardCase test{.name = "zeros",
                          .cu_seqlens_q = {0, 600},
                          .cu_seqlens_k = {0, 200},
                          .head_dim = 64,
                          .zero_dout = 600,
                          .scores = Scores::kF16};
  const BackwardBatch batch(test);
  const BackwardBatch::Results got = batch.run();
  for (const auto* codes : {&got.dq, &got.dk, &got.dv}) {
    EXPECT_TRUE(std::ranges::all_of(*codes, [](std::uint16_t x) { return (x & 0x7FFF) == 0; }));
  }
}

TEST(BackwardSubsets, WhatIsNotWantedStays) {
  const BackwardCase test{.name = "subset", .cu_seqlens_q = {0, 40}, .cu_seqlens_k = {0, 60, 60}};
  BackwardCase jagged = test;
  jagged.cu_seqlens_q = {0, 30, 40};
  const BackwardBatch batch(jagged);
  const BackwardBatch::Results all = batch.run();
  for (int kept = 0; kept < 3; ++kept) {
    const auto got = batch.run({.dq = kept == 0, .dk = kept == 1, .dv = kept == 2});
    const std::vector<std::uint16_t>* const results[] = {&got.dq, &got.dk, &got.dv};
    const std::vector<std::uint16_t>* const wanted[] = {&all.dq, &all.dk, &all.dv};
    for (int i = 0; i < 3; ++i) {
      const std::vector<std::uint16_t> untouched(results[i]->size(), 0xFFFF);
      EXPECT_TRUE(bitwise_equal(*results[i], i == kept ? *wanted[i] : untouched)) << kept << i;
    }
  }
}

TEST_P(Backward, AsTheRecipe) {
  const BackwardCase& test = GetParam();
  const std::uint64_t overflows = expect_as_recipe(test);
  EXPECT_TRUE(test.name != "overflow" || overflows > 100) << overflows;
}

constexpr auto kTopLeft = CausalAlignment::kTopLeft;

const BackwardCase kCases[] = {
    {.name = "one_tile", .cu_seqlens_q = {0, 64}, .cu_seqlens_k = {0, 128}},
    {.name = "tiles", .cu_seqlens_q = {0, 150}, .cu_seqlens_k = {0, 300}},
    {.name = "narrow", .cu_seqlens_q = {0, 150}, .cu_seqlens_k = {0, 300}, .head_dim = 64},
    {.name = "jagged",
     .cu_seqlens_q = {0, 5, 5, 140, 170, 171, 190},
     .cu_seqlens_k = {0, 130, 160, 190, 190, 330, 330},
     .head_dim = 64,
     .num_heads = 2,
     .num_heads_kv = 2,
     .slack_rows = 7,
     .slack_columns = 8},
    {.name = "jagged_wide",
     .cu_seqlens_q = {0, 70, 75},
     .cu_seqlens_k = {0, 30, 170},
     .slack_rows = 7,
     .slack_columns = 8},
    {.name = "grouped",
     .cu_seqlens_q = {0, 70, 75},
     .cu_seqlens_k = {0, 30, 170},
     .head_dim = 64,
     .num_heads = 4,
     .num_heads_kv = 2,
     .dout_spread = 4.0},
    {.name = "causal",
     .cu_seqlens_q = {0, 140, 150},
     .cu_seqlens_k = {0, 260, 265},
     .head_dim = 64,
     .mask = {.causal = true}},
    {.name = "top_left",
     .cu_seqlens_q = {0, 100},
     .cu_seqlens_k = {0, 300},
     .head_dim = 64,
     .mask = {.causal = true, .alignment = kTopLeft}},
    {.name = "few_keys",
     .cu_seqlens_q = {0, 200},
     .cu_seqlens_k = {0, 90},
     .head_dim = 64,
     .mask = {.causal = true}},
    {.name = "window",
     .cu_seqlens_q = {0, 200},
     .cu_seqlens_k = {0, 400},
     .head_dim = 64,
     .mask = {.window_left = 40, .window_right = 10}},
    {.name = "broadcast",
     .cu_seqlens_q = {0, 66},
     .cu_seqlens_k = {0, 100, 100, 260},
     .head_dim = 64,
     .num_heads = 3,
     .num_heads_kv = 3,
     .broadcast_q = true},
    {.name = "dense",
     .cu_seqlens_q = {0, 100, 200},
     .cu_seqlens_k = {0, 140, 280},
     .head_dim = 64,
     .num_heads = 2,
     .num_heads_kv = 1,
     .mask = {.causal = true},
     .dense = true},
    {.name = "peaky", .cu_seqlens_q = {0, 100}, .cu_seqlens_k = {0, 200}, .sigma_q = 6.0},
    {.name = "spread",
     .cu_seqlens_q = {0, 140},
     .cu_seqlens_k = {0, 200},
     .spread = 4.0,
     .dout_spread = 6.0},
    {.name = "promoted",
     .cu_seqlens_q = {0, 2100},
     .cu_seqlens_k = {0, 20},
     .head_dim = 64,
     .dout_mean = 2.0},
    {.name = "folded",
     .cu_seqlens_q = {0, 1030},
     .cu_seqlens_k = {0, 140},
     .head_dim = 64,
     .num_heads = 2,
     .dout_mean = 2.0},
    {.name = "padded", .cu_seqlens_q = {0, 70}, .cu_seqlens_k = {0, 140}, .head_dim = 96},
    {.name = "no_row_max",
     .cu_seqlens_q = {0, 70},
     .cu_seqlens_k = {0, 140},
     .head_dim = 40,
     .row_max = false},
    {.name = "half_sums",
     .cu_seqlens_q = {0, 100},
     .cu_seqlens_k = {0, 100},
     .dq_sums = DqSums::kF16},
    {.name = "half_sums_narrow",
     .cu_seqlens_q = {0, 70, 75},
     .cu_seqlens_k = {0, 30, 120},
     .head_dim = 64,
     .slack_rows = 7,
     .dq_sums = DqSums::kF16},
    {.name = "overflow",
     .cu_seqlens_q = {0, 100},
     .cu_seqlens_k = {0, 100},
     .head_dim = 64,
     .dout_sigma = 1500.0,
     .dq_sums = DqSums::kF16},
};

INSTANTIATE_TEST_SUITE_P(Cases, Backward, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return test.param.name; });

std::vector<BackwardCase> cases_of(const std::vector<std::string>& names) {
  std::vector<BackwardCase> cases;
  for (const std::string& name : names) {
    const auto* const found = std::ranges::find(kCases, name, &BackwardCase::name);
    if (found == std::end(kCases)) throw std::invalid_argument("no case is named " + name);
    cases.push_back(*found);
  }
  return cases;
}

// Half scores: of the cases above those that take other ways there, and more of them.
std::vector<BackwardCase> half_score_cases() {
  std::vector<BackwardCase> cases =
      cases_of({"tiles", "jagged", "grouped", "causal", "window", "promoted", "folded", "padded",
                "no_row_max", "broadcast", "half_sums"});
  cases.push_back({.name = "peaky",
                   .cu_seqlens_q = {0, 100},
                   .cu_seqlens_k = {0, 200},
                   .sigma_q = 6.0,
                   .half_recipe_db = 32});
  cases.push_back({.name = "spread",
                   .cu_seqlens_q = {0, 140},
                   .cu_seqlens_k = {0, 200},
                   .spread = 1.5,
                   .dout_spread = 6.0,
                   .half_recipe_db = 32});
  // Queries of zeros beside others: dQ of theirs is none the less.
  cases.push_back({.name = "zero_queries",
                   .cu_seqlens_q = {0, 140},
                   .cu_seqlens_k = {0, 200},
                   .head_dim = 64,
                   .zero_q = 40});
  // The exponent of dS rises with every tile, falls, or is there late.
  for (const double growth : {1.0, -1.0}) {
    cases.push_back({.name = growth > 0 ? "growing" : "shrinking",
                     .cu_seqlens_q = {0, 1300},
                     .cu_seqlens_k = {0, 200},
                     .head_dim = 64,
                     .tile_growth = growth,
                     .half_recipe_db = 32});
  }
  cases.push_back({.name = "zero_dout",
                   .cu_seqlens_q = {0, 1300},
                   .cu_seqlens_k = {0, 200},
                   .head_dim = 64,
                   .zero_dout = 700});
  // To the scratch more than once, for each head of Q.
  cases.push_back({.name = "promoted_heads",
                   .cu_seqlens_q = {0, 4500},
                   .cu_seqlens_k = {0, 30},
                   .head_dim = 64,
                   .num_heads = 2,
                   .dout_mean = 2.0});
  for (BackwardCase& test : cases) {
    test.scores = Scores::kF16;
    // Where dV's sums have one sign, what they lose in half adds up: 0.84 dB, of promoted_heads.
    if (test.dout_mean != 0) test.half_oracle_db = 1.0;
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(HalfScores, Backward, ::testing::ValuesIn(half_score_cases()),
                         [](const auto& test) { return test.param.name; });

// S^T, dP^T or both from BF16; the same GEMMs behind them.
std::vector<BackwardCase> dial_cases() {
  std::vector<BackwardCase> cases;
  for (const auto& [product, name] :
       {std::pair(Product::kBf16S, "s"), std::pair(Product::kBf16Dp, "dp"),
        std::pair(Product::kBf16, "both")}) {
    for (BackwardCase test :
         cases_of({"tiles", "jagged", "jagged_wide", "grouped", "causal", "broadcast", "dense",
                   "spread", "promoted", "padded", "no_row_max"})) {
      test.name += std::string("_") + name;
      test.product = product;
      cases.push_back(test);
    }
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Bf16, Backward, ::testing::ValuesIn(dial_cases()),
                         [](const auto& test) { return test.param.name; });

// Operands of a leak-free forward, some of them with scales that differ from token to token.
std::vector<BackwardCase> token_cases() {
  std::vector<BackwardCase> cases =
      cases_of({"tiles", "narrow", "jagged", "jagged_wide", "grouped", "causal", "window",
                "broadcast", "dense", "spread", "promoted", "folded", "padded", "no_row_max"});
  cases.push_back({.name = "tokens_differ",
                   .cu_seqlens_q = {0, 140, 150},
                   .cu_seqlens_k = {0, 200, 330},
                   .mask = {.causal = true},
                   .token_spread = 5.0});
  cases.push_back({.name = "tokens_differ_narrow",
                   .cu_seqlens_q = {0, 140},
                   .cu_seqlens_k = {0, 200},
                   .head_dim = 64,
                   .num_heads = 2,
                   .token_spread = 10.0});
  cases.push_back({.name = "zero_queries",
                   .cu_seqlens_q = {0, 140},
                   .cu_seqlens_k = {0, 200},
                   .head_dim = 64,
                   .zero_q = 40});
  for (BackwardCase& test : cases) test.product = Product::kTokenScales;
  return cases;
}
INSTANTIATE_TEST_SUITE_P(TokenScales, Backward, ::testing::ValuesIn(token_cases()),
                         [](const auto& test) { return test.param.name; });

/// 0, step, .., count * step.
std::vector<std::int32_t> multiples(std::int32_t step, int count) {
  std::vector<std::int32_t> values;
  for (int i = 0; i <= count; ++i) values.push_back(i * step);
  return values;
}

const BackwardCase kOrdered[] = {
    {.name = "dense",
     .cu_seqlens_q = {0, 100, 200},
     .cu_seqlens_k = {0, 700, 1400},
     .head_dim = 64,
     .dense = true,
     .dq_sums = DqSums::kF16},
    {.name = "causal",
     .cu_seqlens_q = {0, 300, 310},
     .cu_seqlens_k = {0, 500, 760},
     .head_dim = 64,
     .mask = {.causal = true}},
    {.name = "window",
     .cu_seqlens_q = {0, 200},
     .cu_seqlens_k = {0, 900},
     .head_dim = 64,
     .mask = {.window_left = 200, .window_right = 10}},
    {.name = "groups_of_heads",
     .cu_seqlens_q = {0, 70, 170},
     .cu_seqlens_k = {0, 400, 700},
     .head_dim = 64,
     .num_heads = 6,
     .num_heads_kv = 3},
    {.name = "broadcast",
     .cu_seqlens_q = {0, 66},
     .cu_seqlens_k = {0, 300, 300, 660},
     .head_dim = 64,
     .broadcast_q = true},
    {.name = "half_scores",
     .cu_seqlens_q = {0, 300, 310},
     .cu_seqlens_k = {0, 500, 760},
     .head_dim = 64,
     .num_heads = 2,
     .num_heads_kv = 1,
     .mask = {.causal = true},
     .scores = Scores::kF16},
    // As many streams as sequences: of no keys, of no queries, of many more keys than the others.
    {.name = "streams",
     .cu_seqlens_q = {0, 70, 140, 140, 204, 210},
     .cu_seqlens_k = {0, 400, 400, 500, 1500, 1510},
     .head_dim = 64,
     .num_heads = 2,
     .num_heads_kv = 2},
    {.name = "more_sequences_than_streams",
     .cu_seqlens_q = multiples(3, 70),
     .cu_seqlens_k = multiples(130, 70),
     .head_dim = 64},
    {.name = "tokens_differ",
     .cu_seqlens_q = {0, 140},
     .cu_seqlens_k = {0, 300},
     .head_dim = 64,
     .token_spread = 10.0,
     .product = Product::kTokenScales},
    {.name = "bf16",
     .cu_seqlens_q = {0, 140},
     .cu_seqlens_k = {0, 300},
     .mask = {.causal = true},
     .product = Product::kBf16},
};
INSTANTIATE_TEST_SUITE_P(Cases, BackwardInOrder, ::testing::ValuesIn(kOrdered),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace mxfa::testing
