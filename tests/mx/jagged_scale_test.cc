#include "mx/jagged_scale.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>

#include "mxfa/error.h"
#include "support/compare.h"
#include "support/rng.h"

namespace mxfa::mx {
namespace {

using mxfa::testing::bitwise_equal;
using mxfa::testing::Rng;

constexpr BlockShape kShapes[] = {BlockShape::k1x32, BlockShape::k32x1, BlockShape::k32x32,
                                  BlockShape::k32xD, BlockShape::k1xD};
constexpr ScaleAxis kAxes[] = {ScaleAxis::kHeadDim, ScaleAxis::kTokens};
constexpr std::uint8_t kPoison = 0xFF;
constexpr std::uint8_t kGuard = 0xA5;
constexpr std::int64_t kGuardBytes = 64;

bool legal(BlockShape shape, ScaleAxis axis) {
  if (shape == BlockShape::k1x32 || shape == BlockShape::k1xD) return axis == ScaleAxis::kHeadDim;
  return shape != BlockShape::k32x1 || axis == ScaleAxis::kTokens;
}

std::vector<std::int32_t> random_cu_seqlens(Rng& rng) {
  const std::int64_t batch = rng.integer(0, 9);
  const std::int64_t longest = rng.integer(0, 400);
  std::vector<std::int32_t> cu_seqlens{0};
  for (std::int64_t s = 0; s < batch; ++s) {
    const bool empty = rng.integer(0, 3) == 0;
    const std::int64_t length = empty ? 0 : rng.integer(0, longest);
    cu_seqlens.push_back(static_cast<std::int32_t>(cu_seqlens.back() + length));
  }
  return cu_seqlens;
}

/// A buffer with guard bytes on both sides.
struct Guarded {
  explicit Guarded(std::int64_t size) : bytes(size + 2 * kGuardBytes, kGuard) {
    std::fill(bytes.begin() + kGuardBytes, bytes.end() - kGuardBytes, kPoison);
  }
  std::uint8_t* data() { return bytes.data() + kGuardBytes; }
  std::int64_t size() const { return std::int64_t(bytes.size()) - 2 * kGuardBytes; }
  bool intact() const {
    const auto is_guard = [](std::uint8_t byte) { return byte == kGuard; };
    return std::all_of(bytes.begin(), bytes.begin() + kGuardBytes, is_guard) &&
           std::all_of(bytes.end() - kGuardBytes, bytes.end(), is_guard);
  }
  std::vector<std::uint8_t> bytes;
};

/// Compact scales [scale rows, heads, scale cols] of random bytes 1..254: 0x00 is left to padding.
struct Case {
  JaggedOffsets offsets;
  BlockShape shape;
  ScaleAxis axis;
  std::int64_t heads;
  std::int64_t head_dim;
  std::vector<std::uint8_t> scales;

