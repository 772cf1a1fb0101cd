#include "mx/realign.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "mx/block.h"
#include "mx/definition.h"
#include "support/compare.h"
#include "support/rng.h"

namespace mxfa::mx {
namespace {

using mxfa::testing::bitwise_equal;
using mxfa::testing::code_value;
using mxfa::testing::NearestCode;
using mxfa::testing::Rng;

/// Normal values whose 1x32 blocks are scaled by 2^[0, spread]; one block in eight is zero.
std::vector<float> blocks_over(std::int64_t rows, std::int64_t cols, int spread, Rng& rng) {
  std::vector<float> values(rows * cols);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t col = 0; col < cols; col += 32) {
      const int exponent = static_cast<int>(rng.integer(0, spread));
      const bool zero = rng.integer(0, 7) == 0;
      for (std::int64_t c = col; c < std::min(col + 32, cols); ++c) {
        values[row * cols + c] =
            zero ? 0.0f : std::ldexp(static_cast<float>(rng.normal()), exponent);
      }
    }
  }
  return values;
}

/// The largest scale byte of a non-zero value in the group of 32 rows that holds `row`.
int group_scale(const QuantizedMatrix& source, std::int64_t row) {
  int scale = 0;
  const std::int64_t begin = row / 32 * 32;
  for (std::int64_t r = begin; r < std::min<std::int64_t>(source.rows, begin + 32); ++r) {
    for (std::int64_t c = 0; c < source.cols; ++c) {
      const bool zero = (source.code(r, c) & 0x7F) == 0;
      if (!zero) scale = std::max<int>(scale, source.scale(r, c));
    }
  }
  return scale;
}

TEST(Realign, EqualsRoundingUnderTheGroupMaximum) {
  Rng rng(1);
  for (const BlockShape shape : {BlockShape::k1x32, BlockShape::k32x1, BlockShape::k32x32,
                                 BlockShape::k32xD, BlockShape::k1xD}) {
    for (const DType format : {DType::kE4M3, DType::kE5M2}) {
      const NearestCode nearest(format);
      const auto values = blocks_over(70, 104, 22, rng);
      const QuantizedMatrix source =
          quantize(row_major(values.data(), 70, 104), {.block_shape = shape, .format = format});
      const QuantizedMatrix got = realign(source);
      EXPECT_EQ(got.block_shape, BlockShape::k32xD);
      for (std::int64_t row = 0; row < 70; ++row) {
        const int scale = group_scale(source, row);
        for (std::int64_t col = 0; col < 104; ++col) {
          const double value =
              std::ldexp(code_value(format, source.code(row, col)), source.scale(row, col) - scale);
          ASSERT_EQ(got.scale(row, col), scale) << block_shape_name(shape) << row;
          ASSERT_EQ(got.code(row, col), nearest(value))
              << block_shape_name(shape) << " " << dtype_name(format) << " " << row << ", " << col;
        }
      }
    }
  }
}

TEST(Realign, UniformTensorComesBackBitForBit) {
  Rng rng(2);
  const auto values = blocks_over(70, 128, 12, rng);
  const QuantizedMatrix source =
      quantize(row_major(values.data(), 70, 128), {.block_shape = BlockShape::k32xD});
  QuantizedMatrix expanded{70, 128, BlockShape::k1x32, DType::kE4M3, source.codes, {}};
  for (std::int64_t row = 0; row < 70; ++row) {
    for (std::int64_t col = 0; col < 128; col += 32) {
      expanded.scales.push_back(source.scale(row, col));
    }
  }
  RealignReport report;
  const QuantizedMatrix got = realign(expanded, &report);
  EXPECT_TRUE(bitwise_equal(got.codes, source.codes));
  EXPECT_TRUE(bitwise_equal(got.scales, source.scales));
  EXPECT_EQ(report.blocks_shifted, 0);
  EXPECT_EQ(report.values_flushed, 0);
  EXPECT_EQ(report.max_shift, 0);
  EXPECT_GT(report.blocks, 0);
}

