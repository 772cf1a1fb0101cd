#include "attention/split_tail.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

namespace mxfa::attention {
namespace {

// Every key block of the tail once, parts of a tile in order, segments unique, shares of like cost.
void check(const SplitTail& split) {
  std::vector<std::int32_t> next(split.tail_tiles(), 0), parts(split.tail_tiles(), 0);
  std::set<std::int32_t> segments;
  std::map<std::int32_t, std::int32_t> tile_of_slot;
  std::int64_t least = 1 << 30, most = 0, total = 0;
  std::int32_t last = -1;
  for (std::int32_t cta = 0; cta < split.ctas; ++cta) {
    std::int64_t done = 0;
    for (std::int32_t index = 0;; ++index) {
      const TailSegment s = split.at(cta, index);
      if (!s.valid()) break;
      ASSERT_LT(s.tile, s.is_short != 0 ? split.short_tiles : split.tiles - split.whole_tiles());
      const std::int32_t tile = s.is_short != 0 ? s.tile : split.short_tiles + s.tile;
      ASSERT_GE(tile, last) << "cta " << cta;
      last = tile;
      ASSERT_EQ(s.n_begin, next[tile]) << "cta " << cta;
      ASSERT_EQ(s.part, parts[tile]++);
      ASSERT_LT(s.n_begin, s.n_end);
      ASSERT_EQ(s.part + 1 == s.parts, s.n_end == split.blocks);
      if (s.parts > 1) {
        ASSERT_TRUE(segments.insert(segment_of(s.slot, s.part)).second);
        ASSERT_LT(segment_of(s.slot, s.part), split.max_segments());
        ASSERT_LT(s.slot, split.ctas);
        ASSERT_EQ(tile_of_slot.emplace(s.slot, tile).first->second, tile);
      }
      next[tile] = s.n_end;
      done += (s.n_end - s.n_begin) * (s.is_short != 0 ? split.short_cost : split.cost);
    }
    least = std::min(least, done);
    most = std::max(most, done);
    total += done;
  }
  for (const std::int32_t end : next) ASSERT_EQ(end, split.blocks);
  ASSERT_EQ(total, split.total_cost());
  ASSERT_LE(most - least, 2 * std::max(split.cost, split.short_cost));
}

// Of so many CTAs, tiles and blocks: how many splits were checked.
int check_all(std::int32_t ctas, std::int32_t tiles, std::int32_t blocks) {
  int checked = 0;
  for (const std::int32_t short_tiles : {0, 1, 2, 64, 300}) {
    for (const std::int32_t short_cost : {2, 3, 4}) {
      const SplitTail split{ctas, tiles, short_tiles, blocks, 4, short_cost};
      if (!split.gives(1)) continue;
      check(split);
      ++checked;
    }
  }
  return checked;
}

TEST(SplitTail, CoversEveryBlockOnce) {
  int checked = 0;
  for (const std::int32_t ctas : {1, 2, 7, 132}) {
    for (const std::int32_t tiles : {0, 1, 3, 131, 132, 133, 1376}) {
      for (const std::int32_t blocks : {1, 4, 33, 128}) checked += check_all(ctas, tiles, blocks);
    }
  }
  EXPECT_GT(checked, 1000);
}

// A call of few tiles takes as many CTAs as shares of the least size allow, and no more.
TEST(SplitTail, MostCtasOfFewTilesGiveTheLeastShare) {
  int checked = 0;
  for (const std::int32_t tiles : {0, 1, 2, 7}) {
    for (const std::int32_t short_tiles : {0, 1, 3}) {
      for (const std::int32_t blocks : {8, 32, 128}) {
        SplitTail split{132, tiles, short_tiles, blocks, 5, 4};
        split.ctas = static_cast<std::int32_t>(split.most_ctas(4));
        if (split.ctas <= tiles + short_tiles) continue;
        EXPECT_TRUE(split.gives(4)) << tiles << " " << short_tiles << " " << blocks;
        check(split);
        ++split.ctas;
        EXPECT_FALSE(split.gives(4)) << tiles << " " << short_tiles << " " << blocks;
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 20);
  EXPECT_EQ((SplitTail{132, 2, 1, 128, 5, 4}.most_ctas(4)), 89);
}

TEST(SplitTail, SaysWhatItCannotDivide) {
  EXPECT_TRUE((SplitTail{4, 7, 0, 8, 4, 4}.gives(6)));
  EXPECT_FALSE((SplitTail{4, 7, 0, 8, 4, 4}.gives(7)));
  EXPECT_FALSE((SplitTail{4, 8, 0, 8, 4, 4}.gives(1)));
  EXPECT_TRUE((SplitTail{4, 8, 4, 8, 4, 2}.gives(4)));
  EXPECT_FALSE((SplitTail{4, 8, 4, 8, 4, 2}.gives(5)));
  // 2^31 is (2^24 short tiles * 8 blocks * 4) * 4 CTAs.
  EXPECT_TRUE((SplitTail{4, 0, (1 << 24) - 1, 8, 4, 4}.gives(4)));
  EXPECT_FALSE((SplitTail{4, 0, 1 << 24, 8, 4, 4}.gives(4)));
}

}  // namespace
}  // namespace mxfa::attention
