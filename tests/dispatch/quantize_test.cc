#include "mxfa/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "core/parallel.h"
#include "dispatch/tensors.h"
#include "mx/bits.h"
#include "mx/jagged_scale.h"
#include "mx/quantize.h"
#include "support/compare.h"
#include "support/rng.h"

namespace mxfa {
namespace {

using mxfa::testing::bitwise_equal;
using mxfa::testing::OwnedTensor;
using mxfa::testing::Rng;
using Shape = std::vector<std::int64_t>;

constexpr BlockShape kShapes[] = {BlockShape::k1x32, BlockShape::k32x1, BlockShape::k32x32,
                                  BlockShape::k32xD, BlockShape::k1xD};

TensorView int32_view(std::vector<std::int32_t>& values) {
  return make_tensor(values.data(), DType::kI32, {static_cast<std::int64_t>(values.size())});
}

/// Normal values; head h is scaled by 4^h so that heads cannot be mixed up unnoticed.
std::vector<float> sample(const Shape& shape, unsigned seed) {
  Rng rng(seed);
  const std::int64_t heads = shape.size() == 3 ? shape[1] : 1;
  std::vector<float> values;
  for (std::int64_t token = 0; token < shape[0]; ++token) {
    for (std::int64_t head = 0; head < heads; ++head) {
      for (std::int64_t i = 0; i < shape.back(); ++i) {
        values.push_back(std::ldexp(static_cast<float>(rng.normal()), static_cast<int>(2 * head)));
      }
    }
  }
  return values;
}

/// Quantizes each (sequence, head) on its own with the matrix function and puts the pieces where
/// the documentation of scale_shape() says they lie (row-major).
struct Expected {
  std::vector<std::uint8_t> payload;
  std::vector<std::uint8_t> scales;
};
Expected expect_row_major(const std::vector<float>& values, const Shape& shape,
                          const std::vector<std::int32_t>& cu_seqlens, QuantizeOptions options) {
  const std::int64_t heads = shape[1];
  const std::int64_t dim = shape[2];
  const std::int64_t cols = mx::scale_cols(options.block_shape, dim);
  const bool per_token = mx::block_rows(options.block_shape) == 1;
  Expected expected{std::vector<std::uint8_t>(values.size()), {}};
  std::int64_t first_row = 0;
  for (std::size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    const std::int64_t begin = cu_seqlens[s];
    const std::int64_t length = cu_seqlens[s + 1] - begin;
    const std::int64_t rows = per_token ? length : (length + 31) / 32;
    expected.scales.resize((first_row + rows) * heads * cols);
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::int64_t start = (begin * heads + head) * dim;
      const mx::QuantizedMatrix matrix =
          mx::quantize({values.data() + start, length, dim, heads * dim, 1},
                       {options.block_shape, options.rule, options.format});
      for (std::int64_t row = 0; row < length; ++row) {
        std::copy_n(matrix.codes.begin() + row * dim, dim,
                    expected.payload.begin() + start + row * heads * dim);
      }
      for (std::int64_t row = 0; row < rows; ++row) {
        std::copy_n(matrix.scales.begin() + row * cols, cols,
                    expected.scales.begin() + ((first_row + row) * heads + head) * cols);
      }
    }
    first_row += rows;
  }
  if (per_token) expected.scales.resize(shape[0] * heads * cols);
  return expected;
}

TEST(Quantize, PackedSequencesEqualSeparateMatrices) {
  std::vector<std::int32_t> cu_seqlens{0, 0, 33, 33, 161, 162, 290};
  const Shape shape{300, 3, 40};  // ten tokens of slack
  const std::vector<float> values = sample(shape, 1);
  OwnedTensor input(DType::kF32, shape);
  input.fill(values);
  for (const BlockShape block_shape : kShapes) {
    for (const DType format : {DType::kE4M3, DType::kE5M2}) {
      const QuantizeOptions options{
          .block_shape = block_shape, .format = format, .cu_seqlens = int32_view(cu_seqlens)};
      OwnedTensor payload(format, shape);
      OwnedTensor scales(DType::kE8M0, scale_shape(shape, options));
      quantize(input.view(), payload.view(), scales.view(), options);
      const Expected expected = expect_row_major(values, shape, cu_seqlens, options);
      const std::string name(block_shape_name(block_shape));
      EXPECT_TRUE(bitwise_equal(payload.bytes(), expected.payload, {name + " payload", 40}));
      EXPECT_TRUE(bitwise_equal(scales.bytes(), expected.scales, {name + " scales"}));
      EXPECT_TRUE(payload.guards_intact() && scales.guards_intact()) << name;
    }
  }
}

TEST(Quantize, TiledLayoutIsTheScatteredRowMajorOne) {
  std::vector<std::int32_t> cu_seqlens{0, 130, 130, 131, 300};
  const Shape shape{300, 2, 136};
  OwnedTensor input(DType::kF32, shape);
  input.fill(sample(shape, 2));
  const std::pair<BlockShape, ScaleAxis> cases[] = {
      {BlockShape::k1x32, ScaleAxis::kHeadDim}, {BlockShape::k1xD, ScaleAxis::kHeadDim},
      {BlockShape::k32x1, ScaleAxis::kTokens},  {BlockShape::k32x32, ScaleAxis::kHeadDim},
      {BlockShape::k32x32, ScaleAxis::kTokens}, {BlockShape::k32xD, ScaleAxis::kHeadDim},
      {BlockShape::k32xD, ScaleAxis::kTokens}};
  for (const auto& [block_shape, axis] : cases) {
    QuantizeOptions options{
        .block_shape = block_shape, .scale_axis = axis, .cu_seqlens = int32_view(cu_seqlens)};
    OwnedTensor payload(DType::kE4M3, shape);
    OwnedTensor scales(DType::kE8M0, scale_shape(shape, options));
    quantize(input.view(), payload.view(), scales.view(), options);
    OwnedTensor moved(DType::kE8M0, {2, 2 + 0 + 1 + 2, 2, 512});
    tile_scales(shape, scales.view(), moved.view(), options);

    options.layout = ScaleLayout::kTiled128x4;
    EXPECT_EQ(scale_shape(shape, options), (Shape{2, 5, 2, 512}));
    OwnedTensor payload_again(DType::kE4M3, shape);
    OwnedTensor tiled(DType::kU8, {2, 7, 2, 512});  // two tiles more than needed
    quantize(input.view(), payload_again.view(), tiled.view(), options);
    const std::string name =
        fmt::format("{} along {}", block_shape_name(block_shape), scale_axis_name(axis));
    EXPECT_TRUE(bitwise_equal(payload_again.bytes(), payload.bytes(), {name}));
    for (int head = 0; head < 2; ++head) {
      const auto got = tiled.bytes().subspan(head * 7 * 1024, 7 * 1024);
      EXPECT_TRUE(bitwise_equal(
          got.first(5 * 1024), moved.bytes().subspan(head * 5 * 1024, 5 * 1024), {name + " head"}));
      EXPECT_TRUE(bitwise_equal(got.last(2 * 1024), std::vector<std::uint8_t>(2 * 1024, 0),
                                {name + " slack"}));
    }
    EXPECT_EQ(std::count(tiled.bytes().begin(), tiled.bytes().end(), 0xFF), 0) << name;
    OwnedTensor back(DType::kE8M0, scale_shape(shape, {.block_shape = block_shape,
                                                       .cu_seqlens = options.cu_seqlens}));
    untile_scales(shape, moved.view(), back.view(), options);
    EXPECT_TRUE(bitwise_equal(back.bytes(), scales.bytes(), {name + " back"}));

    OwnedTensor by_rows(DType::kF32, shape);
    OwnedTensor by_tiles(DType::kF32, shape);
    dequantize(payload.view(), tiled.view(), by_tiles.view(), options);
    options.layout = ScaleLayout::kRowMajor;
    dequantize(payload.view(), scales.view(), by_rows.view(), options);
    EXPECT_TRUE(bitwise_equal(by_tiles.bytes(), by_rows.bytes(), {name + " values"}));
  }
}

TEST(Quantize, HalfPrecisionInputsEqualTheirFp32Values) {
  const Shape shape{70, 2, 96};
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    OwnedTensor half(dtype, shape);
    half.fill(sample(shape, 3));
    std::vector<float> widened;
    for (const std::uint16_t code : half.as<std::uint16_t>()) {
      widened.push_back(dtype == DType::kF16 ? mx::decode_f16(code) : mx::decode_bf16(code));
    }
    OwnedTensor single(DType::kF32, shape);
    single.fill(widened);
    const QuantizeOptions options;
    OwnedTensor payload(DType::kE4M3, shape);
    OwnedTensor scales(DType::kE8M0, scale_shape(shape, options));
    OwnedTensor payload_single(DType::kE4M3, shape);
    OwnedTensor scales_single(DType::kE8M0, scale_shape(shape, options));
    quantize(half.view(), payload.view(), scales.view(), options);
    quantize(single.view(), payload_single.view(), scales_single.view(), options);
    EXPECT_TRUE(bitwise_equal(payload.bytes(), payload_single.bytes()));
    EXPECT_TRUE(bitwise_equal(scales.bytes(), scales_single.bytes()));

    OwnedTensor values(DType::kF32, shape);
    OwnedTensor rounded(dtype, shape);
    OwnedTensor expected(dtype, shape);
    dequantize(payload.view(), scales.view(), values.view(), options);
    dequantize(payload.view(), scales.view(), rounded.view(), options);
    expected.fill(values.as<float>());
    EXPECT_TRUE(bitwise_equal(rounded.bytes(), expected.bytes()));
  }
}

