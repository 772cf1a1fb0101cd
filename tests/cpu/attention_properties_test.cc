#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "core/parallel.h"
#include "cpu/attention_call.h"
#include "cpu/kernels.h"
#include "support/compare.h"

/// What holds bit for bit whatever the numbers.
namespace mxfa::testing {
namespace {

AttentionCall jagged_call(const attention::Options& options, bool broadcast = false) {
  AttentionCall call{.num_heads = 4,
                     .num_heads_kv = 2,
                     .head_dim = 64,
                     .cu_seqlens_q = {0, 70, 70, 331},
                     .cu_seqlens_k = {0, 129, 150, 1250},
                     .options = options};
  if (broadcast) call.cu_seqlens_q.clear();
  return random_call(call, 11, broadcast ? 100 : 0);
}

class CpuAttention : public ::testing::TestWithParam<Mode> {};

TEST_P(CpuAttention, SameBitsForAnyNumberOfThreads) {
  for (const bool broadcast : {false, true}) {
    AttentionCall one = jagged_call(GetParam().options, broadcast);
    AttentionCall five = one;
    core::set_num_threads(1);
    one.run();
    core::set_num_threads(5);
    five.run();
    core::set_num_threads(0);
    expect_equal_bits(five, one, "threads");
  }
}

/// Keys are packed once for all where many queries read them, by each unit of rows else.
TEST_P(CpuAttention, RowsDoNotDependOnHowManyOthersReadTheirKeys) {
  constexpr std::int64_t kFew = 96;
  for (const bool causal : {false, true}) {
    AttentionCall many = jagged_call(GetParam().options);
    many.cu_seqlens_q = {0, 331};
    many.cu_seqlens_k = {0, 1250};
    many.options.causal = causal;
    many.options.causal_alignment = CausalAlignment::kTopLeft;
    // Hidden from the first rows under the causal mask.
    many.v[(50 * 2 + 1) * 64 + 7] = std::numeric_limits<float>::infinity();
    AttentionCall few = many;
    few.cu_seqlens_q = {0, kFew};
    few.q.resize(kFew * 4 * 64);
    few.dout.resize(kFew * 4 * 64);
    many.run_forward();
    few.run_forward();
    EXPECT_TRUE(bitwise_equal(std::span(many.o).first(few.o.size()), std::span(few.o),
                              {.label = causal ? "causal o" : "o"}));
    for (std::int64_t head = 0; head < 4; ++head) {
      const std::span lse(many.lse.data() + head * 331, kFew);
      EXPECT_TRUE(bitwise_equal(lse, std::span(few.lse.data() + head * kFew, kFew),
                                {.label = "lse of a head"}));
    }
  }
}

TEST_P(CpuAttention, BroadcastQueriesEqualCopiesOfThem) {
  AttentionCall shared = jagged_call(GetParam().options, true);
  shared.run();
  AttentionCall copies = shared;
  copies.options.broadcast_q = false;
  copies.cu_seqlens_q = {0, 100, 200, 300};
  copies.q.clear();
  for (int s = 0; s < 3; ++s) copies.q.insert(copies.q.end(), shared.q.begin(), shared.q.end());
  copies.run();
  EXPECT_TRUE(bitwise_equal(shared.o, copies.o, {.label = "o"}));
  EXPECT_TRUE(bitwise_equal(shared.lse, copies.lse, {.label = "lse"}));
  EXPECT_TRUE(bitwise_equal(shared.dk, copies.dk, {.label = "dk"}));
  EXPECT_TRUE(bitwise_equal(shared.dv, copies.dv, {.label = "dv"}));
  std::vector<double> sums(shared.dq.size());
  for (std::size_t i = 0; i < copies.dq.size(); ++i) sums[i % sums.size()] += copies.dq[i];
  EXPECT_TRUE(
      expect_close(shared.dq, sums, {.metric = Metric::kRmsRel, .limit = 1e-6}, {.label = "dq"}));
}

TEST_P(CpuAttention, GradientsThatAreNotAskedForChangeNothing) {
  AttentionCall all = jagged_call(GetParam().options);
  all.run();
  for (int wanted = 1; wanted < 7; ++wanted) {
    AttentionCall some = jagged_call(GetParam().options);
    some.run_forward();
    attention::BackwardArgs args = some.backward_args();
    if ((wanted & 1) == 0) args.dq = {};
    if ((wanted & 2) == 0) args.dk = {};
    if ((wanted & 4) == 0) args.dv = {};
    attention::backward(args, some.options);
    if ((wanted & 1) != 0) {
      EXPECT_TRUE(bitwise_equal(some.dq, all.dq, {.label = "dq"}));
    }
    if ((wanted & 2) != 0) {
      EXPECT_TRUE(bitwise_equal(some.dk, all.dk, {.label = "dk"}));
    }
    if ((wanted & 4) != 0) {
      EXPECT_TRUE(bitwise_equal(some.dv, all.dv, {.label = "dv"}));
    }
  }
}

/// delta and dq_seq, where keys are cut into chunks that short sequences do not all have, and where
/// a sequence has no keys. Asking for them changes nothing.
TEST_P(CpuAttention, DeltaAndDqOfEachSequence) {
  AttentionCall call = jagged_call(GetParam().options, true);
  call.cu_seqlens_k = {0, 129, 129, 1250};
  call.run();
  const std::vector<float> dq = call.dq;
  std::vector<float> delta, dq_seq;
  call.poison(delta, call.rows_o() * 4);
  call.poison(dq_seq, call.rows_o() * 4 * 64);
  call.poison(call.dq, std::ssize(call.q));
  attention::BackwardArgs args = call.backward_args();
  args.delta = call.rows(delta);
  args.dq_seq = make_tensor(dq_seq.data(), DType::kF32, {call.rows_o(), 4, 64});
  attention::backward(args, call.options);
  EXPECT_TRUE(bitwise_equal(call.dq, dq, {.label = "dq"}));
  std::vector<float> sum(dq.size());
  for (std::size_t i = 0; i < dq_seq.size(); ++i) sum[i % sum.size()] += dq_seq[i];
  EXPECT_TRUE(bitwise_equal(sum, dq, {.label = "dq_seq over the batch"}));
  std::vector<double> want(delta.size());
  for (std::int64_t row = 0; row < call.rows_o(); ++row) {
    for (std::int64_t c = 0; c < 4 * 64; ++c) {
      const std::int64_t i = row * 4 * 64 + c;
      want[std::size_t(c / 64 * call.rows_o() + row)] += double(call.o[i]) * double(call.dout[i]);
    }
  }
  // dout is rounded to the format of its product.
  EXPECT_TRUE(expect_close(delta, want, {.metric = Metric::kSqnrDb, .limit = 24}, {.label = "d"}));
  for (std::int64_t head = 0; head < 4; ++head) {
    for (std::int64_t row = 100; row < 200; ++row) {
      ASSERT_EQ(delta[std::size_t(head * 300 + row)], 0) << "sequence without keys";
    }
  }
}

/// Slack rows of the inputs hold NaN, outputs and workspace 0xFF: slack of the outputs is 0.
TEST_P(CpuAttention, SlackIsNeitherReadNorLeftUnwritten) {
  AttentionCall plain = jagged_call(GetParam().options);
  plain.run();
  AttentionCall slack = jagged_call(GetParam().options);
  const std::size_t more_q = 3 * 4 * 64, more_k = 5 * 2 * 64;
  for (auto* values : {&slack.q, &slack.dout}) values->insert(values->end(), more_q, NAN);
  for (auto* values : {&slack.k, &slack.v}) values->insert(values->end(), more_k, NAN);
  slack.poison_all();
  const auto run = [&](std::int64_t bytes, auto call) {
    std::vector<std::byte> memory(static_cast<std::size_t>(bytes + 128), std::byte{0xFF});
    std::byte* aligned = memory.data();
    while (reinterpret_cast<std::uintptr_t>(aligned) % 64 != 0) ++aligned;
    call(std::span(aligned, static_cast<std::size_t>(bytes)));
    EXPECT_TRUE(std::all_of(aligned + bytes, memory.data() + memory.size(), [](std::byte b) {
      return b == std::byte{0xFF};
    })) << "wrote behind the workspace";
  };
  const attention::ForwardArgs forward = slack.forward_args();
  const attention::BackwardArgs backward = slack.backward_args();
  run(attention::forward_workspace_bytes(forward, slack.options),
      [&](auto memory) { attention::forward(forward, slack.options, memory); });
  run(attention::backward_workspace_bytes(backward, slack.options),
      [&](auto memory) { attention::backward(backward, slack.options, memory); });
  const auto expect_padded = [](const std::vector<float>& got, std::vector<float> want,
                                std::size_t more, const char* label) {
    want.insert(want.end(), more, 0.0f);
    EXPECT_TRUE(bitwise_equal(got, want, {.label = label}));
  };
  expect_padded(slack.o, plain.o, more_q, "o");
  expect_padded(slack.dq, plain.dq, more_q, "dq");
  expect_padded(slack.dk, plain.dk, more_k, "dk");
  expect_padded(slack.dv, plain.dv, more_k, "dv");
  for (std::size_t i = 0; i < slack.lse.size(); ++i) {
    const std::size_t head = i / 334, row = i % 334;
    const float want =
        row < 331 ? plain.lse[head * 331 + row] : -std::numeric_limits<float>::infinity();
    ASSERT_EQ(slack.lse[i], want) << "lse of head " << head << ", row " << row;
  }
}

/// A causal call in leak-free form: later tokens do not reach earlier rows. Without it they do, so
/// the test would notice.
TEST_P(CpuAttention, FutureTokensDoNotReachEarlierOutputs) {
  AttentionCall before = jagged_call(GetParam().options);
  before.options.causal = true;
  before.cu_seqlens_q = before.cu_seqlens_k = {0, 331};
  before.k.resize(331 * 2 * 64);
  before.v.resize(331 * 2 * 64);
  AttentionCall after = before;
  constexpr std::int64_t kFirst = 150;  // of the tokens that change
  for (auto* values : {&after.k, &after.v}) {
    for (std::size_t i = kFirst * 2 * 64; i < values->size(); ++i) (*values)[i] *= -100.0f;
  }
  for (std::size_t i = kFirst * 4 * 64; i < after.q.size(); ++i) after.q[i] *= 50.0f;
  before.run_forward();
  after.run_forward();
  const std::vector<float> got(after.o.begin(), after.o.begin() + kFirst * 4 * 64);
  const std::vector<float> want(before.o.begin(), before.o.begin() + kFirst * 4 * 64);
  const attention::Options& options = GetParam().options;
  if (options.leak_free || options.precision == attention::Precision::kBf16) {
    EXPECT_TRUE(bitwise_equal(got, want, {.label = "earlier o"}));
  } else {
    EXPECT_FALSE(bitwise_equal(got, want)) << "tokens of one block share a scale";
  }
}

/// Every instruction set gives what the recipe test holds the fastest one to.
TEST_P(CpuAttention, InstructionSetsAgreeUpToRoundings) {
  AttentionCall best = jagged_call(GetParam().options);
  best.run();
  for (const cpu::Isa isa : cpu::supported_isas()) {
    AttentionCall call = jagged_call(GetParam().options);
    cpu::force_isa(isa);
    call.run();
    cpu::force_isa(std::nullopt);
    const std::string label = std::string(cpu::kernels_of(isa).name) + " ";
    const Tolerance close{.metric = Metric::kSqnrDb, .limit = 60};
    EXPECT_TRUE(expect_close(call.o, best.o, close, {.label = label + "o"}));
    EXPECT_TRUE(expect_close(call.dq, best.dq, close, {.label = label + "dq"}));
    EXPECT_TRUE(expect_close(call.dk, best.dk, close, {.label = label + "dk"}));
    EXPECT_TRUE(expect_close(call.dv, best.dv, close, {.label = label + "dv"}));
    EXPECT_TRUE(expect_close(call.lse, best.lse, {.metric = Metric::kMaxAbs, .limit = 4e-6},
                             {.label = label + "lse"}));
  }
}

const auto name_of = [](const ::testing::TestParamInfo<Mode>& param) { return param.param.name; };
INSTANTIATE_TEST_SUITE_P(Modes, CpuAttention, ::testing::ValuesIn(all_modes()), name_of);

}  // namespace
}  // namespace mxfa::testing
