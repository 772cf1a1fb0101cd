#include "reference/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "reference/batch.h"
#include "support/compare.h"
#include "support/gradcheck.h"
#include "support/rng.h"

namespace mxfa::reference {
namespace {

using attention::Mask;
using testing::Rng;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Shape {
  std::string name;
  std::vector<std::int32_t> cu_seqlens_q;  ///< one sequence where q is broadcast
  std::vector<std::int32_t> cu_seqlens_k;
  std::int64_t num_heads = 1;
  std::int64_t num_heads_kv = 1;
  std::int64_t head_dim = 8;
  Mask mask = {};
  bool broadcast_q = false;

  friend std::ostream& operator<<(std::ostream& out, const Shape& shape) {
    return out << shape.name;
  }
};

/// A jagged batch with random values, and the storage behind its views.
struct Batch {
  Shape shape;
  std::vector<double> q, k, v, dout;

  Batch(Shape s, std::uint64_t seed) : shape(std::move(s)) {
    Rng rng(seed);
    const attention::AttentionProblem p = problem();
    const std::int64_t width_q = p.num_heads * p.head_dim;
    const std::int64_t width_k = p.num_heads_kv * p.head_dim;
    q = rng.normal_values<double>(p.total_q * width_q);
    k = rng.normal_values<double>(p.total_k * width_k);
    v = rng.normal_values<double>(p.total_k * width_k);
    dout = rng.normal_values<double>(p.rows_o() * width_q);
  }
  attention::AttentionProblem problem() const {
    attention::AttentionProblem p{.batch = std::int64_t(shape.cu_seqlens_k.size()) - 1,
                                  .num_heads = shape.num_heads,
                                  .num_heads_kv = shape.num_heads_kv,
                                  .head_dim = shape.head_dim,
                                  .total_q = shape.cu_seqlens_q.back(),
                                  .total_k = shape.cu_seqlens_k.back(),
                                  .cu_seqlens_k = shape.cu_seqlens_k,
                                  .broadcast_q = shape.broadcast_q,
                                  .mask = shape.mask};
    if (!p.broadcast_q) p.cu_seqlens_q = shape.cu_seqlens_q;
    return p;
  }
  PackedInputsF64 inputs() const {
    return {.problem = problem(), .q = q, .k = k, .v = v, .dout = dout};
  }
};

std::vector<Shape> shapes() {
  const Mask causal{.causal = true};
  const Mask top_left{.causal = true, .alignment = CausalAlignment::kTopLeft};
  const Mask window{.window_left = 2, .window_right = 1};
  const Mask narrow{.causal = true, .window_left = 1};
  return {
      {.name = "one_head", .cu_seqlens_q = {0, 5}, .cu_seqlens_k = {0, 7}},
      {.name = "jagged", .cu_seqlens_q = {0, 3, 4, 9}, .cu_seqlens_k = {0, 6, 17, 19}},
      {.name = "empty_sequences",
       .cu_seqlens_q = {0, 0, 3, 5, 5},
       .cu_seqlens_k = {0, 4, 4, 9, 9},
       .num_heads = 2,
       .num_heads_kv = 2},
      {.name = "causal_rows_without_keys",
       .cu_seqlens_q = {0, 6, 9},
       .cu_seqlens_k = {0, 3, 10},
       .mask = causal},
      {.name = "causal_top_left",
       .cu_seqlens_q = {0, 6, 9},
       .cu_seqlens_k = {0, 3, 10},
       .mask = top_left},
      {.name = "window", .cu_seqlens_q = {0, 6, 10}, .cu_seqlens_k = {0, 6, 19}, .mask = window},
      {.name = "causal_window", .cu_seqlens_q = {0, 9}, .cu_seqlens_k = {0, 5}, .mask = narrow},
      {.name = "grouped_heads",
       .cu_seqlens_q = {0, 3, 7},
       .cu_seqlens_k = {0, 5, 8},
       .num_heads = 6,
       .num_heads_kv = 2,
       .head_dim = 16},
      {.name = "one_kv_head",
       .cu_seqlens_q = {0, 3},
       .cu_seqlens_k = {0, 5},
       .num_heads = 4,
       .num_heads_kv = 1},
      {.name = "broadcast_q",
       .cu_seqlens_q = {0, 4},
       .cu_seqlens_k = {0, 5, 5, 11, 12},
       .num_heads = 2,
       .num_heads_kv = 1,
       .broadcast_q = true},
      {.name = "broadcast_q_causal",
       .cu_seqlens_q = {0, 4},
       .cu_seqlens_k = {0, 2, 9},
       .num_heads = 1,
       .num_heads_kv = 1,
       .mask = causal,
       .broadcast_q = true},
  };
}

class OracleShapes : public ::testing::TestWithParam<Shape> {};

INSTANTIATE_TEST_SUITE_P(Shapes, OracleShapes, ::testing::ValuesIn(shapes()),
                         [](const auto& instance) { return instance.param.name; });

/// One row of softmax attention straight from its definition, on packed tensors. Returns the LSE.
double definition_row(const Batch& batch, const attention::Sequence& sequence, std::int64_t row,
                      std::int64_t head, double* o) {
  const attention::AttentionProblem p = batch.problem();
  const std::int64_t head_kv = head * p.num_heads_kv / p.num_heads;
  const double* q = &batch.q[((sequence.q_begin + row) * p.num_heads + head) * p.head_dim];
  const auto visible = attention::visible_keys(p.mask, sequence.seqlen_q, sequence.seqlen_k, row);
  double sum = 0;
  for (std::int64_t j = visible.begin; j < visible.end; ++j) {
    const std::int64_t at = ((sequence.k_begin + j) * p.num_heads_kv + head_kv) * p.head_dim;
    double dot = 0;
    for (std::int64_t d = 0; d < p.head_dim; ++d) dot += q[d] * batch.k[at + d];
    const double weight = std::exp(dot / std::sqrt(double(p.head_dim)));
    sum += weight;
    for (std::int64_t d = 0; d < p.head_dim; ++d) o[d] += weight * batch.v[at + d];
  }
  for (std::int64_t d = 0; d < p.head_dim && sum > 0; ++d) o[d] /= sum;
  return std::log(sum);
}

TEST_P(OracleShapes, ForwardMatchesTheDefinition) {
  const Batch batch(GetParam(), 1);
  const attention::AttentionProblem p = batch.problem();
  std::vector<double> o(p.rows_o() * p.num_heads * p.head_dim);
  std::vector<double> lse(p.rows_o() * p.num_heads);
  for (std::int64_t s = 0; s < p.batch; ++s) {
    const std::int32_t* cu_q = batch.shape.cu_seqlens_q.data() + (p.broadcast_q ? 0 : s);
    const std::int32_t* cu_k = batch.shape.cu_seqlens_k.data() + s;
    const attention::Sequence sequence{.q_begin = cu_q[0],
                                       .k_begin = cu_k[0],
                                       .seqlen_q = cu_q[1] - cu_q[0],
                                       .seqlen_k = cu_k[1] - cu_k[0]};
    for (std::int64_t i = 0; i < sequence.seqlen_q; ++i) {
      const std::int64_t row = i + (p.broadcast_q ? s * sequence.seqlen_q : sequence.q_begin);
      for (std::int64_t h = 0; h < p.num_heads; ++h) {
        lse[h * p.rows_o() + row] =
            definition_row(batch, sequence, i, h, &o[(row * p.num_heads + h) * p.head_dim]);
      }
    }
  }
  const PackedOutputs out = batched_forward(batch.inputs());
  const testing::Tolerance rounding{.limit = 1e-12};
  EXPECT_TRUE(testing::expect_close(out.o, o, rounding, {.label = "o", .cols = p.head_dim}));
  EXPECT_TRUE(testing::expect_close(out.lse, lse, rounding, {.label = "lse"}));
}

TEST_P(OracleShapes, GradientsMatchFiniteDifferences) {
  Batch batch(GetParam(), 2);
  const PackedOutputs out = batched_backward(batch.inputs());
  const auto loss = [&] {
    const PackedOutputs moved = batched_forward(batch.inputs());
    double sum = 0;
    for (std::size_t i = 0; i < moved.o.size(); ++i) sum += moved.o[i] * batch.dout[i];
    return sum;
  };
  Rng rng(3);
  EXPECT_TRUE(testing::gradient_matches(loss, batch.q, out.dq, rng)) << "dq";
  EXPECT_TRUE(testing::gradient_matches(loss, batch.k, out.dk, rng)) << "dk";
  EXPECT_TRUE(testing::gradient_matches(loss, batch.v, out.dv, rng)) << "dv";
}

TEST_P(OracleShapes, DeltaIsTheRowSumOfOutputTimesGradient) {
  const Batch batch(GetParam(), 4);
  const attention::AttentionProblem p = batch.problem();
  const PackedOutputs out = batched_backward(batch.inputs());
  std::vector<double> delta(out.lse.size());
  for (std::int64_t row = 0; row < p.rows_o(); ++row) {
    for (std::int64_t h = 0; h < p.num_heads; ++h) {
      for (std::int64_t d = 0; d < p.head_dim; ++d) {
        const std::int64_t at = (row * p.num_heads + h) * p.head_dim + d;
        delta[h * p.rows_o() + row] += out.o[at] * batch.dout[at];
      }
    }
  }
  EXPECT_TRUE(testing::bitwise_equal(out.delta, delta, {.label = "delta"}));
}

TEST(Oracle, FloatInputsGiveTheBitsOfTheirDoubles) {
  const Shape shape{.name = "",
                    .cu_seqlens_q = {0, 5, 70},
                    .cu_seqlens_k = {0, 130, 201},
                    .head_dim = 64,
                    .mask = {.causal = true}};
  Batch batch(shape, 5);
  const auto narrowed = [](std::vector<double>& values) {
    const std::vector<float> floats(values.begin(), values.end());
    values.assign(floats.begin(), floats.end());
    return floats;
  };
  const auto q = narrowed(batch.q), k = narrowed(batch.k), v = narrowed(batch.v);
  const auto dout = narrowed(batch.dout);
  const PackedOutputs want = batched_backward(batch.inputs());
  const PackedOutputs got = batched_backward(
      PackedInputs{.problem = batch.problem(), .q = q, .k = k, .v = v, .dout = dout});
  EXPECT_TRUE(testing::bitwise_equal(got.o, want.o, {.label = "o"}));
  EXPECT_TRUE(testing::bitwise_equal(got.dq, want.dq, {.label = "dq"}));
  EXPECT_TRUE(testing::bitwise_equal(got.dk, want.dk, {.label = "dk"}));
  EXPECT_TRUE(testing::bitwise_equal(got.dv, want.dv, {.label = "dv"}));
}

TEST(Oracle, ScoresAndProbabilitiesOfOneHead) {
  HeadInputs inputs;
  inputs.q = Matrix<float>(2, 2);
  inputs.k = Matrix<float>(2, 2);
  inputs.v = Matrix<float>(2, 2);
  inputs.q.data = {1, 0, 0, 2};
  inputs.k.data = {1, 3, -1, 5};
  inputs.v.data = {1, 2, 3, 4};
  inputs.mask.causal = true;
  inputs.softmax_scale = 0.5;
  const ForwardResult result = attention_forward(inputs);
  EXPECT_EQ(result.s.data, (std::vector<double>{0.5, -0.5, 3, 5}));
  EXPECT_EQ(result.p(0, 0), 1);
  EXPECT_EQ(result.p(0, 1), 0);
  EXPECT_NEAR(result.p(1, 0), 1 / (1 + std::exp(2)), 1e-15);
  EXPECT_NEAR(result.p(1, 1), 1 / (1 + std::exp(-2)), 1e-15);
  EXPECT_EQ(result.lse[0], 0.5);
}

/// A hidden key holds NaN, and so does the gradient of a query that sees nothing.
TEST(Oracle, NaNInHiddenRowsStaysThere) {
  Batch batch({.name = "", .cu_seqlens_q = {0, 5}, .cu_seqlens_k = {0, 7}}, 6);
  batch.shape.mask = {.alignment = CausalAlignment::kTopLeft, .window_left = 3, .window_right = 0};
  const PackedOutputs want = batched_backward(batch.inputs());
  for (std::int64_t d = 0; d < batch.shape.head_dim; ++d) {
    batch.k[6 * batch.shape.head_dim + d] = std::nan("");
    batch.v[5 * batch.shape.head_dim + d] = std::nan("");
  }
  const PackedOutputs got = batched_backward(batch.inputs());
  EXPECT_TRUE(testing::bitwise_equal(got.o, want.o, {.label = "o"}));
  EXPECT_TRUE(testing::bitwise_equal(got.dq, want.dq, {.label = "dq"}));
  EXPECT_TRUE(testing::bitwise_equal(got.dk, want.dk, {.label = "dk"}));
  EXPECT_TRUE(testing::bitwise_equal(got.dv, want.dv, {.label = "dv"}));

  Batch blind({.name = "", .cu_seqlens_q = {0, 5}, .cu_seqlens_k = {0, 2}}, 7);
  blind.shape.mask.causal = true;
  const PackedOutputs finite = batched_backward(blind.inputs());
  for (std::int64_t d = 0; d < blind.shape.head_dim; ++d) blind.dout[d] = blind.q[d] = std::nan("");
  const PackedOutputs poisoned = batched_backward(blind.inputs());
  EXPECT_TRUE(testing::bitwise_equal(poisoned.dq, finite.dq, {.label = "dq, blind row"}));
  EXPECT_TRUE(testing::bitwise_equal(poisoned.dk, finite.dk, {.label = "dk, blind row"}));
  EXPECT_TRUE(testing::bitwise_equal(poisoned.dv, finite.dv, {.label = "dv, blind row"}));
  EXPECT_TRUE(testing::bitwise_equal(poisoned.delta, finite.delta, {.label = "delta, blind row"}));
}

TEST(Oracle, InfiniteAndNaNScoresStayLoud) {
  Batch batch({.name = "", .cu_seqlens_q = {0, 2}, .cu_seqlens_k = {0, 3}}, 8);
  batch.k[0] = std::nan("");
  const PackedOutputs nan = batched_forward(batch.inputs());
  EXPECT_TRUE(std::isnan(nan.o[0]) && std::isnan(nan.lse[1])) << nan.o[0] << " " << nan.lse[1];
  batch.k[0] = batch.q[0] > 0 ? kInfinity : -kInfinity;
  EXPECT_TRUE(std::isnan(batched_forward(batch.inputs()).o[0]));
}

TEST(Oracle, RefusesShapesThatDoNotFit) {
  HeadInputs inputs;
  inputs.q = Matrix<float>(2, 8);
  inputs.k = Matrix<float>(3, 8);
  inputs.v = Matrix<float>(4, 8);
  const auto message = [&] {
    try {
      const ForwardResult forward = attention_forward(inputs);
      attention_backward(inputs, forward);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message(), "v: expected [3, 8], got [4, 8]");
  inputs.v = Matrix<float>(3, 8);
  EXPECT_EQ(message(), "dout: expected [2, 8], got [0, 0]");
  inputs.k = Matrix<float>(3, 7);
  EXPECT_EQ(message(), "k: expected [3, 8], got [3, 7]");
}

TEST(SqnrDb, DefinitionAndEdges) {
  EXPECT_DOUBLE_EQ(sqnr_db({3, 4}, {3, 4.5}), 20);
  EXPECT_EQ(sqnr_db({3, 4}, {3, 4}), kInfinity);
  EXPECT_EQ(sqnr_db({}, {}), kInfinity);
  EXPECT_EQ(sqnr_db({0, 0}, {0, 1}), -kInfinity);
  EXPECT_DOUBLE_EQ(sqnr_db({-kInfinity, 10}, {-kInfinity, 9}), 20);
  EXPECT_TRUE(std::isnan(sqnr_db({1, 2}, {1, std::nan("")})));
  EXPECT_TRUE(std::isnan(sqnr_db({std::nan("")}, {std::nan("")})));
  EXPECT_THROW(sqnr_db({1, 2}, {1}), Error);
}

/// The largest shape that other tests use must stay affordable on one core.
TEST(OracleFull, OneLongHeadIsFastEnough) {
  const Shape shape{
      .name = "", .cu_seqlens_q = {0, 512}, .cu_seqlens_k = {0, 4096}, .head_dim = 128};
  const Batch batch(shape, 9);
  const auto start = std::chrono::steady_clock::now();
  const PackedOutputs out = batched_backward(batch.inputs());
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  EXPECT_LT(elapsed.count(), 5) << "about 0.3 s on an idle core";
  EXPECT_TRUE(std::isfinite(out.dq[0]));
}

}  // namespace
}  // namespace mxfa::reference
