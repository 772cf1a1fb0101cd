#include "reference/batch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/parallel.h"
#include "support/compare.h"
#include "support/rng.h"

namespace mxfa::reference {
namespace {

using testing::Rng;

/// Three sequences, four heads over two, head_dim 8; `slack` NaN rows behind every tensor's end.
struct Packed {
  std::vector<std::int32_t> cu_seqlens_q{0, 3, 3, 8};
  std::vector<std::int32_t> cu_seqlens_k{0, 6, 10, 13};
  attention::AttentionProblem problem;
  std::vector<float> q, k, v, dout;

  explicit Packed(bool broadcast_q, std::int64_t slack = 0) {
    problem = {.batch = 3,
               .num_heads = 4,
               .num_heads_kv = 2,
               .head_dim = 8,
               .total_q = 8 + (broadcast_q ? 0 : slack),
               .total_k = 13 + slack,
               .cu_seqlens_k = cu_seqlens_k,
               .broadcast_q = broadcast_q};
    if (!broadcast_q) problem.cu_seqlens_q = cu_seqlens_q;
    Rng rng(11);
    q = rng.normal_values<float>(8 * 4 * 8);
    k = rng.normal_values<float>(13 * 2 * 8);
    v = rng.normal_values<float>(13 * 2 * 8);
    dout = rng.normal_values<float>((broadcast_q ? 24 : 8) * 4 * 8);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    q.resize(problem.total_q * 4 * 8, nan);
    k.resize(problem.total_k * 2 * 8, nan);
    v.resize(problem.total_k * 2 * 8, nan);
    dout.resize(problem.rows_o() * 4 * 8, nan);
  }
  Packed(const Packed&) = delete;
  PackedInputs inputs() const { return {.problem = problem, .q = q, .k = k, .v = v, .dout = dout}; }
};

template <class Function>
std::string message_of(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void expect_same_bits(const PackedOutputs& got, const PackedOutputs& want,
                      const std::string& label) {
  EXPECT_TRUE(testing::bitwise_equal(got.o, want.o, {.label = label + " o"}));
  EXPECT_TRUE(testing::bitwise_equal(got.lse, want.lse, {.label = label + " lse"}));
  EXPECT_TRUE(testing::bitwise_equal(got.delta, want.delta, {.label = label + " delta"}));
  EXPECT_TRUE(testing::bitwise_equal(got.dq, want.dq, {.label = label + " dq"}));
  EXPECT_TRUE(testing::bitwise_equal(got.dq_seq, want.dq_seq, {.label = label + " dq_seq"}));
  EXPECT_TRUE(testing::bitwise_equal(got.dk, want.dk, {.label = label + " dk"}));
  EXPECT_TRUE(testing::bitwise_equal(got.dv, want.dv, {.label = label + " dv"}));
}

TEST(Batch, ResultsDoNotDependOnTheNumberOfThreads) {
  for (const bool broadcast_q : {false, true}) {
    const Packed packed(broadcast_q);
    core::set_num_threads(1);
    const PackedOutputs want = batched_backward(packed.inputs());
    for (const int threads : {2, 5}) {
      core::set_num_threads(threads);
      expect_same_bits(batched_backward(packed.inputs()), want,
                       std::to_string(threads) + " threads,");
    }
    core::set_num_threads(0);
  }
}

TEST(Batch, EveryHeadOfEverySequenceRunsOnceWithItsRows) {
  const Packed packed(false);
  std::vector<std::atomic<int>> calls(3 * 4);
  run_heads(packed.inputs(), [&](const HeadInputs& inputs, HeadIndex index) {
    ++calls[index.sequence * 4 + index.head];
    const std::int64_t first_q = packed.cu_seqlens_q[index.sequence];
    const std::int64_t first_k = packed.cu_seqlens_k[index.sequence];
    EXPECT_EQ(inputs.q.rows, packed.cu_seqlens_q[index.sequence + 1] - first_q);
    EXPECT_EQ(inputs.k.rows, packed.cu_seqlens_k[index.sequence + 1] - first_k);
    for (std::int64_t i = 0; i < inputs.q.rows; ++i) {
      EXPECT_EQ(inputs.q(i, 7), packed.q[((first_q + i) * 4 + index.head) * 8 + 7]);
      EXPECT_EQ(inputs.dout(i, 2), packed.dout[((first_q + i) * 4 + index.head) * 8 + 2]);
    }
    for (std::int64_t j = 0; j < inputs.k.rows; ++j) {
      EXPECT_EQ(inputs.k(j, 0), packed.k[((first_k + j) * 2 + index.head / 2) * 8]);
      EXPECT_EQ(inputs.v(j, 5), packed.v[((first_k + j) * 2 + index.head / 2) * 8 + 5]);
    }
    EXPECT_EQ(inputs.softmax_scale, 1 / std::sqrt(8.0));
    return HeadOutputs{.o = Matrix<double>(inputs.q.rows, 8),
                       .lse = std::vector<double>(inputs.q.rows),
                       .delta = std::vector<double>(inputs.q.rows),
                       .dq = Matrix<double>(inputs.q.rows, 8),
                       .dk = Matrix<double>(inputs.k.rows, 8),
                       .dv = Matrix<double>(inputs.k.rows, 8)};
  });
  for (const std::atomic<int>& count : calls) EXPECT_EQ(count, 1);
}

/// Values that differ for each (sequence, head) land in their rows, and sums cover the group.
TEST(Batch, OutputsLandInTheirRowsAndSumOverGroupAndBatch) {
  const Packed packed(true);
  const PackedOutputs out =
      run_heads(packed.inputs(), [](const HeadInputs& inputs, HeadIndex index) {
        const double id = double(10 * index.sequence + index.head);
        return HeadOutputs{.o = Matrix<double>(inputs.q.rows, 8, id),
                           .lse = std::vector<double>(inputs.q.rows, id),
                           .delta = std::vector<double>(inputs.q.rows, -id),
                           .dq = Matrix<double>(inputs.q.rows, 8, id),
                           .dk = Matrix<double>(inputs.k.rows, 8, id),
                           .dv = Matrix<double>(inputs.k.rows, 8, 2 * id)};
      });
  for (std::int64_t s = 0; s < 3; ++s) {
    for (std::int64_t h = 0; h < 4; ++h) {
      const double id = double(10 * s + h);
      EXPECT_EQ(out.o[((s * 8 + 7) * 4 + h) * 8 + 3], id);
      EXPECT_EQ(out.dq_seq[((s * 8 + 7) * 4 + h) * 8 + 3], id);
      EXPECT_EQ(out.lse[h * 24 + s * 8 + 5], id);
      EXPECT_EQ(out.delta[h * 24 + s * 8 + 5], -id);
      EXPECT_EQ(out.dq[(7 * 4 + h) * 8], double(30 + 3 * h));
      const double group = double(20 * s + (h / 2 == 0 ? 1 : 5));
      EXPECT_EQ(out.dk[((packed.cu_seqlens_k[s + 1] - 1) * 2 + h / 2) * 8 + 1], group);
      EXPECT_EQ(out.dv[(packed.cu_seqlens_k[s] * 2 + h / 2) * 8 + 1], 2 * group);
    }
  }
}

TEST(Batch, SlackRowsAreNeitherReadNorWritten) {
  for (const bool broadcast_q : {false, true}) {
    const Packed tight(broadcast_q);
    const Packed poisoned(broadcast_q, 3);
    const PackedOutputs want = batched_backward(tight.inputs());
    const PackedOutputs got = batched_backward(poisoned.inputs());
    const auto check = [](std::vector<double> values, std::vector<double> expected,
                          const char* label) {
      expected.resize(values.size(), 0.0);
      EXPECT_TRUE(testing::bitwise_equal(values, expected, {.label = label}));
    };
    check(got.o, want.o, "o");
    check(got.dq, want.dq, "dq");
    check(got.dk, want.dk, "dk");
    check(got.dv, want.dv, "dv");
    const std::int64_t rows = poisoned.problem.rows_o();
    for (std::int64_t row = 0; row < rows; ++row) {
      const bool slack = row >= tight.problem.rows_o();
      const double lse = slack ? -std::numeric_limits<double>::infinity()
                               : want.lse[2 * tight.problem.rows_o() + row];
      EXPECT_EQ(got.lse[2 * rows + row], lse) << row;
    }
  }
}

TEST(Batch, ForwardAloneLeavesGradientsEmpty) {
  const Packed packed(true);
  const PackedOutputs out = batched_forward(packed.inputs());
  EXPECT_EQ(out.o.size(), packed.dout.size());
  EXPECT_TRUE(out.dq.empty() && out.dq_seq.empty() && out.dk.empty() && out.dv.empty());
}

TEST(Batch, RefusesSizesThatDoNotFit) {
  const Packed packed(false);
  PackedInputs inputs = packed.inputs();
  inputs.q = inputs.q.first(255);
  EXPECT_EQ(message_of([&] { validate(inputs); }), "q: expected 256 elements, got 255");
  inputs = packed.inputs();
  inputs.v = inputs.v.first(8);
  EXPECT_EQ(message_of([&] { batched_forward(inputs); }), "v: expected 208 elements, got 8");
  inputs = packed.inputs();
  inputs.dout = inputs.dout.first(1);
  EXPECT_EQ(message_of([&] { batched_backward(inputs); }), "dout: expected 256 elements, got 1");
  inputs.dout = {};
  EXPECT_EQ(message_of([&] { batched_backward(inputs); }),
            "dout: expected a gradient of o, got none");
  inputs.problem.mask.window_left = -5;
  EXPECT_EQ(message_of([&] { batched_forward(inputs); }),
            "window_left: expected at least -1, got -5");
}

TEST(Batch, RefusesWrongShapesFromTheHeadFunction) {
  const Packed packed(false);
  const auto wrong = [](const HeadInputs& inputs, HeadIndex) {
    return HeadOutputs{.o = Matrix<double>(inputs.q.rows, 7),
                       .lse = {},
                       .delta = {},
                       .dq = {},
                       .dk = {},
                       .dv = {}};
  };
  const std::string message = message_of([&] { run_heads(packed.inputs(), wrong); });
  EXPECT_NE(message.find("8] from the head function"), std::string::npos) << message;
}

}  // namespace
}  // namespace mxfa::reference
