#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cpu/attention.h"
#include "cpu/attention_call.h"

/// Calls one after the other: threads and scratch are kept between them, and no result may show it.
namespace mxfa::testing {
namespace {

/// B09: 50 backwards, each with memory of its own, beside another thread's calls.
TEST(CpuAttentionRepeats, FiftyBackwardsBesideOtherCallsGiveTheSameBits) {
  constexpr int kRuns = 50;
  for (const auto precision : {attention::Precision::kMxfp8, attention::Precision::kBf16}) {
    attention::Options options;
    options.precision = precision;
    AttentionCall want = random_call({.num_heads = 4,
                                      .num_heads_kv = 2,
                                      .head_dim = 128,
                                      .cu_seqlens_q = {0, 256, 556},
                                      .cu_seqlens_k = {0, 512, 589},
                                      .options = options},
                                     0);
    want.run();
    std::atomic<bool> done{false};
    std::thread other([&] {
      AttentionCall busy = random_call({.num_heads = 2,
                                        .head_dim = 64,
                                        .cu_seqlens_q = {0, 70},
                                        .cu_seqlens_k = {0, 300},
                                        .options = options},
                                       0);
      while (!done) busy.run();
    });
    for (int run = 0; run < kRuns && !HasFailure(); ++run) {
      auto again = std::make_unique<AttentionCall>(want);
      again->poison(again->dq, std::ssize(again->q));
      again->poison(again->dk, std::ssize(again->k));
      again->poison(again->dv, std::ssize(again->v));
      attention::backward(again->backward_args(), again->options);
      expect_equal_bits(*again, want, "run " + std::to_string(run));
    }
    done = true;
    other.join();
  }
}

/// B18 without a compiler around it: the same calls at changing lengths, whole blocks or not, give
/// what each gives by itself.
TEST(CpuAttentionRepeats, LengthsInTurnDoNotTouchEachOther) {
  const auto of_length = [](std::int32_t length) {
    AttentionCall call = random_call({.num_heads = 8,
                                      .num_heads_kv = 8,
                                      .head_dim = 64,
                                      .cu_seqlens_q = {0, length},
                                      .cu_seqlens_k = {0, length}},
                                     0);
    call.run();
    return call;
  };
  std::vector<AttentionCall> alone;
  const std::vector<std::int32_t> lengths{128, 196, 256, 257};
  for (const std::int32_t length : lengths) alone.push_back(of_length(length));
  for (std::size_t i = lengths.size(); i-- > 0;) {
    expect_equal_bits(of_length(lengths[i]), alone[i], std::to_string(lengths[i]));
  }
}

/// Every core finds work, also where all heads read one: heads are cut into groups, keys into
/// chunks.
TEST(CpuAttentionUnits, AreEnoughForTheCoresOfASocket) {
  const std::vector<std::int32_t> offsets{0, 2048};
  for (const std::int64_t heads_kv : {1, 2, 4, 8}) {
    const attention::AttentionProblem problem{.batch = 1,
                                              .num_heads = 8,
                                              .num_heads_kv = heads_kv,
                                              .head_dim = 128,
                                              .total_q = 2048,
                                              .total_k = 2048,
                                              .cu_seqlens_q = offsets,
                                              .cu_seqlens_k = offsets};
    const std::int64_t groups = cpu::key_groups(problem);
    EXPECT_EQ(groups, 8 / heads_kv);
    EXPECT_GE(heads_kv * groups * cpu::key_chunks(problem), 32);
    EXPECT_EQ(cpu::key_sums_elems(problem) > 0, groups > 1);
  }
}

}  // namespace
}  // namespace mxfa::testing
