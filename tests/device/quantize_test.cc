#include "mxfa/quantize.h"

#include <gtest/gtest.h>

#include <limits>

#include "mx/jagged_scale.h"
#include "mx/permutation.h"
#include "support/bf16.h"
#include "support/compare.h"
#include "support/machine.h"

namespace mxfa::device {
namespace {

using testing::Guarded;

struct Case {
  const char* name;
  std::vector<std::int32_t> cu_seqlens;
  std::int64_t num_heads = 1;
  std::int64_t head_dim = 128;
  TokenOrder order = TokenOrder::kPlain;
  bool shifted = false;
  float corner = 0.0f;  ///< value planted in the last row; 0 = none
  friend std::ostream& operator<<(std::ostream& out, const Case& value) {
    return out << value.name;
  }
};

class QuantizeOnDevice : public ::testing::TestWithParam<std::tuple<Case, BlockShape>> {};

void expect_equal(const Guarded& got, const std::vector<std::uint8_t>& want, const char* label,
                  std::int64_t cols = 0) {
  EXPECT_TRUE(
      testing::bitwise_equal(got.download<std::uint8_t>(), want, {.label = label, .cols = cols}));
  EXPECT_TRUE(got.guards_intact()) << label << ": wrote outside";
}

int token_at(TokenOrder order, int position) {
  if (order == TokenOrder::kPi) return position / 16 * 16 + mx::pi_token(position % 16);
  if (order == TokenOrder::kSigma) return position / 16 * 16 + mx::sigma_token(position % 16);
  return position;
}

std::vector<std::uint8_t> transposed(const Case& test, const mx::JaggedOffsets& offsets,
                                     const std::vector<std::uint8_t>& codes) {
  const std::int64_t pitch = offsets.tiles.back() * 128;
  const std::int64_t width = test.num_heads * test.head_dim;
  std::vector<std::uint8_t> result(static_cast<std::size_t>(width * pitch));
  for (std::int64_t s = 0; s < offsets.batch(); ++s) {
    for (std::int64_t p = 0; p < (offsets.tiles[s + 1] - offsets.tiles[s]) * 128; ++p) {
      const std::int64_t token = token_at(test.order, static_cast<int>(p));
      if (token >= offsets.seqlen(s)) continue;
      for (std::int64_t column = 0; column < width; ++column) {
        result[column * pitch + offsets.tiles[s] * 128 + p] =
            codes[(offsets.tokens[s] + token) * width + column];
      }
    }
  }
  return result;
}

TEST_P(QuantizeOnDevice, BitEqualToTheCpu) {
  const auto& [test, block_shape] = GetParam();
  const std::int64_t total = test.cu_seqlens.back();
  const std::int64_t width = test.num_heads * test.head_dim;
  auto x = testing::random_bf16(total * width, 7);
  if (test.corner != 0.0f) x.back() = mx::encode_bf16(test.corner);
  const auto shift = testing::Rng(9).normal_values<float>(width);

  std::vector<float> values(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    values[i] = mx::decode_bf16(x[i]) - (test.shifted ? shift[i % width] : 0.0f);
  }
  const std::int64_t dims[] = {total, test.num_heads, test.head_dim};
  auto cu_seqlens = test.cu_seqlens;
  QuantizeOptions options{
      .block_shape = block_shape,
      .cu_seqlens = make_tensor(cu_seqlens.data(), DType::kI32, {std::ssize(cu_seqlens)})};
  const auto scales_of = [&](ScaleLayout layout, ScaleAxis axis, std::vector<std::uint8_t>& codes) {
    options.layout = layout;
    options.scale_axis = axis;
    auto tensor = make_tensor(nullptr, DType::kE8M0, scale_shape(dims, options));
    std::vector<std::uint8_t> scales(static_cast<std::size_t>(tensor.num_elements()));
    tensor.data = scales.data();
    mxfa::quantize(make_tensor(values.data(), DType::kF32, dims),
                   make_tensor(codes.data(), DType::kE4M3, dims), tensor, options);
    return scales;
  };
  std::vector<std::uint8_t> codes(x.size());
  const auto compact = scales_of(ScaleLayout::kRowMajor, ScaleAxis::kHeadDim, codes);
  const bool has_dim = block_shape != BlockShape::k32x1;
  const bool has_tokens = mx::block_rows(block_shape) == kScaleBlock;
  std::vector<std::uint8_t> tiled_dim, tiled_tokens;
  if (has_dim) tiled_dim = scales_of(ScaleLayout::kTiled128x4, ScaleAxis::kHeadDim, codes);
  if (has_tokens) tiled_tokens = scales_of(ScaleLayout::kTiled128x4, ScaleAxis::kTokens, codes);
  const auto offsets = mx::make_jagged_offsets(test.cu_seqlens, total);
  const auto want_transposed = transposed(test, offsets, codes);

  testing::Machine& machine = testing::machine();
  const auto x_d = machine.upload(std::span<const std::uint16_t>(x));
  const auto shift_d = machine.upload(std::span<const float>(shift));
  const auto tokens_d = machine.upload(std::span<const std::int32_t>(test.cu_seqlens));
  const auto groups_d = machine.poisoned(test.cu_seqlens.size() * 8);
  const auto tiles_d = machine.poisoned(test.cu_seqlens.size() * 8);
  const auto codes_d = machine.poisoned(codes.size());
  const auto compact_d = machine.poisoned(compact.size());
  const auto dim_d = machine.poisoned(tiled_dim.size());
  const auto token_scales_d = machine.poisoned(tiled_tokens.size());
  const auto transposed_d = machine.poisoned(want_transposed.size());
  const auto batch = static_cast<std::int32_t>(offsets.batch());
  jagged_offsets(machine.queue(), tokens_d.as<const std::int32_t>(), batch,
                 groups_d.as<std::int64_t>(), tiles_d.as<std::int64_t>());
  const std::int64_t head_bytes = offsets.tiles.back() * 512;
  quantize(machine.queue(),
           {.x = x_d.as<const std::uint16_t>(),
            .row_stride = width,
            .head_stride = test.head_dim,
            .total = total,
            .shift = test.shifted ? shift_d.as<const float>() : nullptr,
            .shift_batch_stride = 0,
            .codes = codes_d.as<std::uint8_t>(),
            .compact = compact_d.as<std::uint8_t>(),
            .tiled_dim = has_dim ? dim_d.as<std::uint8_t>() : nullptr,
            .dim_strides = {.head_bytes = head_bytes},
            .tiled_tokens = has_tokens ? token_scales_d.as<std::uint8_t>() : nullptr,
            .token_strides = {.head_bytes = head_bytes},
            .transposed = transposed_d.as<std::uint8_t>(),
            .transposed_pitch = offsets.tiles.back() * 128,
            .offsets = {tokens_d.as<const std::int32_t>(), groups_d.as<const std::int64_t>(),
                        tiles_d.as<const std::int64_t>(), batch},
            .num_heads = static_cast<std::int32_t>(test.num_heads),
            .head_dim = static_cast<std::int32_t>(test.head_dim),
            .block_shape = block_shape,
            .order = test.order},
           mx::max_tiles(total, batch));
  machine.synchronize();
  EXPECT_TRUE(testing::bitwise_equal(groups_d.download<std::int64_t>(), offsets.groups,
                                     {.label = "groups"}));
  EXPECT_TRUE(
      testing::bitwise_equal(tiles_d.download<std::int64_t>(), offsets.tiles, {.label = "tiles"}));
  expect_equal(codes_d, codes, "codes", width);
  expect_equal(compact_d, compact, "compact");
  expect_equal(dim_d, tiled_dim, "tiled along head_dim");
  expect_equal(token_scales_d, tiled_tokens, "tiled along tokens");
  expect_equal(transposed_d, want_transposed, "transposed", offsets.tiles.back() * 128);
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<std::int32_t> many_sequences() {
  std::vector<std::int32_t> cu_seqlens = {0};
  testing::Rng rng(3);
  for (int s = 0; s < 2500; ++s) {
    cu_seqlens.push_back(cu_seqlens.back() + static_cast<std::int32_t>(rng.integer(0, 40)));
  }
  return cu_seqlens;
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, QuantizeOnDevice,
    ::testing::Combine(
        ::testing::Values(Case{"one_row", {0, 1}}, Case{"one_tile", {0, 128}, 2},
                          Case{"tails", {0, 129, 129, 160, 161, 500}, 3},
                          Case{"empty_ends", {0, 0, 0, 33, 33}, 1, 64},
                          Case{"d32", {0, 70, 200}, 2, 32, TokenOrder::kSigma},
                          Case{"d96", {0, 300}, 1, 96, TokenOrder::kPi},
                          Case{"pi", {0, 17, 400}, 2, 128, TokenOrder::kPi},
                          Case{"sigma", {0, 17, 400}, 2, 128, TokenOrder::kSigma},
                          Case{"shifted", {0, 100, 333}, 2, 128, TokenOrder::kPi, true},
                          Case{"infinite", {0, 90}, 1, 128, TokenOrder::kPi, false, kInfinity},
                          Case{"many", many_sequences(), 1, 64}),
        ::testing::Values(BlockShape::k1x32, BlockShape::k32x1, BlockShape::k32x32,
                          BlockShape::k32xD, BlockShape::k1xD)),
    [](const auto& spec) {
      return std::string(std::get<0>(spec.param).name) + "_" +
             std::string(block_shape_name(std::get<1>(spec.param)));
    });

}  // namespace
}  // namespace mxfa::device