/// Views with every dimension permuted, spaced or reversed give the bytes of contiguous ones.
TEST(Quantize, AnyStrides) {
  const std::int64_t tokens = 70;
  const std::int64_t heads = 3;
  const std::int64_t dim = 40;
  const Shape shape{tokens, heads, dim};
  const std::vector<float> values = sample(shape, 4);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    OwnedTensor contiguous(dtype, shape);
    contiguous.fill(values);
    std::vector<float> permuted_values(values.size());
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t d = 0; d < dim; ++d) {
          permuted_values[(d * heads + h) * tokens + (tokens - 1 - t)] =
              values[(t * heads + h) * dim + d];
        }
      }
    }
    OwnedTensor permuted(dtype, {dim, heads, tokens});
    permuted.fill(permuted_values);
    TensorView strided = permuted.view();
    strided.data = static_cast<std::uint8_t*>(strided.data) + (tokens - 1) * dtype_size(dtype);
    strided.shape = {tokens, heads, dim};
    strided.strides = {-1, tokens, heads * tokens};
    for (const BlockShape block_shape : kShapes) {
      const QuantizeOptions options{.block_shape = block_shape};
      const Shape compact = scale_shape(shape, options);
      OwnedTensor payload(DType::kE4M3, shape);
      OwnedTensor scales(DType::kE8M0, compact);
      quantize(contiguous.view(), payload.view(), scales.view(), options);

      OwnedTensor payload_permuted(DType::kE4M3, {heads, dim, tokens});
      TensorView payload_view = payload_permuted.view();
      payload_view.shape = {tokens, heads, dim};
      payload_view.strides = {1, dim * tokens, tokens};
      OwnedTensor scales_permuted(DType::kE8M0, Shape(compact.rbegin(), compact.rend()));
      TensorView scales_view = scales_permuted.view();
      std::reverse(scales_view.shape.begin(), scales_view.shape.begin() + scales_view.rank);
      std::reverse(scales_view.strides.begin(), scales_view.strides.begin() + scales_view.rank);
      quantize(strided, payload_view, scales_view, options);
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t column = 0; column < heads * dim; ++column) {
          ASSERT_EQ(payload_permuted.bytes()[column * tokens + t],
                    payload.bytes()[t * heads * dim + column])
              << block_shape_name(block_shape) << " token " << t << ", column " << column;
        }
      }
      OwnedTensor values_contiguous(dtype, shape);
      OwnedTensor values_permuted(dtype, {dim, heads, tokens});
      TensorView values_view = strided;
      values_view.data = static_cast<std::uint8_t*>(values_permuted.view().data) +
                         (tokens - 1) * dtype_size(dtype);
      dequantize(payload.view(), scales.view(), values_contiguous.view(), options);
      dequantize(payload_view, scales_view, values_view, options);
      OwnedTensor again(DType::kE4M3, shape);
      OwnedTensor scales_again(DType::kE8M0, compact);
      quantize(values_view, again.view(), scales_again.view(), options);
      OwnedTensor want(DType::kE4M3, shape);
      OwnedTensor scales_want(DType::kE8M0, compact);
      quantize(values_contiguous.view(), want.view(), scales_want.view(), options);
      EXPECT_TRUE(bitwise_equal(again.bytes(), want.bytes()));
      EXPECT_TRUE(bitwise_equal(scales_again.bytes(), scales_want.bytes()));
    }
  }
}

