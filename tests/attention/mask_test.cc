#include "attention/mask.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace mxfa::attention {
namespace {

/// The definition in words, one pair at a time: not one expression shared with mask.h.
bool sees(const Mask& mask, std::int64_t seqlen_q, std::int64_t seqlen_k, std::int64_t row,
          std::int64_t col) {
  if (row < 0 || row >= seqlen_q || col < 0 || col >= seqlen_k) return false;
  std::int64_t distance = col - row;
  if (mask.alignment == CausalAlignment::kBottomRight) distance -= seqlen_k - seqlen_q;
  if (mask.causal && distance > 0) return false;
  if (mask.window_right >= 0 && distance > mask.window_right) return false;
  return mask.window_left < 0 || -distance <= mask.window_left;
}

std::vector<Mask> all_masks() {
  std::vector<Mask> masks;
  for (const bool causal : {false, true}) {
    for (const auto alignment : {CausalAlignment::kBottomRight, CausalAlignment::kTopLeft}) {
      for (const int left : {-1, 0, 1, 3, 9}) {
        for (const int right : {-1, 0, 2, 9}) {
          masks.push_back({causal, alignment, left, right});
        }
      }
    }
  }
  return masks;
}

std::string text(const Mask& mask, std::int64_t seqlen_q, std::int64_t seqlen_k) {
  return "causal " + std::to_string(mask.causal) + " top_left " +
         std::to_string(mask.alignment == CausalAlignment::kTopLeft) + " window " +
         std::to_string(mask.window_left) + "," + std::to_string(mask.window_right) + " lengths " +
         std::to_string(seqlen_q) + " x " + std::to_string(seqlen_k);
}

constexpr std::int64_t kMaxLength = 7;

template <class Check>
void for_all_sizes(const Check& check) {
  for (const Mask& mask : all_masks()) {
    for (std::int64_t seqlen_q = 0; seqlen_q <= kMaxLength; ++seqlen_q) {
      for (std::int64_t seqlen_k = 0; seqlen_k <= kMaxLength; ++seqlen_k) {
        check(mask, seqlen_q, seqlen_k);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(Mask, VisibleKeysMatchesThePairwiseDefinition) {
  for_all_sizes([](const Mask& mask, std::int64_t seqlen_q, std::int64_t seqlen_k) {
    for (std::int64_t row = 0; row < seqlen_q; ++row) {
      const KeyRange range = visible_keys(mask, seqlen_q, seqlen_k, row);
      for (std::int64_t col = -2; col < seqlen_k + 2; ++col) {
        ASSERT_EQ(col >= range.begin && col < range.end, sees(mask, seqlen_q, seqlen_k, row, col))
            << text(mask, seqlen_q, seqlen_k) << " row " << row << " col " << col;
      }
    }
  });
}

TEST(Mask, VisibleSpanIsTheUnionOfItsRows) {
  for_all_sizes([](const Mask& mask, std::int64_t seqlen_q, std::int64_t seqlen_k) {
    for (std::int64_t begin = 0; begin <= seqlen_q; ++begin) {
      for (std::int64_t end = begin; end <= seqlen_q + 2; ++end) {
        const KeyRange span = visible_span(mask, seqlen_q, seqlen_k, begin, end);
        for (std::int64_t col = -1; col <= seqlen_k; ++col) {
          bool any = false;
          for (std::int64_t row = begin; row < end; ++row) {
            any = any || sees(mask, seqlen_q, seqlen_k, row, col);
          }
          ASSERT_EQ(col >= span.begin && col < span.end, any)
              << text(mask, seqlen_q, seqlen_k) << " rows " << begin << ".." << end << " col "
              << col;
        }
      }
    }
  });
}

TEST(Mask, SeeingRowsIsTheUnionOfItsColumns) {
  for_all_sizes([](const Mask& mask, std::int64_t seqlen_q, std::int64_t seqlen_k) {
    for (std::int64_t begin = 0; begin <= seqlen_k; ++begin) {
      for (std::int64_t end = begin; end <= seqlen_k + 2; ++end) {
        const KeyRange rows = seeing_rows(mask, seqlen_q, seqlen_k, begin, end);
        for (std::int64_t row = -1; row <= seqlen_q; ++row) {
          bool any = false;
          for (std::int64_t col = begin; col < end; ++col) {
            any = any || sees(mask, seqlen_q, seqlen_k, row, col);
          }
          ASSERT_EQ(row >= rows.begin && row < rows.end, any)
              << text(mask, seqlen_q, seqlen_k) << " cols " << begin << ".." << end << " row "
              << row;
        }
      }
    }
  });
}

TileKind brute_force_kind(const Mask& mask, std::int64_t seqlen_q, std::int64_t seqlen_k,
                          const Tile& tile) {
  bool any = false;
  bool all = true;
  for (std::int64_t row = tile.row_begin; row < tile.row_end && row < seqlen_q; ++row) {
    for (std::int64_t col = tile.col_begin; col < tile.col_end; ++col) {
      const bool seen = sees(mask, seqlen_q, seqlen_k, row, col);
      any = any || seen;
      all = all && seen;
    }
  }
  if (!any) return TileKind::kSkip;
  return all ? TileKind::kFull : TileKind::kPartial;
}

TEST(Mask, ClassifyMatchesBruteForceForEveryTile) {
  std::int64_t seen[3] = {};
  for_all_sizes([&](const Mask& mask, std::int64_t seqlen_q, std::int64_t seqlen_k) {
    for (const std::int64_t rows : {1, 2, 4}) {
      for (const std::int64_t cols : {0, 1, 2, 4}) {
        for (std::int64_t row = 0; row <= seqlen_q; ++row) {
          for (std::int64_t col = 0; col <= seqlen_k; ++col) {
            const Tile tile{row, row + rows, col, col + cols};
            const TileKind kind = classify(mask, seqlen_q, seqlen_k, tile);
            ASSERT_EQ(kind, brute_force_kind(mask, seqlen_q, seqlen_k, tile))
                << text(mask, seqlen_q, seqlen_k) << " rows " << row << "+" << rows << " cols "
                << col << "+" << cols;
            ++seen[static_cast<int>(kind)];
          }
        }
      }
    }
  });
  for (const std::int64_t count : seen) EXPECT_GT(count, 1000);
}

TEST(Mask, LengthsBeyond32BitsDoNotWrap) {
  const std::int64_t seqlen = std::int64_t{1} << 33;
  const Mask mask{.causal = true, .window_left = 2147483647};
  const KeyRange range = visible_keys(mask, seqlen, seqlen, seqlen - 1);
  EXPECT_EQ(range.begin, seqlen - 1 - 2147483647);
  EXPECT_EQ(range.end, seqlen);
  EXPECT_EQ(classify(mask, seqlen, seqlen, {seqlen - 128, seqlen, 0, 128}), TileKind::kSkip);
}

}  // namespace
}  // namespace mxfa::attention
