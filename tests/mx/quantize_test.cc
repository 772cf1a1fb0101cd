#include "mx/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <tuple>

#include "mx/block.h"
#include "mx/definition.h"
#include "mxfa/error.h"
#include "support/compare.h"
#include "support/rng.h"

namespace mxfa::mx {
namespace {

using mxfa::testing::bitwise_equal;
using mxfa::testing::define_block;
using mxfa::testing::DefinedBlock;
using mxfa::testing::Rng;

std::vector<QuantizeSpec> all_specs() {
  std::vector<QuantizeSpec> specs;
  for (const BlockShape shape : {BlockShape::k1x32, BlockShape::k32x1, BlockShape::k32x32,
                                 BlockShape::k32xD, BlockShape::k1xD}) {
    for (const DType format : {DType::kE4M3, DType::kE5M2}) {
      for (const ScaleRule rule : {ScaleRule::kRoundUp, ScaleRule::kFloor}) {
        specs.push_back({shape, rule, format});
      }
    }
  }
  return specs;
}

std::string name_of(const QuantizeSpec& spec, std::int64_t rows, std::int64_t cols) {
  return fmt::format("{} {} rule {} [{}, {}]", block_shape_name(spec.block_shape),
                     dtype_name(spec.format), static_cast<int>(spec.rule), rows, cols);
}

/// Signed values over `binades` binades, one in eight zero.
std::vector<float> spread_values(std::int64_t count, int binades, unsigned seed) {
  Rng rng(seed);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    const int exponent = static_cast<int>(rng.integer(-binades / 2, binades / 2));
    value = rng.integer(0, 7) == 0 ? 0.0f : std::ldexp(static_cast<float>(rng.normal()), exponent);
  }
  return values;
}

/// What `quantize` must give, block by block from the definition. The block of an element is named
/// by its block row and block column.
QuantizedMatrix define_matrix(const std::vector<float>& values, std::int64_t rows,
                              std::int64_t cols, const QuantizeSpec& spec) {
  const BlockShape shape = spec.block_shape;
  const bool per_row = shape == BlockShape::k1x32 || shape == BlockShape::k1xD;
  const bool whole_width = shape == BlockShape::k32xD || shape == BlockShape::k1xD;
  std::map<std::tuple<std::int64_t, std::int64_t>, std::vector<std::int64_t>> blocks;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t col = 0; col < cols; ++col) {
      const std::int64_t block_row = per_row ? row : row / 32;
      const std::int64_t block_col = whole_width ? 0 : shape == BlockShape::k32x1 ? col : col / 32;
      blocks[{block_row, block_col}].push_back(row * cols + col);
    }
  }
  QuantizedMatrix want{rows, cols, shape, spec.format, {}, {}};
  want.codes.resize(values.size());
  for (const auto& [coordinate, members] : blocks) {  // in row-major order of the blocks
    std::vector<float> inputs;
    for (const std::int64_t member : members) inputs.push_back(values[member]);
    const DefinedBlock block = define_block(spec.format, spec.rule, inputs);
    want.scales.push_back(block.scale);
    for (std::size_t i = 0; i < members.size(); ++i) want.codes[members[i]] = block.codes[i];
  }
  return want;
}

void expect_equal(const QuantizedMatrix& got, const QuantizedMatrix& want,
                  const std::string& label) {
  EXPECT_TRUE(bitwise_equal(got.codes, want.codes, {label + " codes", got.cols}));
  EXPECT_TRUE(bitwise_equal(got.scales, want.scales, {label + " scales"}));
}

TEST(QuantizeMatrix, EqualsDefinitionForEveryShape) {
  const std::pair<std::int64_t, std::int64_t> sizes[] = {{1, 1},   {1, 40},  {31, 33}, {32, 32},
                                                         {33, 64}, {70, 96}, {64, 40}, {3, 128}};
  for (const QuantizeSpec& spec : all_specs()) {
    for (const auto& [rows, cols] : sizes) {
      const auto values = spread_values(rows * cols, 40, static_cast<unsigned>(rows * 131 + cols));
      expect_equal(quantize(row_major(values.data(), rows, cols), spec),
                   define_matrix(values, rows, cols, spec), name_of(spec, rows, cols));
    }
  }
}