TEST(Quantize, RankTwoIsOneHead) {
  const Shape matrix{100, 96};
  const std::vector<float> values = sample(matrix, 5);
  OwnedTensor input(DType::kF32, matrix);
  input.fill(values);
  const Shape scale_shapes[] = {{100, 3}, {4, 96}, {4, 3}, {4}, {100}};
  for (int i = 0; i < 5; ++i) {
    const QuantizeOptions options{.block_shape = kShapes[i]};
    EXPECT_EQ(scale_shape(matrix, options), scale_shapes[i]);
    OwnedTensor payload(DType::kE4M3, matrix);
    OwnedTensor scales(DType::kE8M0, scale_shapes[i]);
    quantize(input.view(), payload.view(), scales.view(), options);
    const mx::QuantizedMatrix want =
        mx::quantize(mx::row_major(values.data(), 100, 96), {.block_shape = kShapes[i]});
    EXPECT_TRUE(bitwise_equal(payload.bytes(), want.codes));
    EXPECT_TRUE(bitwise_equal(scales.bytes(), want.scales));
  }
  const QuantizeOptions tiled{.layout = ScaleLayout::kTiled128x4};
  EXPECT_EQ(scale_shape(matrix, tiled), (Shape{1, 1, 512}));
}

/// Buffers sized from shapes alone are large enough for any lengths, and their rest is zeroed.
TEST(Quantize, UpperBoundShapesAreAcceptedAndCleared) {
  std::vector<std::int32_t> cu_seqlens{0, 1, 1, 65};
  const Shape shape{80, 2, 64};
  OwnedTensor input(DType::kF32, shape);
  input.fill(sample(shape, 6));
  for (const BlockShape block_shape : kShapes) {
    for (const ScaleLayout layout : {ScaleLayout::kRowMajor, ScaleLayout::kTiled128x4}) {
      const QuantizeOptions options{
          .block_shape = block_shape,
          .layout = layout,
          .scale_axis = block_shape == BlockShape::k32x1 ? ScaleAxis::kTokens : ScaleAxis::kHeadDim,
          .cu_seqlens = int32_view(cu_seqlens)};
      const Shape exact = scale_shape(shape, options);
      const Shape bound = max_scale_shape(shape, 3, options);
      OwnedTensor payload(DType::kE4M3, shape);
      OwnedTensor exact_scales(DType::kE8M0, exact);
      OwnedTensor bound_scales(DType::kE8M0, bound);
      quantize(input.view(), payload.view(), exact_scales.view(), options);
      quantize(input.view(), payload.view(), bound_scales.view(), options);
      for (const std::uint8_t byte : payload.bytes().last(15 * 2 * 64)) ASSERT_EQ(byte, 0);
      EXPECT_EQ(std::count(bound_scales.bytes().begin(), bound_scales.bytes().end(), 0xFF), 0);
      OwnedTensor exact_values(DType::kF32, shape);
      OwnedTensor bound_values(DType::kF32, shape);
      dequantize(payload.view(), exact_scales.view(), exact_values.view(), options);
      dequantize(payload.view(), bound_scales.view(), bound_values.view(), options);
      EXPECT_TRUE(bitwise_equal(bound_values.bytes(), exact_values.bytes()));
      for (const float value : bound_values.as<float>().last(15 * 2 * 64)) ASSERT_EQ(value, 0.0f);
    }
  }
}