/// One group, blocks of 1.0 with scales 127, 121, 115, 114, 107 and a zero block with a large
/// scale.
TEST(Realign, ReportCountsShiftsAndFlushedValues) {
  QuantizedMatrix source{1,
                         192,
                         BlockShape::k1x32,
                         DType::kE4M3,
                         std::vector<std::uint8_t>(192),
                         {127, 121, 115, 114, 107, 200}};
  std::fill(source.codes.begin(), source.codes.begin() + 160, 0x38);
  RealignReport report;
  const QuantizedMatrix got = realign(source, &report);
  EXPECT_EQ(got.scales, (std::vector<std::uint8_t>{127}));
  EXPECT_EQ(got.value(0, 0), 1.0f);
  EXPECT_EQ(got.value(0, 32), std::ldexp(1.0f, -6));
  EXPECT_EQ(got.value(0, 64), 0.0f);  // 2^-12 is below half a step of 2^-9
  EXPECT_EQ(got.value(0, 191), 0.0f);
  EXPECT_EQ(report.blocks, 5);
  EXPECT_EQ(report.blocks_shifted, 4);
  EXPECT_EQ(report.blocks_far, 2) << "a shift of exactly 12 is tolerable";
  EXPECT_EQ(report.values_flushed, 96);
  EXPECT_EQ(report.max_shift, 20);
  EXPECT_EQ(report.groups_poisoned, 0);
  RealignReport sum = report;
  sum.add(report);
  EXPECT_EQ(sum.values_flushed, 192);
  EXPECT_EQ(sum.max_shift, 20);
}

TEST(Realign, NanPoisonsItsGroupOnly) {
  Rng rng(3);
  for (const bool by_scale : {false, true}) {
    const auto values = blocks_over(64, 64, 2, rng);
    QuantizedMatrix source =
        quantize(row_major(values.data(), 64, 64), {.block_shape = BlockShape::k1x32});
    if (by_scale) {
      source.scales[source.grid().index(40, 0)] = 0xFF;
    } else {
      source.codes[40 * 64] = 0xFF;
    }
    RealignReport report;
    const QuantizedMatrix got = realign(source, &report);
    EXPECT_EQ(report.groups_poisoned, 1);
    EXPECT_EQ(got.scales[1], 0xFF);
    EXPECT_NE(got.scales[0], 0xFF);
    for (int i = 32 * 64; i < 64 * 64; ++i) ASSERT_EQ(got.codes[i], 0x7F);
  }
}

TEST(Realign, ExtremeSpreadIsFiniteAndFlushes) {
  QuantizedMatrix source{
      2, 32, BlockShape::k1x32, DType::kE5M2, std::vector<std::uint8_t>(64, 0x7B), {254, 0}};
  RealignReport report;
  const QuantizedMatrix got = realign(source, &report);
  EXPECT_EQ(report.max_shift, 254);
  EXPECT_EQ(report.values_flushed, 32);
  EXPECT_EQ(got.codes[0], 0x7B);
  EXPECT_EQ(got.codes[63], 0);
  EXPECT_TRUE(
      realign(QuantizedMatrix{0, 32, BlockShape::k1x32, DType::kE4M3, {}, {}}).codes.empty());
}

/// What a shift costs in dB of a block, E4M3 on normal values. The table is what double rounding
/// gives on 64k values; 0.6 dB covers the seed.
TEST(Realign, CostOfAShiftInDecibels) {
  const std::pair<int, double> expected[] = {{0, 31.5},  {8, 31.5},  {10, 31.5}, {11, 31.4},
                                             {12, 30.6}, {13, 27.4}, {14, 21.9}, {15, 16.4},
                                             {16, 10.7}, {18, 0.7}};
  constexpr std::int64_t kRows = 2048;
  Rng rng(4);
  const auto values = rng.normal_values<float>(kRows * 32);
  const QuantizedMatrix source =
      quantize(row_major(values.data(), kRows, 32), {.block_shape = BlockShape::k1x32});
  for (const auto& [shift, db] : expected) {
    std::vector<float> got;
    for (std::int64_t row = 0; row < kRows; ++row) {
      // The row beside a block of ones whose scale is larger by `shift`.
      QuantizedMatrix pair{1,
                           64,
                           BlockShape::k1x32,
                           DType::kE4M3,
                           std::vector<std::uint8_t>(64, 0x38),
                           {source.scales[row], 0}};
      std::copy_n(source.codes.begin() + row * 32, 32, pair.codes.begin());
      pair.scales[1] = static_cast<std::uint8_t>(source.scales[row] + shift);
      const std::vector<float> aligned = dequantize(realign(pair));
      got.insert(got.end(), aligned.begin(), aligned.begin() + 32);
    }
    EXPECT_NEAR(mxfa::testing::sqnr_db_of(got, values), db, 0.6) << "shift " << shift;
  }
}

}  // namespace
}  // namespace mxfa::mx