TEST(QuantizeMatrix, ExtremeMagnitudes) {
  for (const QuantizeSpec& spec : all_specs()) {
    auto values = spread_values(64 * 64, 250, 3);
    values[5] = std::numeric_limits<float>::max();
    values[64 * 40 + 40] = std::numeric_limits<float>::denorm_min();
    expect_equal(quantize(row_major(values.data(), 64, 64), spec),
                 define_matrix(values, 64, 64, spec), name_of(spec, 64, 64));
    for (float& value : values) value = std::ldexp(value, -110);
    expect_equal(quantize(row_major(values.data(), 64, 64), spec),
                 define_matrix(values, 64, 64, spec), name_of(spec, 64, 64) + " tiny");
  }
}

TEST(QuantizeMatrix, NonFiniteValuePoisonsItsBlockOnly) {
  const float specials[] = {
      std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
      std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()};
  for (const QuantizeSpec& spec : all_specs()) {
    for (const float special : specials) {
      auto values = spread_values(64 * 64, 4, 9);
      values[33 * 64 + 7] = special;
      const QuantizedMatrix got = quantize(row_major(values.data(), 64, 64), spec);
      expect_equal(got, define_matrix(values, 64, 64, spec), name_of(spec, 64, 64));
      EXPECT_EQ(got.scale(33, 7), 0xFF);
      EXPECT_EQ(got.code(33, 7), 0x7F);
      EXPECT_TRUE(std::isnan(got.value(33, 7)));
      EXPECT_TRUE(std::isfinite(got.value(0, 63)));
    }
  }
}

TEST(QuantizeMatrix, StridedViewsEqualContiguousOnes) {
  const std::int64_t rows = 45;
  const std::int64_t cols = 50;
  const auto values = spread_values(rows * cols, 20, 4);
  std::vector<float> padded(rows * 70, std::numeric_limits<float>::quiet_NaN());
  std::vector<float> swapped(rows * cols);
  std::vector<float> reversed(rows * cols);
  std::vector<float> spaced(rows * cols * 3, std::numeric_limits<float>::quiet_NaN());
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t col = 0; col < cols; ++col) {
      const float value = values[row * cols + col];
      padded[row * 70 + col] = value;
      swapped[col * rows + row] = value;
      reversed[(rows - 1 - row) * cols + (cols - 1 - col)] = value;
      spaced[(row * cols + col) * 3] = value;
    }
  }
  for (const QuantizeSpec& spec : all_specs()) {
    const QuantizedMatrix want = quantize(row_major(values.data(), rows, cols), spec);
    const std::string name = name_of(spec, rows, cols);
    expect_equal(quantize({padded.data(), rows, cols, 70, 1}, spec), want, name + " padded");
    expect_equal(quantize(row_major(swapped.data(), cols, rows).transposed(), spec), want,
                 name + " transposed");
    expect_equal(quantize({reversed.data() + rows * cols - 1, rows, cols, -cols, -1}, spec), want,
                 name + " negative strides");
    expect_equal(quantize({spaced.data(), rows, cols, cols * 3, 3}, spec), want, name + " spaced");
  }
  const QuantizedMatrix broadcast =
      quantize({values.data(), rows, cols, 0, 1}, {.block_shape = BlockShape::k1x32});
  EXPECT_EQ(broadcast.code(44, 3), broadcast.code(0, 3));
}