TEST(Quantize, ResultsDoNotDependOnThreads) {
  const Shape shape{4000, 2, 64};
  std::vector<std::int32_t> cu_seqlens{0, 1000, 1001, 3500, 4000};
  OwnedTensor input(DType::kF32, shape);
  input.fill(sample(shape, 7));
  const QuantizeOptions options{.layout = ScaleLayout::kTiled128x4,
                                .cu_seqlens = int32_view(cu_seqlens)};
  OwnedTensor payload(DType::kE4M3, shape);
  OwnedTensor scales(DType::kE8M0, scale_shape(shape, options));
  core::set_num_threads(1);
  quantize(input.view(), payload.view(), scales.view(), options);
  for (const int threads : {2, 7}) {
    core::set_num_threads(threads);
    OwnedTensor payload_again(DType::kE4M3, shape);
    OwnedTensor scales_again(DType::kE8M0, scale_shape(shape, options));
    quantize(input.view(), payload_again.view(), scales_again.view(), options);
    EXPECT_TRUE(bitwise_equal(payload_again.bytes(), payload.bytes()));
    EXPECT_TRUE(bitwise_equal(scales_again.bytes(), scales.bytes()));
  }
  core::set_num_threads(0);
}

TEST(Quantize, EmptyTensors) {
  std::vector<std::int32_t> none{0};
  std::vector<std::int32_t> two_empty{0, 0, 0};
  for (std::vector<std::int32_t>* cu_seqlens : {&none, &two_empty}) {
    for (const Shape& shape : {Shape{0, 10, 64}, Shape{5, 0, 64}, Shape{5, 2, 64}}) {
      const QuantizeOptions options{.cu_seqlens = int32_view(*cu_seqlens)};
      OwnedTensor input(DType::kBF16, shape);
      OwnedTensor payload(DType::kE4M3, shape);
      OwnedTensor scales(DType::kE8M0, scale_shape(shape, options));
      quantize(input.view(), payload.view(), scales.view(), options);
      EXPECT_EQ(std::count(payload.bytes().begin(), payload.bytes().end(), 0xFF), 0);
      EXPECT_TRUE(scales.bytes().empty());
    }
  }
}