  std::int64_t cols() const { return scale_cols(shape, head_dim); }
  std::int64_t head_bytes() const { return offsets.tiles.back() * tile_bytes(head_dim); }
  template <class Byte>
  CompactScales<Byte> compact(Byte* data) const {
    return {data, shape, heads * cols(), cols(), 1};
  }
  std::string name() const {
    return fmt::format("{} along {}, {} heads, D {}, batch {}, {} tokens", block_shape_name(shape),
                       scale_axis_name(axis), heads, head_dim, offsets.batch(),
                       offsets.tokens.back());
  }
};

Case random_case(Rng& rng, BlockShape shape, ScaleAxis axis) {
  const auto cu_seqlens = random_cu_seqlens(rng);
  const std::int64_t dims[] = {32, 40, 64, 128, 130, 256};
  Case test{make_jagged_offsets(cu_seqlens, cu_seqlens.back()),
            shape,
            axis,
            rng.integer(1, 3),
            dims[rng.integer(0, 5)],
            {}};
  test.scales.resize(test.offsets.scale_rows_total(shape) * test.heads * test.cols());
  for (std::uint8_t& scale : test.scales) scale = static_cast<std::uint8_t>(rng.integer(1, 254));
  return test;
}

void scatter(const Case& test, const std::uint8_t* compact, std::uint8_t* tiled) {
  for (std::int64_t head = 0; head < test.heads; ++head) {
    for (std::int64_t s = 0; s < test.offsets.batch(); ++s) {
      tile_scales(test.offsets, {s, head}, test.compact(compact),
                  {tiled, test.axis, test.head_dim, test.head_bytes()});
    }
  }
}

void gather(const Case& test, const std::uint8_t* tiled, std::uint8_t* compact) {
  for (std::int64_t head = 0; head < test.heads; ++head) {
    for (std::int64_t s = 0; s < test.offsets.batch(); ++s) {
      untile_scales(test.offsets, {s, head}, {tiled, test.axis, test.head_dim, test.head_bytes()},
                    test.compact(compact));
    }
  }
}

/// The byte that the tiled scales must hold for (token, column) of a sequence, from the words of
/// the definition and per-sequence sums written out here.
std::uint8_t expected_scale(const Case& test, std::int64_t sequence, std::int64_t head,
                            std::int64_t token, std::int64_t col) {
  std::int64_t row = 0;
  for (std::int64_t s = 0; s < sequence; ++s) {
    const std::int64_t length = test.offsets.tokens[s + 1] - test.offsets.tokens[s];
    row += block_rows(test.shape) == 1 ? length : (length + 31) / 32;
  }
  row += block_rows(test.shape) == 1 ? token : token / 32;
  std::int64_t scale_column = 0;
  if (test.shape == BlockShape::k32x1) scale_column = col;
  if (test.shape == BlockShape::k1x32 || test.shape == BlockShape::k32x32) scale_column = col / 32;
  return test.scales[(row * test.heads + head) * test.cols() + scale_column];
}

void expect_tiled(const Case& test, const std::uint8_t* tiled) {
  std::int64_t byte = 0;
  for (std::int64_t head = 0; head < test.heads; ++head) {
    for (std::int64_t s = 0; s < test.offsets.batch(); ++s) {
      const std::int64_t length = test.offsets.seqlen(s);
      const std::int64_t padded = (length + 127) / 128 * 128;
      const bool along_dim = test.axis == ScaleAxis::kHeadDim;
      const TiledScaleLayout layout{along_dim ? length : test.head_dim,
                                    ((along_dim ? test.head_dim : length) + 31) / 32};
      const std::int64_t size = padded * ((test.head_dim + 127) / 128 * 128) / 32;
      ASSERT_EQ(layout.size_bytes(), size) << test.name();
      for (std::int64_t i = 0; i < size; ++i, ++byte) {
        const ScaleCoord coord = layout.coord(i);
        const std::int64_t token = along_dim ? coord.row : coord.k_block * 32;
        const std::int64_t col = along_dim ? coord.k_block * 32 : coord.row;
        const bool inside = coord.row < layout.rows && coord.k_block < layout.k_blocks;
        const int want = inside ? expected_scale(test, s, head, token, col) : 0;
        ASSERT_EQ(int{tiled[byte]}, want) << test.name() << ": sequence " << s << " head " << head
                                          << " row " << coord.row << " k_block " << coord.k_block;
      }
    }
  }
  EXPECT_EQ(byte, test.heads * test.head_bytes()) << test.name();
}

TEST(JaggedScale, RandomSequencesRoundTripAndPad) {
  Rng rng(1);
  for (int repeat = 0; repeat < 40; ++repeat) {
    for (const BlockShape shape : kShapes) {
      for (const ScaleAxis axis : kAxes) {
        if (!legal(shape, axis)) continue;
        const Case test = random_case(rng, shape, axis);
        Guarded tiled(test.heads * test.head_bytes());
        scatter(test, test.scales.data(), tiled.data());
        EXPECT_TRUE(tiled.intact()) << test.name();
        expect_tiled(test, tiled.data());
        Guarded back(static_cast<std::int64_t>(test.scales.size()));
        gather(test, tiled.data(), back.data());
        EXPECT_TRUE(back.intact()) << test.name();
        EXPECT_TRUE(bitwise_equal(std::span(back.data(), back.size()), std::span(test.scales),
                                  {test.name()}));
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

/// Padding must not matter: gathering from tiled scales whose padding is 0xFF gives the same.
TEST(JaggedScale, PoisonedPaddingIsNeverRead) {
  Rng rng(2);
  for (const BlockShape shape : kShapes) {
    for (const ScaleAxis axis : kAxes) {
      if (!legal(shape, axis)) continue;
      const Case test = random_case(rng, shape, axis);
      std::vector<std::uint8_t> tiled(test.heads * test.head_bytes());
      scatter(test, test.scales.data(), tiled.data());
      std::replace(tiled.begin(), tiled.end(), std::uint8_t{0}, kPoison);
      std::vector<std::uint8_t> back(test.scales.size());
      gather(test, tiled.data(), back.data());
      EXPECT_TRUE(bitwise_equal(back, test.scales, {test.name()}));
    }
  }
}

TEST(JaggedScale, OffsetsOfKnownLengths) {
  const std::vector<std::int32_t> cu_seqlens{0, 0, 33, 33, 161, 162, 291};
  const JaggedOffsets offsets = make_jagged_offsets(cu_seqlens, 300);
  EXPECT_EQ(offsets.batch(), 6);
  EXPECT_EQ(offsets.groups, (std::vector<std::int64_t>{0, 0, 2, 2, 6, 7, 12}));
  EXPECT_EQ(offsets.tiles, (std::vector<std::int64_t>{0, 0, 1, 1, 2, 3, 5}));
  EXPECT_EQ(offsets.seqlen(3), 128);
  EXPECT_EQ(offsets.scale_row(BlockShape::k32x1, 3, 64), 4);
  EXPECT_EQ(offsets.scale_row(BlockShape::k1x32, 3, 64), 97);
  EXPECT_EQ(make_single_sequence(70).groups, (std::vector<std::int64_t>{0, 3}));
}

TEST(JaggedScale, BoundsFromShapesHoldAndAreReached) {
  Rng rng(3);
  for (int repeat = 0; repeat < 300; ++repeat) {
    const auto cu_seqlens = random_cu_seqlens(rng);
    const JaggedOffsets offsets = make_jagged_offsets(cu_seqlens, cu_seqlens.back());
    EXPECT_LE(offsets.groups.back(), max_groups(cu_seqlens.back(), offsets.batch()));
    EXPECT_LE(offsets.tiles.back(), max_tiles(cu_seqlens.back(), offsets.batch()));
  }
  const JaggedOffsets worst = make_jagged_offsets(std::vector<std::int32_t>{0, 1, 34, 163}, 163);
  EXPECT_EQ(worst.groups.back(), 8);
  EXPECT_EQ(max_groups(163, 3), 8);
  EXPECT_EQ(worst.tiles.back(), 4);
  EXPECT_EQ(max_tiles(163, 3), 4);
  EXPECT_EQ(max_groups(2, 100), 2);
  EXPECT_EQ(max_tiles(0, 100), 0);
}

/// Field failure: offsets of 2^31 tokens computed in 32 bits. No memory is touched.
TEST(JaggedScale, OffsetsBeyond32Bits) {
  constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();
  const JaggedOffsets offsets =
      make_jagged_offsets(std::vector<std::int32_t>{0, kMax - 128, kMax}, kMax);
  EXPECT_EQ(offsets.tiles.back(), std::int64_t{1} << 24);
  const std::int64_t head_bytes = offsets.tiles.back() * tile_bytes(128);
  EXPECT_EQ(head_bytes, std::int64_t{1} << 33);
  const TiledScales<std::uint8_t> tiled{nullptr, ScaleAxis::kHeadDim, 128, head_bytes};
  EXPECT_EQ(tiled.offset(2, offsets.tiles[1]), 2 * head_bytes + head_bytes - 512);
  EXPECT_EQ(sequence_layout(ScaleAxis::kHeadDim, kMax, 128).offset(kMax - 1, 3), head_bytes - 17);
  EXPECT_EQ(sequence_layout(ScaleAxis::kTokens, kMax, 128).offset(127, (kMax - 1) / 32),
            head_bytes - 1);
  const std::int64_t row = offsets.scale_row(BlockShape::k1x32, 1, 127);
  const CompactScales<std::uint8_t> compact{nullptr, BlockShape::k1x32, 3 * 4, 4, 1};
  EXPECT_EQ(compact.offset(row, 2, 127), (std::int64_t{kMax} - 1) * 12 + 11);
}

TEST(JaggedScale, BadOffsetsAreNamed) {
  const auto message = [](std::vector<std::int32_t> cu_seqlens, std::int64_t total) {
    try {
      make_jagged_offsets(cu_seqlens, total, "cu_seqlens_k");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message({1, 4}, 4), "cu_seqlens_k[0]: expected 0, got 1");
  EXPECT_EQ(message({0, 5}, 4), "cu_seqlens_k[1]: expected at most 4 (the rows given), got 5");
  EXPECT_EQ(message({0, 3, 2, 4}, 4), "cu_seqlens_k[2]: expected at least 3, got 2");
  EXPECT_EQ(message({0, -1, 4}, 4), "cu_seqlens_k[1]: expected at least 0, got -1");
  EXPECT_EQ(message({}, 4), "cu_seqlens_k: expected batch + 1 offsets, got none");
  EXPECT_EQ(message({0, 4}, 4), "accepted");
  EXPECT_EQ(message({0}, 4), "accepted");
}

TEST(JaggedScale, RefusesAxesThatABlockShapeCannotTake) {
  for (const BlockShape shape : kShapes) {
    for (const ScaleAxis axis : kAxes) {
      if (legal(shape, axis)) {
        EXPECT_NO_THROW(check_scale_axis(shape, axis));
      } else {
        EXPECT_THROW(check_scale_axis(shape, axis), Error);
      }
    }
  }
}

}  // namespace
}  // namespace mxfa::mx
