#include "mx/scale_layout.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <vector>

#include "mx/permutation.h"
#include "mx/scale_grid.h"

namespace mxfa::mx {
namespace {

constexpr std::array<std::pair<int, int>, 8> kSizes{
    {{1, 1}, {1, 5}, {128, 4}, {129, 4}, {128, 5}, {300, 9}, {384, 16}, {97, 33}}};

/// The atom written as nested loops in memory order: 32 rows, then 4 quarters of 32 rows with 4
/// K blocks each.
TEST(ScaleLayout, MemoryOrderIsTheAtomOrder) {
  for (const auto& [rows, k_blocks] : kSizes) {
    const TiledScaleLayout layout{rows, k_blocks};
    std::int64_t byte = 0;
    for (std::int64_t atom = 0; atom < layout.row_atoms() * layout.k_atoms(); ++atom) {
      const std::int64_t first_row = atom / layout.k_atoms() * 128;
      const std::int64_t first_k = atom % layout.k_atoms() * 4;
      for (int r = 0; r < 32; ++r) {
        for (int i = 0; i < 16; ++i, ++byte) {
          ASSERT_EQ(layout.offset(first_row + i / 4 * 32 + r, first_k + i % 4), byte)
              << rows << " x " << k_blocks;
        }
      }
    }
    EXPECT_EQ(byte, layout.size_bytes());
  }
}

TEST(ScaleLayout, OffsetAndCoordAreInverse) {
  for (const auto& [rows, k_blocks] : kSizes) {
    const TiledScaleLayout layout{rows, k_blocks};
    std::int64_t inside = 0;
    for (std::int64_t byte = 0; byte < layout.size_bytes(); ++byte) {
      const ScaleCoord coord = layout.coord(byte);
      ASSERT_EQ(layout.offset(coord.row, coord.k_block), byte) << rows << " x " << k_blocks;
      inside += coord.row < rows && coord.k_block < k_blocks ? 1 : 0;
    }
    EXPECT_EQ(inside, std::int64_t{rows} * k_blocks);
  }
}

TEST(ScaleLayout, KnownOffsets) {
  constexpr TiledScaleLayout layout{.rows = 300, .k_blocks = 9};
  static_assert(layout.row_atoms() == 3 && layout.k_atoms() == 3);
  static_assert(layout.size_bytes() == 9 * 512);
  static_assert(layout.offset(0, 1) == 1);
  static_assert(layout.offset(1, 0) == 16);
  static_assert(layout.offset(32, 0) == 4);
  static_assert(layout.offset(96, 3) == 15);
  static_assert(layout.offset(127, 3) == 511);
  static_assert(layout.offset(0, 4) == 512);
  static_assert(layout.offset(128, 0) == 3 * 512);
  static_assert(layout.offset(299, 8) == 8 * 512 + 43 % 32 * 16 + 4);
}

TEST(ScaleLayout, EmptyMatricesHaveNoBytes) {
  EXPECT_EQ((TiledScaleLayout{0, 4}.size_bytes()), 0);
  EXPECT_EQ((TiledScaleLayout{128, 0}.size_bytes()), 0);
}

/// 2^31 rows of 4 scales: every intermediate must be 64-bit.
TEST(ScaleLayout, OffsetsBeyond32Bits) {
  constexpr std::int64_t kRows = (std::int64_t{1} << 31) + 128;
  constexpr TiledScaleLayout layout{.rows = kRows, .k_blocks = 8};
  static_assert(layout.size_bytes() == kRows * 8);
  static_assert(layout.offset(kRows - 1, 7) == kRows * 8 - 1);
  static_assert(layout.coord(kRows * 8 - 1) == ScaleCoord{kRows - 1, 7});
}

TEST(ScaleGrid, SizesOfEveryShape) {
  const auto size = [](BlockShape shape) {
    const ScaleGrid grid{shape, 70, 40};
    return std::pair(grid.grid_rows(), grid.grid_cols());
  };
  EXPECT_EQ(size(BlockShape::k1x32), std::pair(std::int64_t{70}, std::int64_t{2}));
  EXPECT_EQ(size(BlockShape::k32x1), std::pair(std::int64_t{3}, std::int64_t{40}));
  EXPECT_EQ(size(BlockShape::k32x32), std::pair(std::int64_t{3}, std::int64_t{2}));
  EXPECT_EQ(size(BlockShape::k32xD), std::pair(std::int64_t{3}, std::int64_t{1}));
  EXPECT_EQ(size(BlockShape::k1xD), std::pair(std::int64_t{70}, std::int64_t{1}));
}

TEST(ScaleGrid, IndexOfEveryShape) {
  const auto index = [](BlockShape shape, std::int64_t row, std::int64_t col) {
    return ScaleGrid{shape, 70, 40}.index(row, col);
  };
  EXPECT_EQ(index(BlockShape::k1x32, 69, 39), 69 * 2 + 1);
  EXPECT_EQ(index(BlockShape::k32x1, 69, 39), 2 * 40 + 39);
  EXPECT_EQ(index(BlockShape::k32x32, 69, 31), 2 * 2);
  EXPECT_EQ(index(BlockShape::k32x32, 31, 32), 1);
  EXPECT_EQ(index(BlockShape::k32xD, 64, 39), 2);
  EXPECT_EQ(index(BlockShape::k1xD, 64, 39), 64);
}

TEST(Permutation, PiListsTheTokensOfTheDesign) {
  constexpr std::array<int, 16> kTokens{0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};
  for (int position = 0; position < kPermutationGroup; ++position) {
    EXPECT_EQ(pi_token(position), kTokens[position]);
    EXPECT_EQ(pi_position(kTokens[position]), position);
  }
}

TEST(Permutation, SigmaListsTheTokensOfTheDesign) {
  constexpr std::array<int, 16> kTokens{0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15};
  for (int position = 0; position < kPermutationGroup; ++position) {
    EXPECT_EQ(sigma_token(position), kTokens[position]);
    EXPECT_EQ(sigma_position(kTokens[position]), position);
  }
}

}  // namespace
}  // namespace mxfa::mx
