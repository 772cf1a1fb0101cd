#include "reference/cross_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/parallel.h"
#include "support/compare.h"
#include "support/gradcheck.h"
#include "support/rng.h"

namespace mxfa::reference {
namespace {

using testing::Rng;

struct Size {
  std::vector<std::int32_t> cu_seqlens_k;
  std::int64_t seqlen_q = 3;
  std::int64_t dim = 12;
  std::int64_t num_heads = 2;
  std::int64_t num_heads_kv = 2;
  std::int64_t head_dim = 8;
};

const Size kSizes[] = {
    {.cu_seqlens_k = {0, 5}},
    {.cu_seqlens_k = {0, 4, 4, 11, 12}, .seqlen_q = 4, .num_heads = 4},
    {.cu_seqlens_k = {0, 0, 6}, .seqlen_q = 1, .dim = 20, .num_heads = 3, .num_heads_kv = 1},
};

CrossAttentionInputs random_inputs(const Size& size, std::uint64_t seed) {
  Rng rng(seed);
  const auto matrix = [&](std::int64_t rows, std::int64_t cols, double sigma) {
    Matrix<double> result(rows, cols);
    result.data = rng.normal_values<double>(rows * cols, sigma);
    return result;
  };
  const double sigma = 1 / std::sqrt(double(size.dim));
  const std::int64_t width_q = size.num_heads * size.head_dim;
  const std::int64_t width_k = size.num_heads_kv * size.head_dim;
  const std::int64_t batch = std::int64_t(size.cu_seqlens_k.size()) - 1;
  CrossAttentionInputs inputs{.num_heads = size.num_heads,
                              .num_heads_kv = size.num_heads_kv,
                              .head_dim = size.head_dim,
                              .cu_seqlens_k = size.cu_seqlens_k,
                              .seeds = matrix(size.seqlen_q, size.dim, 1),
                              .kv = matrix(size.cu_seqlens_k.back(), size.dim, 2),
                              .seed_norm_weight = rng.normal_values<double>(size.dim, 0.2, 1),
                              .kv_norm_weight = rng.normal_values<double>(size.dim, 0.2, 1),
                              .wq = matrix(width_q, size.dim, 2 * sigma),
                              .wk = matrix(width_k, size.dim, 2 * sigma),
                              .wv = matrix(width_k, size.dim, sigma),
                              .wo = matrix(size.dim, width_q, 1 / std::sqrt(double(width_q))),
                              .dy = matrix(batch * size.seqlen_q, size.dim, 1)};
  return inputs;
}

void expect_same_bits(const CrossAttentionResult& got, const CrossAttentionResult& want,
                      const std::string& label) {
  for (const auto& [name, member] : kCrossAttentionTensors) {
    EXPECT_TRUE(testing::bitwise_equal((got.*member).data, (want.*member).data,
                                       {.label = label + " " + std::string(name)}));
  }
}

TEST(CrossAttention, EveryGradientMatchesFiniteDifferences) {
  for (const Size& size : kSizes) {
    CrossAttentionInputs inputs = random_inputs(size, 41);
    const CrossAttentionResult got = cross_attention(inputs);
    const Matrix<double> dy = inputs.dy;
    inputs.dy = {};
    const auto loss = [&] {
      const Matrix<double> y = cross_attention(inputs).y;
      double sum = 0;
      for (std::size_t i = 0; i < y.data.size(); ++i) sum += y.data[i] * dy.data[i];
      return sum;
    };
    Rng rng(42);
    const auto check = [&](std::vector<double>& values, const Matrix<double>& gradient,
                           const char* name) {
      const testing::GradientCheck options{.step = 2e-4};
      EXPECT_TRUE(testing::gradient_matches(loss, values, gradient.data, rng, options))
          << name << ", " << size.num_heads << " heads";
    };
    check(inputs.seeds.data, got.dseeds, "dseeds");
    check(inputs.kv.data, got.dkv, "dkv");
    check(inputs.seed_norm_weight, got.dseed_norm_weight, "dseed_norm_weight");
    check(inputs.kv_norm_weight, got.dkv_norm_weight, "dkv_norm_weight");
    check(inputs.wq.data, got.dwq, "dwq");
    check(inputs.wk.data, got.dwk, "dwk");
    check(inputs.wv.data, got.dwv, "dwv");
    check(inputs.wo.data, got.dwo, "dwo");
  }
}

/// One seed, one sequence of two tokens, dim = head_dim = 8, identity projections, worked by hand.
TEST(CrossAttention, IdentityProjectionsByHand) {
  Matrix<double> identity(8, 8);
  for (std::int64_t d = 0; d < 8; ++d) identity(d, d) = 1;
  const std::vector<std::int32_t> cu_seqlens_k{0, 2};
  CrossAttentionInputs inputs{.head_dim = 8,
                              .softmax_scale = 0.25,
                              .eps = 0,
                              .cu_seqlens_k = cu_seqlens_k,
                              .seeds = Matrix<double>(1, 8, 3.0),
                              .kv = Matrix<double>(2, 8, 5.0),
                              .seed_norm_weight = std::vector<double>(8, 1.0),
                              .kv_norm_weight = std::vector<double>(8, 2.0),
                              .wq = identity,
                              .wk = identity,
                              .wv = identity,
                              .wo = identity,
                              .dy = Matrix<double>(1, 8, 1.0)};
  for (std::int64_t d = 0; d < 8; ++d) inputs.kv(1, d) = -5;
  const CrossAttentionResult r = cross_attention(inputs);
  // Normed rows are 1, 2 and -2 in every column: scores 0.25 * 8 * (+-2) = +-4.
  const double weight = 1 / (1 + std::exp(-8));
  EXPECT_NEAR(r.lse(0, 0), 4 + std::log1p(std::exp(-8)), 1e-14);
  EXPECT_NEAR(r.y(0, 3), 2 * weight - 2 * (1 - weight), 1e-14);
  EXPECT_NEAR(r.dv(0, 0), weight, 1e-15);
  EXPECT_NEAR(r.dv(1, 0), 1 - weight, 1e-15);
  // dP = 8 * (+-2), dS = p (dP - delta), delta = 8 * o.
  const double ds = weight * (16 - 8 * r.y(0, 0));
  EXPECT_NEAR(r.delta(0, 0), 8 * r.y(0, 0), 1e-14);
  EXPECT_NEAR(r.dq(0, 5), 0.25 * (ds * 2 - ds * -2), 1e-14);
  EXPECT_NEAR(r.dk(0, 5), 0.25 * ds, 1e-15);
  EXPECT_NEAR(r.dk(1, 5), -0.25 * ds, 1e-15);
  // Each row is constant, so its direction is the one that RMSNorm removes.
  EXPECT_NEAR(r.dseeds(0, 1), 0, 1e-15);
  EXPECT_NEAR(r.dkv(1, 1), 0, 1e-15);
  EXPECT_NEAR(r.dwo(2, 6), r.y(0, 6), 1e-15);
}

TEST(CrossAttention, TheListNamesEveryTensorOnceWithItsShape) {
  const Size size = kSizes[1];
  const CrossAttentionResult r = cross_attention(random_inputs(size, 43));
  std::set<std::string_view> names;
  std::set<const void*> tensors;
  for (const auto& [name, member] : kCrossAttentionTensors) {
    names.insert(name);
    tensors.insert(&(r.*member));
    EXPECT_EQ(std::int64_t((r.*member).data.size()), (r.*member).rows * (r.*member).cols) << name;
    double norm = 0;
    for (const double value : (r.*member).data) norm += value * value;
    EXPECT_TRUE(std::isfinite(norm) || name == "lse") << name;
    EXPECT_GT(norm, 0) << name;
  }
  EXPECT_EQ(names.size(), 24u);
  EXPECT_EQ(tensors.size(), 24u);
  EXPECT_EQ(sizeof(CrossAttentionResult), 24 * sizeof(Matrix<double>)) << "a member is not listed";
  const auto shape = [](const Matrix<double>& m) { return std::pair(m.rows, m.cols); };
  EXPECT_EQ(shape(r.seed_norm), shape(r.dseed_norm));
  EXPECT_EQ(shape(r.kv_norm), shape(r.dkv));
  EXPECT_EQ(shape(r.o), (std::pair<std::int64_t, std::int64_t>(4 * 4, 4 * 8)));
  EXPECT_EQ(shape(r.dq_seq), shape(r.o));
  EXPECT_EQ(shape(r.lse), (std::pair<std::int64_t, std::int64_t>(4, 4 * 4)));
  EXPECT_EQ(shape(r.dk), (std::pair<std::int64_t, std::int64_t>(12, 2 * 8)));
  EXPECT_EQ(shape(r.dwo), (std::pair<std::int64_t, std::int64_t>(12, 4 * 8)));
}

/// Intermediate gradients, each from its neighbours by the definition in the header.
TEST(CrossAttention, IntermediatesFollowFromTheirNeighbours) {
  const CrossAttentionInputs inputs = random_inputs(kSizes[1], 44);
  const CrossAttentionResult r = cross_attention(inputs);
  const testing::Tolerance rounding{.limit = 1e-13};
  Matrix<double> dq(r.q.rows, r.q.cols);
  for (std::int64_t row = 0; row < r.dq_seq.rows; ++row) {
    for (std::int64_t c = 0; c < r.q.cols; ++c) dq(row % r.q.rows, c) += r.dq_seq(row, c);
  }
  EXPECT_TRUE(testing::expect_close(r.dq.data, dq.data, rounding, {.label = "dq"}));
  Matrix<double> delta(r.lse.rows, r.lse.cols);
  for (std::int64_t row = 0; row < r.o.rows; ++row) {
    for (std::int64_t c = 0; c < r.o.cols; ++c) delta(c / 8, row) += r.o(row, c) * r.dout(row, c);
  }
  EXPECT_TRUE(testing::expect_close(r.delta.data, delta.data, rounding, {.label = "delta"}));
  Matrix<double> dout(r.o.rows, r.o.cols);
  Matrix<double> dkv_norm(r.k.rows, inputs.kv.cols);
  for (std::int64_t m = 0; m < inputs.wo.rows; ++m) {
    for (std::int64_t row = 0; row < dout.rows; ++row) {
      for (std::int64_t c = 0; c < dout.cols; ++c)
        dout(row, c) += inputs.dy(row, m) * inputs.wo(m, c);
    }
    for (std::int64_t row = 0; row < r.k.rows; ++row) {
      for (std::int64_t c = 0; c < r.k.cols; ++c) {
        dkv_norm(row, m) += r.dk(row, c) * inputs.wk(c, m) + r.dv(row, c) * inputs.wv(c, m);
      }
    }
  }
  EXPECT_TRUE(testing::expect_close(r.dout.data, dout.data, rounding, {.label = "dout"}));
  EXPECT_TRUE(
      testing::expect_close(r.dkv_norm.data, dkv_norm.data, rounding, {.label = "dkv_norm"}));
}

TEST(CrossAttention, SequencesDoNotTouchEachOther) {
  const Size both{.cu_seqlens_k = {0, 4, 9}};
  CrossAttentionInputs inputs = random_inputs(both, 45);
  const CrossAttentionResult want = cross_attention(inputs);
  for (std::int64_t d = 0; d < 12; ++d) inputs.kv(6, d) = std::nan("");
  const CrossAttentionResult got = cross_attention(inputs);
  for (std::int64_t row = 0; row < 3; ++row) {
    for (std::int64_t d = 0; d < 12; ++d) EXPECT_EQ(got.y(row, d), want.y(row, d));
  }
  for (std::int64_t row = 0; row < 4; ++row) {
    for (std::int64_t d = 0; d < 12; ++d) EXPECT_EQ(got.dkv(row, d), want.dkv(row, d));
  }
  EXPECT_TRUE(std::isnan(got.y(3, 0)));
}

TEST(CrossAttention, SlackRowsBehindTheLastSequenceAreNotRead) {
  const Size size{.cu_seqlens_k = {0, 4, 4, 11, 13}, .dim = 20, .num_heads = 4};
  CrossAttentionInputs inputs = random_inputs(size, 46);
  const CrossAttentionResult want = cross_attention(inputs);
  const std::int64_t total_k = inputs.kv.rows;
  inputs.kv.data.resize((total_k + 5) * inputs.kv.cols, std::numeric_limits<double>::quiet_NaN());
  inputs.kv.rows += 5;
  CrossAttentionResult got = cross_attention(inputs);
  for (const auto& [name, member] : kCrossAttentionTensors) {
    Matrix<double>& tensor = got.*member;
    if ((want.*member).rows != total_k) continue;
    EXPECT_EQ(tensor.rows, total_k + 5) << name;
    for (std::int64_t i = total_k * tensor.cols; i < std::int64_t(tensor.data.size()); ++i) {
      EXPECT_EQ(tensor.data[i], 0) << name;
    }
    tensor.data.resize(total_k * tensor.cols);
  }
  expect_same_bits(got, want, "with slack,");
}

TEST(CrossAttention, ResultsDoNotDependOnTheNumberOfThreads) {
  const Size size{.cu_seqlens_k = {0, 300, 310, 700}, .seqlen_q = 20, .dim = 40, .num_heads = 4};
  const CrossAttentionInputs inputs = random_inputs(size, 47);
  core::set_num_threads(1);
  const CrossAttentionResult want = cross_attention(inputs);
  for (const int threads : {2, 5}) {
    core::set_num_threads(threads);
    expect_same_bits(cross_attention(inputs), want, std::to_string(threads) + " threads,");
  }
  core::set_num_threads(0);
}

TEST(CrossAttention, EmptyBatchGivesZeroWeightGradients) {
  const Size size{.cu_seqlens_k = {0}};
  const CrossAttentionResult r = cross_attention(random_inputs(size, 48));
  EXPECT_EQ(r.y.rows, 0);
  EXPECT_EQ(r.dwq.data, std::vector<double>(16 * 12));
  EXPECT_EQ(r.dwo.data, std::vector<double>(12 * 16));
  EXPECT_EQ(r.dseeds.data, std::vector<double>(3 * 12));
}

TEST(CrossAttention, ForwardAloneEqualsTheForwardOfTheStep) {
  CrossAttentionInputs inputs = random_inputs(kSizes[1], 49);
  const CrossAttentionResult step = cross_attention(inputs);
  inputs.dy = {};
  const CrossAttentionResult forward = cross_attention(inputs);
  EXPECT_TRUE(testing::bitwise_equal(forward.y.data, step.y.data));
  EXPECT_TRUE(forward.dk.data.empty() && forward.dk.rows == 0 && forward.dwo.data.empty());
}

TEST(CrossAttention, RefusesShapesThatDoNotFitByName) {
  const auto message = [](const auto& spoil) {
    CrossAttentionInputs inputs = random_inputs(kSizes[0], 50);
    spoil(inputs);
    try {
      cross_attention(inputs);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message([](auto& i) { i.wk = Matrix<double>(8, 12); }),
            "wk: expected [16, 12], got [8, 12]");
  EXPECT_EQ(message([](auto& i) { i.wo = i.wq; }), "wo: expected [12, 16], got [16, 12]");
  EXPECT_EQ(message([](auto& i) { i.kv = Matrix<double>(5, 11); }),
            "kv: expected [5, 12], got [5, 11]");
  EXPECT_EQ(message([](auto& i) { i.dy = Matrix<double>(4, 12); }),
            "dy: expected [3, 12], got [4, 12]");
  EXPECT_EQ(message([](auto& i) { i.cu_seqlens_k = {}; }),
            "cu_seqlens_k: expected batch + 1 offsets, got none");
  EXPECT_EQ(message([](auto& i) { i.kv = Matrix<double>(4, 12); }),
            "cu_seqlens_k[1]: expected at most 4 (the rows given), got 5");
  EXPECT_EQ(message([](auto& i) { i.seed_norm_weight = {1}; }),
            "seed_norm_weight: expected [12], got [1]");
  EXPECT_EQ(message([](auto& i) { i.num_heads_kv = 3; }),
            "num_heads: expected a multiple of num_heads_kv = 3, got 2");
}

}  // namespace
}  // namespace mxfa::reference
