#include "attention/tile_scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "attention/jagged_plan.h"
#include "support/rng.h"

namespace mxfa::attention {
namespace {

using testing::Rng;
using Key = std::tuple<std::int32_t, std::int32_t, std::int32_t>;  ///< batch, head, m_block
using Blocks = std::pair<std::int32_t, std::int32_t>;

/// A batch, and its tiles from the pairwise definition of the mask.
struct Batch {
  TileShape shape;
  std::vector<std::int32_t> cu_seqlens_q;  ///< empty where q is broadcast
  std::vector<std::int32_t> cu_seqlens_k;
  std::int64_t broadcast_seqlen_q = 0;

  std::int32_t size() const { return static_cast<std::int32_t>(cu_seqlens_k.size()) - 1; }
  Seqlens seqlens() const {
    return {.cu_seqlens_q = cu_seqlens_q.empty() ? nullptr : cu_seqlens_q.data(),
            .cu_seqlens_k = cu_seqlens_k.data(),
            .broadcast_seqlen_q = broadcast_seqlen_q};
  }
  Blocks blocks(const Sequence& s, std::int64_t m_block) const {
    std::int64_t first = -1, last = -1;
    const std::int64_t row0 = m_block * shape.tile_m;
    for (std::int64_t row = row0; row < std::min(row0 + shape.tile_m, s.seqlen_q); ++row) {
      const KeyRange keys = visible_keys(shape.mask, s.seqlen_q, s.seqlen_k, row);
      if (keys.empty()) continue;
      first = first < 0 ? keys.begin : std::min(first, keys.begin);
      last = std::max(last, keys.end - 1);
    }
    if (first < 0) return {0, 0};
    return {first / shape.tile_n, last / shape.tile_n + 1};
  }
  std::map<Key, Blocks> tiles() const {
    std::map<Key, Blocks> result;
    for (std::int32_t b = 0; b < size(); ++b) {
      const Sequence s = seqlens().at(b);
      for (std::int32_t m = 0; m * std::int64_t{shape.tile_m} < s.seqlen_q; ++m) {
        for (std::int32_t h = 0; h < shape.num_heads; ++h) result[{b, h, m}] = blocks(s, m);
      }
    }
    return result;
  }
};

Mask random_mask(Rng& rng) {
  const auto window = [&] { return rng.integer(0, 1) == 0 ? -1 : int(rng.integer(0, 40)); };
  return {.causal = rng.integer(0, 1) == 1,
          .alignment =
              rng.integer(0, 1) == 0 ? CausalAlignment::kTopLeft : CausalAlignment::kBottomRight,
          .window_left = window(),
          .window_right = window()};
}

TileShape random_shape(Rng& rng) {
  const auto heads_kv = static_cast<std::int32_t>(rng.integer(1, 5));
  return {.mask = random_mask(rng),
          .num_heads = heads_kv * static_cast<std::int32_t>(rng.integer(1, 4)),
          .num_heads_kv = heads_kv,
          .tile_m = static_cast<std::int32_t>(8 * rng.integer(1, 3)),
          .tile_n = static_cast<std::int32_t>(8 * rng.integer(1, 3)),
          .pairs_per_section = static_cast<std::int32_t>(rng.integer(1, 9))};
}

/// Many sequences are empty; lengths are small beside the tiles, or not.
Batch random_batch(Rng& rng) {
  Batch batch{.shape = random_shape(rng), .cu_seqlens_q = {}, .cu_seqlens_k = {}};
  const std::int64_t count = rng.integer(0, 30);
  const auto lengths = [&] {
    const std::int64_t longest = rng.integer(0, 90);
    std::vector<std::int32_t> offsets{0};
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t length = rng.integer(0, 3) == 0 ? 0 : rng.integer(0, longest);
      offsets.push_back(static_cast<std::int32_t>(offsets.back() + length));
    }
    return offsets;
  };
  batch.cu_seqlens_k = lengths();
  if (rng.integer(0, 1) == 0) {
    batch.cu_seqlens_q = lengths();
  } else {
    batch.broadcast_seqlen_q = rng.integer(0, 60);
  }
  return batch;
}

/// The plan as `threads` threads make it.
std::vector<std::int32_t> make_plan(const Batch& batch, int threads = 1) {
  struct Group {
    std::int32_t index, count;
    std::barrier<>* barrier;
    std::int32_t rank() const { return index; }
    std::int32_t size() const { return count; }
    void sync() const { barrier->arrive_and_wait(); }
  };
  std::vector<std::int32_t> plan(static_cast<std::size_t>(plan_elems(batch.size())), -1);
  std::vector<std::int32_t> scratch(static_cast<std::size_t>(plan_scratch_elems(threads)), -1);
  if (threads == 1) {
    JaggedPlanBuilder(SingleThread{}, batch.shape, batch.seqlens(), batch.size(), scratch.data())
        .run(plan.data());
    return plan;
  }
  std::barrier barrier(threads);
  std::vector<std::thread> group;
  for (int t = 0; t < threads; ++t) {
    group.emplace_back([&, t] {
      JaggedPlanBuilder(Group{t, threads, &barrier}, batch.shape, batch.seqlens(), batch.size(),
                        scratch.data())
          .run(plan.data());
    });
  }
  for (std::thread& thread : group) thread.join();
  return plan;
}

/// All tiles of all CTAs, in the order of the numbers where there is one CTA.
template <class Order>
std::vector<WorkTile> run_static(const Order& order, std::int32_t ctas, bool with_empty) {
  std::vector<WorkTile> tiles;
  for (std::int32_t cta = 0; cta < ctas; ++cta) {
    TileScheduler scheduler(order, StaticCounter(cta, ctas), with_empty);
    for (WorkTile tile = scheduler.next(); tile.valid(); tile = scheduler.next()) {
      tiles.push_back(tile);
    }
    EXPECT_FALSE(scheduler.next().valid());
  }
  return tiles;
}

/// CTAs take turns at random.
template <class Order>
std::vector<WorkTile> run_dynamic(const Order& order, std::int32_t ctas, bool with_empty,
                                  Rng& rng) {
  struct FetchAdd {
    std::int32_t* counter;
    std::int32_t operator()() const { return (*counter)++; }
  };
  std::int32_t counter = 0;
  using Counter = DynamicCounter<FetchAdd>;
  std::vector<TileScheduler<Order, Counter>> schedulers;
  for (std::int32_t cta = 0; cta < ctas; ++cta) {
    schedulers.emplace_back(order, Counter(cta, ctas, FetchAdd{&counter}), with_empty);
  }
  std::vector<WorkTile> tiles;
  while (!schedulers.empty()) {
    const auto i = static_cast<std::size_t>(rng.integer(0, std::ssize(schedulers) - 1));
    const WorkTile tile = schedulers[i].next();
    if (tile.valid()) {
      tiles.push_back(tile);
    } else {
      schedulers.erase(schedulers.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  return tiles;
}

void expect_each_once(const std::vector<WorkTile>& got, std::map<Key, Blocks> want,
                      bool with_empty) {
  if (!with_empty) {
    std::erase_if(want, [](const auto& tile) { return tile.second == Blocks{0, 0}; });
  }
  for (const WorkTile& tile : got) {
    const auto found = want.find({tile.batch, tile.head, tile.m_block});
    ASSERT_NE(found, want.end()) << "batch " << tile.batch << " head " << tile.head << " m_block "
                                 << tile.m_block << " twice, or not a tile";
    ASSERT_EQ(Blocks(tile.n_begin, tile.n_end), found->second)
        << "batch " << tile.batch << " head " << tile.head << " m_block " << tile.m_block;
    want.erase(found);
  }
  ASSERT_TRUE(want.empty()) << want.size() << " tiles are missing";
}

TEST(TileScheduler, JaggedTilesComeOnceEach) {
  Rng rng(1);
  for (int i = 0; i < 400; ++i) {
    SCOPED_TRACE("batch " + std::to_string(i));
    const Batch batch = random_batch(rng);
    const std::vector<std::int32_t> plan = make_plan(batch);
    const JaggedOrder order(batch.shape, batch.seqlens(), batch.size(),
                            plan_in(plan.data(), batch.size()));
    const auto want = batch.tiles();
    ASSERT_EQ(order.size(), std::ssize(want));
    const std::int64_t total_q = batch.cu_seqlens_q.empty()
                                     ? batch.size() * batch.broadcast_seqlen_q
                                     : batch.cu_seqlens_q.back();
    ASSERT_LE(order.size(), most_tiles(batch.shape, total_q, batch.size()));
    const auto ctas = static_cast<std::int32_t>(rng.integer(1, 12));
    for (const bool with_empty : {true, false}) {
      expect_each_once(run_static(order, ctas, with_empty), want, with_empty);
      expect_each_once(run_dynamic(order, ctas, with_empty, rng), want, with_empty);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(TileScheduler, DenseTilesComeOnceEach) {
  Rng rng(2);
  for (int i = 0; i < 200; ++i) {
    SCOPED_TRACE("shape " + std::to_string(i));
    const DenseOrder order{.shape = random_shape(rng),
                           .batch = static_cast<std::int32_t>(rng.integer(0, 4)),
                           .seqlen_q = rng.integer(0, 70),
                           .seqlen_k = rng.integer(0, 70)};
    Batch batch{.shape = order.shape, .cu_seqlens_q = {}, .cu_seqlens_k = {}};
    for (std::int32_t b = 0; b <= order.batch; ++b) {
      batch.cu_seqlens_q.push_back(static_cast<std::int32_t>(b * order.seqlen_q));
      batch.cu_seqlens_k.push_back(static_cast<std::int32_t>(b * order.seqlen_k));
    }
    const auto ctas = static_cast<std::int32_t>(rng.integer(1, 12));
    for (const bool with_empty : {true, false}) {
      expect_each_once(run_static(order, ctas, with_empty), batch.tiles(), with_empty);
      expect_each_once(run_dynamic(order, ctas, with_empty, rng), batch.tiles(), with_empty);
      if (HasFatalFailure()) return;
    }
  }
}

/// A CTA's numbers only grow, but an order may also be asked anew.
TEST(TileScheduler, OrderGivesTheSameTileWhateverWasAskedBefore) {
  Rng rng(3);
  for (int i = 0; i < 50; ++i) {
    const Batch batch = random_batch(rng);
    const std::vector<std::int32_t> plan = make_plan(batch);
    JaggedOrder order(batch.shape, batch.seqlens(), batch.size(),
                      plan_in(plan.data(), batch.size()));
    for (int j = 0; j < 50 && order.size() > 0; ++j) {
      const auto index = static_cast<std::int32_t>(rng.integer(0, order.size() - 1));
      JaggedOrder fresh(batch.shape, batch.seqlens(), batch.size(),
                        plan_in(plan.data(), batch.size()));
      ASSERT_EQ(order.at(index), fresh.at(index));
    }
  }
}

TEST(JaggedPlan, AnyNumberOfThreadsMakesTheSamePlan) {
  Rng rng(4);
  for (const int threads : {2, 3, 8}) {
    for (int i = 0; i < 12; ++i) {
      const Batch batch = random_batch(rng);
      ASSERT_EQ(make_plan(batch, threads), make_plan(batch)) << threads << " threads";
    }
  }
}

TEST(JaggedPlan, LongestFirstWithinAStep) {
  Rng rng(5);
  for (int i = 0; i < 200; ++i) {
    const Batch batch = random_batch(rng);
    const std::vector<std::int32_t> plan = make_plan(batch);
    std::vector<std::int32_t> cost(static_cast<std::size_t>(batch.size()));
    for (const auto& [key, blocks] : batch.tiles()) {
      std::int32_t& most = cost[static_cast<std::size_t>(std::get<0>(key))];
      most = std::max(most, blocks.second - blocks.first);
    }
    const std::int32_t top = cost.empty() ? 0 : *std::max_element(cost.begin(), cost.end());
    // Bands are costed by their width: up to two tiles and a block more than the exact count.
    const bool band = batch.shape.mask.window_left >= 0;
    const std::int32_t slack = top / (kPlanLevels - 1) + (band ? top + 4 : 1);
    std::int32_t before = top;
    for (std::int32_t slot = 0; slot < batch.size(); ++slot) {
      const std::int32_t here =
          cost[static_cast<std::size_t>(plan[static_cast<std::size_t>(slot)])];
      ASSERT_LE(here, before + slack) << "slot " << slot;
      before = std::min(before, here);
    }
  }
}

/// Neighbouring numbers read the same keys.
TEST(TileScheduler, OneSectionReadsItsKeysBeforeTheNextBegins) {
  for (const std::int32_t wide : {1, 2, 3, 100}) {
    DenseOrder order{.shape = {.num_heads = 8, .num_heads_kv = 4, .pairs_per_section = wide},
                     .batch = 3,
                     .seqlen_q = 700,
                     .seqlen_k = 900};
    const std::int32_t pairs = order.batch * order.shape.num_heads_kv;
    const std::int32_t m_blocks = order.shape.m_blocks(order.seqlen_q);
    for (std::int32_t i = 0; i < order.size(); ++i) {
      const WorkTile tile = order.at(i);
      const std::int32_t pair =
          tile.batch * order.shape.num_heads_kv + tile.head / order.shape.heads_per_kv();
      const std::int32_t here = std::min(wide, pairs);
      ASSERT_EQ(pair / here, i / (here * order.shape.heads_per_kv() * m_blocks));
      if (i + 1 < order.size() && i % order.shape.heads_per_kv() == 0) {
        const WorkTile next = order.at(i + 1);
        ASSERT_EQ(next.m_block, tile.m_block);
        ASSERT_EQ(next.head / order.shape.heads_per_kv(), tile.head / order.shape.heads_per_kv());
      }
    }
    ASSERT_EQ(order.at(0).m_block, m_blocks - 1) << "the costly rows come first";
  }
}

TEST(TileScheduler, SectionsFollowFromTheCache) {
  constexpr std::int64_t kToken = 2 * 128 + 8;  // K, V and scales of a token
  EXPECT_EQ(kv_heads_per_section(40 << 20, 16384, kToken), 9);
  EXPECT_EQ(kv_heads_per_section(40 << 20, 1 << 20, kToken), 1);
  EXPECT_EQ(kv_heads_per_section(40 << 20, 0, kToken), 1 << 20);
}

}  // namespace
}  // namespace mxfa::attention
