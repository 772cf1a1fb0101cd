#include "attention/problem.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace mxfa::attention {
namespace {

using ::testing::HasSubstr;

const std::vector<std::int32_t> kCuSeqlensQ{0, 3, 3, 5};
const std::vector<std::int32_t> kCuSeqlensK{0, 0, 4, 9};

AttentionProblem good_problem() {
  return {.batch = 3,
          .num_heads = 4,
          .num_heads_kv = 2,
          .head_dim = 64,
          .total_q = 5,
          .total_k = 9,
          .cu_seqlens_q = kCuSeqlensQ,
          .cu_seqlens_k = kCuSeqlensK};
}

/// The message of the Error that `problem` is refused with; empty where it is accepted.
std::string refusal(const AttentionProblem& problem) {
  try {
    validate(problem);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Problem, AcceptsWellFormedOnes) {
  EXPECT_EQ(refusal(good_problem()), "");
  AttentionProblem broadcast = good_problem();
  broadcast.broadcast_q = true;
  broadcast.cu_seqlens_q = {};
  EXPECT_EQ(refusal(broadcast), "");
  EXPECT_EQ(broadcast.rows_o(), 15);
  AttentionProblem slack = good_problem();
  slack.total_k = 40;
  EXPECT_EQ(refusal(slack), "");
  AttentionProblem stated = good_problem();
  stated.max_seqlen_q = 3;
  stated.max_seqlen_k = 5;
  EXPECT_EQ(refusal(stated), "");
  const std::vector<std::int32_t> zero{0};
  const AttentionProblem empty{.num_heads = 10,
                               .num_heads_kv = 10,
                               .head_dim = 64,
                               .cu_seqlens_q = zero,
                               .cu_seqlens_k = zero};
  EXPECT_EQ(refusal(empty), "");
}

TEST(Problem, HeadDimsPadToNativeOnesAndKeepTheirOwnScale) {
  for (std::int64_t head_dim = -8; head_dim <= 264; ++head_dim) {
    AttentionProblem problem = good_problem();
    problem.head_dim = head_dim;
    const bool supported = head_dim > 0 && head_dim <= 128 && head_dim % 8 == 0;
    if (supported) {
      EXPECT_EQ(refusal(problem), "") << head_dim;
      EXPECT_EQ(padded_head_dim(head_dim), head_dim <= 64 ? 64 : 128) << head_dim;
      EXPECT_EQ(problem.scale(), 1 / std::sqrt(double(head_dim))) << head_dim;
    } else {
      EXPECT_THAT(refusal(problem), HasSubstr("head_dim: expected 64 or 128")) << head_dim;
      EXPECT_THAT(refusal(problem), HasSubstr("got " + std::to_string(head_dim)));
    }
  }
}

struct Refusal {
  const char* name;
  std::function<void(AttentionProblem&)> spoil;
  const char* message;
};

const std::vector<std::int32_t> kStartsAtOne{1, 3, 3, 5};
const std::vector<std::int32_t> kDecreases{0, 3, 2, 5};
const std::vector<std::int32_t> kNegative{0, -1, 4, 5};
const std::vector<std::int32_t> kPastTheEnd{0, 3, 3, 6};
const std::vector<std::int32_t> kShort{0, 3, 5};

TEST(Problem, RefusesMalformedOnesByName) {
  const std::vector<Refusal> refusals{
      {"gqa ratio", [](auto& p) { p.num_heads = 6, p.num_heads_kv = 4; },
       "num_heads: expected a multiple of num_heads_kv = 4, got 6"},
      {"no heads", [](auto& p) { p.num_heads = 0; }, "num_heads: expected at least 1, got 0"},
      {"no kv heads", [](auto& p) { p.num_heads_kv = 0; },
       "num_heads_kv: expected at least 1, got 0"},
      {"head_dim_v", [](auto& p) { p.head_dim_v = 128; },
       "head_dim_v: expected head_dim = 64, got 128"},
      {"negative batch", [](auto& p) { p.batch = -1; }, "batch: expected at least 0, got -1"},
      {"first offset", [](auto& p) { p.cu_seqlens_q = kStartsAtOne; },
       "cu_seqlens_q[0]: expected 0, got 1"},
      {"decreasing", [](auto& p) { p.cu_seqlens_q = kDecreases; },
       "cu_seqlens_q[2]: expected at least 3, got 2"},
      {"negative", [](auto& p) { p.cu_seqlens_q = kNegative; },
       "cu_seqlens_q[1]: expected at least 0, got -1"},
      {"past the end", [](auto& p) { p.cu_seqlens_q = kPastTheEnd; },
       "cu_seqlens_q[3]: expected at most 5 (the rows given), got 6"},
      {"count", [](auto& p) { p.cu_seqlens_k = kShort; },
       "cu_seqlens_k: expected batch + 1 = 4 offsets, got 3"},
      {"max_seqlen", [](auto& p) { p.max_seqlen_k = 4; },
       "cu_seqlens_k[3]: expected a sequence of at most 4 rows, got one of 5"},
      {"broadcast with offsets", [](auto& p) { p.broadcast_q = true; },
       "cu_seqlens_q: expected none where q is broadcast, got 4"},
      {"broadcast max_seqlen",
       [](auto& p) { p.broadcast_q = true, p.cu_seqlens_q = {}, p.max_seqlen_q = 4; },
       "max_seqlen_q: expected at least 5, got 4"},
      {"window_left", [](auto& p) { p.mask.window_left = -2; },
       "window_left: expected at least -1, got -2"},
      {"window_right", [](auto& p) { p.mask.window_right = -7; },
       "window_right: expected at least -1, got -7"},
      {"scale zero", [](auto& p) { p.softmax_scale = 0.0; },
       "softmax_scale: expected a finite number above 0, got 0"},
      {"scale nan", [](auto& p) { p.softmax_scale = std::nan(""); },
       "softmax_scale: expected a finite number above 0, got nan"},
  };
  for (const Refusal& entry : refusals) {
    AttentionProblem problem = good_problem();
    entry.spoil(problem);
    EXPECT_EQ(refusal(problem), entry.message) << entry.name;
  }
}

TEST(Seqlen, OffsetsOfJaggedAndBroadcastQueries) {
  AttentionProblem problem = good_problem();
  const Sequence last = problem.seqlens().at(2);
  EXPECT_EQ(last.q_begin, 3);
  EXPECT_EQ(last.o_begin, 3);
  EXPECT_EQ(last.seqlen_q, 2);
  EXPECT_EQ(last.k_begin, 4);
  EXPECT_EQ(last.seqlen_k, 5);
  EXPECT_EQ(problem.seqlens().at(1).seqlen_q, 0);
  EXPECT_EQ(problem.seqlens().at(0).seqlen_k, 0);
  problem.broadcast_q = true;
  problem.cu_seqlens_q = {};
  const Sequence broadcast = problem.seqlens().at(2);
  EXPECT_EQ(broadcast.q_begin, 0);
  EXPECT_EQ(broadcast.o_begin, 10);
  EXPECT_EQ(broadcast.seqlen_q, 5);
  EXPECT_EQ(broadcast.seqlen_k, 5);
}

}  // namespace
}  // namespace mxfa::attention
