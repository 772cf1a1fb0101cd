#include "attention/split_tail.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace mxfa::attention {
namespace {

// Every key block of the tail once, parts of a tile in order, segments unique.
void check(const SplitTail& split) {
  std::vector<std::int32_t> next(split.slots(), 0), parts(split.slots(), 0);
  std::set<std::int32_t> segments;
  std::int64_t least = 1 << 30, most = 0;
  for (std::int32_t cta = 0; cta < split.ctas; ++cta) {
    std::int64_t done = 0;
    for (std::int32_t index = 0;; ++index) {
      const TailSegment s = split.at(cta, index);
      if (!s.valid()) break;
      ASSERT_EQ(s.tile, split.whole_tiles() + s.slot);
      ASSERT_EQ(s.n_begin, next[s.slot]) << "cta " << cta;
      ASSERT_EQ(s.part, parts[s.slot]++);
      ASSERT_LT(s.n_begin, s.n_end);
      ASSERT_TRUE(segments.insert(s.segment).second);
      ASSERT_LT(s.segment, split.max_segments());
      ASSERT_EQ(s.part + 1 == s.parts, s.n_end == split.blocks);
      next[s.slot] = s.n_end;
      done += s.n_end - s.n_begin;
    }
    least = std::min(least, done);
    most = std::max(most, done);
  }
  for (const std::int32_t end : next) ASSERT_EQ(end, split.blocks);
  if (split.slots() > 0) {
    ASSERT_LE(most - least, 1);
  }
}

TEST(SplitTail, CoversEveryBlockOnce) {
  for (const std::int32_t ctas : {1, 2, 7, 132}) {
    for (const std::int32_t tiles : {0, 1, 3, 131, 132, 133, 1376}) {
      for (const std::int32_t blocks : {1, 4, 33, 128}) {
        const SplitTail split{ctas, tiles, blocks};
        if (split.slots() == 0 || split.slots() * blocks >= ctas) check(split);
      }
    }
  }
}

}  // namespace
}  // namespace mxfa::attention