TEST(Quantize, RealignGivesUniformScalesAndAReport) {
  std::vector<std::int32_t> cu_seqlens{0, 40, 100};
  const Shape shape{104, 2, 128};
  std::vector<float> values = sample(shape, 8);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % 128 < 32) values[i] *= 0x1p-14f;
  }
  OwnedTensor input(DType::kF32, shape);
  input.fill(values);
  const QuantizeOptions options{.block_shape = BlockShape::k1x32,
                                .cu_seqlens = int32_view(cu_seqlens)};
  OwnedTensor payload(DType::kE4M3, shape);
  OwnedTensor scales(DType::kE8M0, scale_shape(shape, options));
  quantize(input.view(), payload.view(), scales.view(), options);
  OwnedTensor uniform(DType::kE4M3, shape);
  OwnedTensor uniform_scales(DType::kE8M0, {6, 2});  // two groups more than needed
  const RealignSummary summary =
      realign(payload.view(), scales.view(), uniform.view(), uniform_scales.view(), options);
  EXPECT_EQ(summary.blocks, 100 * 2 * 4);
  EXPECT_GE(summary.blocks_far, 200);
  EXPECT_GE(summary.max_shift, 13);
  EXPECT_GT(summary.values_flushed, 0);
  EXPECT_EQ(summary.groups_poisoned, 0);
  for (int head = 0; head < 2; ++head) {
    EXPECT_EQ(uniform_scales.bytes()[4 * 2 + head], 0);
    std::uint8_t top = 0;
    for (int token = 32; token < 40; ++token) {
      for (int block = 0; block < 4; ++block) {
        top = std::max(top, scales.bytes()[(token * 2 + head) * 4 + block]);
      }
    }
    EXPECT_EQ(uniform_scales.bytes()[1 * 2 + head], top) << "short group of sequence 0";
  }
}

}  // namespace
}  // namespace mxfa
