#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "device/ops.h"
#include "support/compare.h"
#include "support/machine.h"
#include "support/rng.h"

namespace mxfa::device {
namespace {

using testing::Guarded;

/// What one thread of the host makes of the same lengths.
std::vector<std::int32_t> host_plan(TilePlanParams params, const std::vector<std::int32_t>& q,
                                    const std::vector<std::int32_t>& k) {
  params.seqlens.cu_seqlens_q = q.empty() ? nullptr : q.data();
  params.seqlens.cu_seqlens_k = k.data();
  std::vector<std::int32_t> plan(attention::plan_elems(params.batch));
  std::vector<std::int32_t> scratch(attention::plan_scratch_elems(1));
  attention::JaggedPlanBuilder(attention::SingleThread{}, params.shape, params.seqlens,
                               params.batch, scratch.data())
      .run(plan.data());
  return plan;
}

TEST(TilePlan, EqualToTheHosts) {
  testing::Rng rng(1);
  testing::Machine& machine = testing::machine();
  for (const std::int32_t batch : {0, 1, 2, 255, 257, 768}) {
    for (const bool broadcast : {false, true}) {
      SCOPED_TRACE("batch " + std::to_string(batch) + (broadcast ? ", broadcast" : ""));
      const auto q = broadcast ? std::vector<std::int32_t>{} : rng.cu_seqlens(batch, 0, 700);
      const auto k = rng.cu_seqlens(batch, 0, 4096);
      TilePlanParams params{.shape = {.mask = {.causal = !broadcast},
                                      .num_heads = 6,
                                      .num_heads_kv = 3,
                                      .tile_m = 192},
                            .seqlens = {.cu_seqlens_q = nullptr,
                                        .cu_seqlens_k = nullptr,
                                        .broadcast_seqlen_q = broadcast ? 512 : 0},
                            .batch = batch};
      const std::vector<std::int32_t> want = host_plan(params, q, k);
      const auto q_d = machine.upload(std::span<const std::int32_t>(q));
      const auto k_d = machine.upload(std::span<const std::int32_t>(k));
      const Guarded plan = machine.poisoned(want.size() * sizeof(std::int32_t));
      const Guarded counter = machine.poisoned(sizeof(std::int32_t));
      params.seqlens.cu_seqlens_q = broadcast ? nullptr : q_d.as<const std::int32_t>();
      params.seqlens.cu_seqlens_k = k_d.as<const std::int32_t>();
      params.plan = plan.as<std::int32_t>();
      params.counter = counter.as<std::int32_t>();
      tile_plan(machine.queue(), params);
      machine.synchronize();
      EXPECT_TRUE(testing::bitwise_equal(plan.download<std::int32_t>(), want, {.label = "plan"}));
      EXPECT_EQ(counter.download<std::int32_t>(), std::vector<std::int32_t>{0});
      EXPECT_TRUE(plan.guards_intact()) << "wrote outside";
    }
  }
}

TEST(TilePlan, RefusesWhatItCannotPlan) {
  const TilePlanParams good{
      .shape = {.num_heads = 4, .num_heads_kv = 2}, .seqlens = {}, .batch = 1};
  const auto expect_refusal = [](TilePlanParams params, const std::string& name) {
    try {
      tile_plan(testing::machine().queue(), params);
      ADD_FAILURE() << name << ": not refused";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    }
  };
  TilePlanParams bad = good;
  bad.batch = -1;
  expect_refusal(bad, "batch");
  bad = good;
  bad.shape.num_heads = 3;
  expect_refusal(bad, "num_heads");
  bad = good;
  bad.shape.tile_m = 0;
  expect_refusal(bad, "tile_m");
  bad = good;
  bad.shape.pairs_per_section = 0;
  expect_refusal(bad, "pairs_per_section");
}

}  // namespace
}  // namespace mxfa::device