TEST(QuantizeMatrix, DequantizeEqualsElementValues) {
  for (const QuantizeSpec& spec : all_specs()) {
    const auto values = spread_values(37 * 45, 30, 5);
    const QuantizedMatrix matrix = quantize(row_major(values.data(), 37, 45), spec);
    const std::vector<float> got = dequantize(matrix);
    for (std::int64_t row = 0; row < 37; ++row) {
      for (std::int64_t col = 0; col < 45; ++col) {
        const double want = mxfa::testing::code_value(spec.format, matrix.code(row, col)) *
                            std::ldexp(1.0, matrix.scale(row, col) - 127);
        ASSERT_EQ(got[row * 45 + col], static_cast<float>(want)) << name_of(spec, row, col);
        ASSERT_EQ(got[row * 45 + col], matrix.value(row, col)) << name_of(spec, row, col);
      }
    }
  }
}

TEST(QuantizeMatrix, SquarePayloadIsTransposeInvariant) {
  const auto values = spread_values(70 * 90, 24, 6);
  const FloatView view = row_major(values.data(), 70, 90);
  const QuantizeSpec spec{.block_shape = BlockShape::k32x32};
  const QuantizedMatrix matrix = quantize(view, spec);
  const QuantizedMatrix transposed = quantize(view.transposed(), spec);
  for (std::int64_t row = 0; row < 70; ++row) {
    for (std::int64_t col = 0; col < 90; ++col) {
      ASSERT_EQ(matrix.code(row, col), transposed.code(col, row)) << row << ", " << col;
      ASSERT_EQ(matrix.scale(row, col), transposed.scale(col, row)) << row << ", " << col;
    }
  }
}

/// A scale that 32 tokens share over the whole head_dim is a legal scale of either orientation: the
/// 32x1 blocks of the same values have scales no larger, and under the shared scale their payload
/// is the 32xD payload.
TEST(QuantizeMatrix, GroupPayloadServesBothOrientations) {
  const auto values = spread_values(64 * 128, 6, 7);
  const FloatView view = row_major(values.data(), 64, 128);
  const QuantizedMatrix groups = quantize(view, {.block_shape = BlockShape::k32xD});
  const QuantizedMatrix columns = quantize(view, {.block_shape = BlockShape::k32x1});
  for (std::int64_t row = 0; row < 64; ++row) {
    for (std::int64_t col = 0; col < 128; ++col) {
      EXPECT_EQ(groups.scale(row, col), groups.scale(row, 0));
      EXPECT_GE(groups.scale(row, col), columns.scale(row, col));
      EXPECT_EQ(groups.code(row, col),
                encode_scaled<E4M3>(values[row * 128 + col], groups.scale(row, col)));
    }
  }
}

TEST(QuantizeMatrix, EmptyMatrices) {
  for (const QuantizeSpec& spec : all_specs()) {
    EXPECT_TRUE(quantize(row_major(nullptr, 0, 64), spec).scales.empty());
    EXPECT_TRUE(quantize(row_major(nullptr, 64, 0), spec).codes.empty());
    EXPECT_TRUE(dequantize(quantize(row_major(nullptr, 0, 0), spec)).empty());
  }
}

TEST(QuantizeMatrix, RefusesOtherFormats) {
  const float value = 1;
  try {
    quantize(row_major(&value, 1, 1), {.format = DType::kBF16});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_STREQ(error.what(), "format: expected e4m3 or e5m2, got bf16");
  }
}

TEST(QuantizeMatrix, ReusedResultKeepsNothingOld) {
  const auto values = spread_values(64 * 64, 6, 8);
  QuantizedMatrix result{1,
                         1,
                         BlockShape::k1xD,
                         DType::kE5M2,
                         std::vector<std::uint8_t>(9999, 0xFF),
                         std::vector<std::uint8_t>(9999, 0xFF)};
  const QuantizeSpec spec{.block_shape = BlockShape::k32x1};
  quantize(row_major(values.data(), 64, 64), spec, result);
  expect_equal(result, define_matrix(values, 64, 64, spec), "reused");
}

}  // namespace
}  // namespace mxfa::mx
