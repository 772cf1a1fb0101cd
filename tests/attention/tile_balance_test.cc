#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "attention/jagged_plan.h"
#include "attention/tile_scheduler.h"
#include "support/rng.h"

/// How even the multiprocessors of an H200 are loaded, a tile costing its key blocks and a
/// constant.
namespace mxfa::attention {
namespace {

using testing::Rng;

constexpr std::int32_t kSms = 132;
constexpr double kTileOverhead = 1;  ///< start and end of a tile, in key blocks

double cost(const WorkTile& tile) { return kTileOverhead + (tile.n_end - tile.n_begin); }

/// Largest load over the mean.
double imbalance(const std::vector<double>& loads) {
  const double total = std::accumulate(loads.begin(), loads.end(), 0.0);
  return *std::max_element(loads.begin(), loads.end()) * static_cast<double>(loads.size()) / total;
}

template <class Order>
double static_imbalance(const Order& order) {
  std::vector<double> loads(kSms);
  for (std::int32_t cta = 0; cta < kSms; ++cta) {
    TileScheduler scheduler(order, StaticCounter(cta, kSms), true);
    for (WorkTile tile = scheduler.next(); tile.valid(); tile = scheduler.next()) {
      loads[static_cast<std::size_t>(cta)] += cost(tile);
    }
  }
  return imbalance(loads);
}

/// Whoever is free first takes the next number.
template <class Order>
double dynamic_imbalance(Order order) {
  std::vector<double> loads(kSms);
  for (std::int32_t i = 0; i < order.size(); ++i) {
    *std::min_element(loads.begin(), loads.end()) += cost(order.at(i));
  }
  return imbalance(loads);
}

struct Draw {
  std::string name;
  std::vector<std::int32_t> cu_seqlens_k;
};
Draw uniform_draw(std::int64_t batch, std::int64_t longest) {
  Rng rng(7);
  return {"uniform up to " + std::to_string(longest), rng.cu_seqlens(batch, 0, longest)};
}
/// A few long sequences and many short ones.
Draw skewed_draw(std::int64_t batch, std::int64_t longest) {
  Rng rng(8);
  Draw draw{"skewed up to " + std::to_string(longest), {0}};
  for (std::int64_t i = 0; i < batch; ++i) {
    const double length = std::exp(rng.normal() * 1.2) * static_cast<double>(longest) / 12;
    draw.cu_seqlens_k.push_back(
        draw.cu_seqlens_k.back() +
        static_cast<std::int32_t>(std::min(length, static_cast<double>(longest))));
  }
  return draw;
}

TEST(TileBalance, JaggedCrossAttentionLoadsAllMultiprocessorsAlike) {
  for (const Draw& draw : {uniform_draw(768, 16384), uniform_draw(768, 4096),
                           skewed_draw(768, 16384), uniform_draw(256, 16384)}) {
    const auto batch = static_cast<std::int32_t>(draw.cu_seqlens_k.size()) - 1;
    const TileShape shape{.num_heads = 3, .num_heads_kv = 3, .tile_m = 192};
    const Seqlens seqlens{.cu_seqlens_q = nullptr,
                          .cu_seqlens_k = draw.cu_seqlens_k.data(),
                          .broadcast_seqlen_q = 512};
    std::vector<std::int32_t> plan(static_cast<std::size_t>(plan_elems(batch)));
    std::vector<std::int32_t> scratch(static_cast<std::size_t>(plan_scratch_elems(1)));
    JaggedPlanBuilder(SingleThread{}, shape, seqlens, batch, scratch.data()).run(plan.data());
    const JaggedOrder sorted(shape, seqlens, batch, plan_in(plan.data(), batch));
    std::vector<std::int32_t> unsorted = plan;
    std::iota(unsorted.begin(), unsorted.begin() + batch, 0);
    const JaggedOrder as_given(shape, seqlens, batch, plan_in(unsorted.data(), batch));

    EXPECT_LT(dynamic_imbalance(sorted), 1.005) << draw.name;
    EXPECT_LT(static_imbalance(sorted), 1.05) << draw.name;
    // Without the sort the simulation sees a difference.
    EXPECT_GT(dynamic_imbalance(as_given), 1.01) << draw.name;
    EXPECT_GT(static_imbalance(as_given), 1.1) << draw.name;
  }
}

TEST(TileBalance, CausalRowsFromTheCostlyEnd) {
  const DenseOrder order{.shape = {.mask = {.causal = true},
                                   .num_heads = 16,
                                   .num_heads_kv = 16,
                                   .pairs_per_section = 16},
                         .batch = 1,
                         .seqlen_q = 16384,
                         .seqlen_k = 16384};
  EXPECT_LT(dynamic_imbalance(order), 1.01);
  EXPECT_LT(static_imbalance(order), 1.03);
}

}  // namespace
}  // namespace mxfa::attention
