#include <gtest/gtest.h>

#include <limits>

#include "quantize_call.h"

namespace mxfa::device {
namespace {

using testing_quantize::Case;

class QuantizeOnDevice : public ::testing::TestWithParam<std::tuple<Case, BlockShape>> {};
TEST_P(QuantizeOnDevice, BitEqualToTheCpu) {
  const auto& [test, block_shape] = GetParam();
  testing_quantize::check(test, block_shape);
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<Case, BlockShape>>& spec) {
  return std::string(std::get<0>(spec.param).name) + "_" +
         std::string(block_shape_name(std::get<1>(spec.param)));
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();

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
                          Case{"many", testing::Rng(3).cu_seqlens(2500, 0, 40), 1, 64}),
        ::testing::Values(BlockShape::k1x32, BlockShape::k32x1, BlockShape::k32x32,
                          BlockShape::k32xD, BlockShape::k1xD)),
    name_of);

std::vector<Case> input_cases() {
  std::vector<Case> cases;
  const auto add = [&](const char* name, DType dtype) -> Case& {
    cases.push_back({.name = name, .cu_seqlens = {0, 17, 17, 400}, .num_heads = 2});
    cases.back().dtype = dtype;
    cases.back().order = TokenOrder::kPi;
    return cases.back();
  };
  add("f32", DType::kF32);
  add("f32_rounded", DType::kF32).round_bf16 = true;
  add("f32_shifted", DType::kF32).shifted = true;
  add("f32_infinite", DType::kF32).corner = kInfinity;
  add("gap", DType::kBF16).row_gap = 24;
  add("odd_gap", DType::kBF16).row_gap = 3;
  add("odd_address", DType::kBF16).misplaced = 1;
  add("f32_odd_address", DType::kF32).misplaced = 3;
  add("narrow", DType::kBF16).missing_columns = 24;
  Case& narrow = add("narrow_shifted", DType::kF32);
  narrow.head_dim = 64;
  narrow.missing_columns = 24;
  narrow.shifted = true;
  Case& small = add("small", DType::kBF16);
  small.magnitude = 0x1p-70;
  small.min_scale = 63;
  add("lowered", DType::kBF16).lowered = 5;
  Case& lowered = add("lowered_infinite", DType::kF32);
  lowered.lowered = 4;
  lowered.corner = kInfinity;
  Case& coarse = add("coarse", DType::kBF16);
  coarse.coarse = true;
  coarse.lowered = 4;
  Case& coarse_infinite = add("coarse_infinite", DType::kF32);
  coarse_infinite.coarse = true;
  coarse_infinite.corner = kInfinity;
  add("half_sums", DType::kBF16).half_sums = mx::kHalfSumsV;
  Case& sums_lowered = add("half_sums_lowered", DType::kBF16);
  sums_lowered.half_sums = mx::kHalfSumsQ;
  sums_lowered.lowered = 5;
  Case& sums_coarse = add("half_sums_coarse", DType::kBF16);
  sums_coarse.half_sums = mx::kHalfSumsK;
  sums_coarse.lowered = 4;
  sums_coarse.coarse = true;
  Case& large = add("half_sums_large", DType::kF32);
  large.half_sums = mx::kHalfSumsDout;
  large.magnitude = 0x1p120;
  for (const bool odd : {false, true}) {
    Case& dense = add(odd ? "dense_odd" : "dense", DType::kBF16);
    dense.cu_seqlens = {0, 150, 300, 450};
    dense.dense = true;
    dense.row_gap = odd ? 5 : 0;
  }
  Case& padded_dense = add("padded_dense", DType::kF32);
  padded_dense.cu_seqlens = {0, 33, 66};
  padded_dense.dense = padded_dense.padded_rows = true;
  return cases;
}

/// Accumulated gradients.
std::vector<Case> sums_cases() {
  std::vector<Case> cases;
  for (const DType dtype : {DType::kF16, DType::kF32}) {
    for (const bool padded : {false, true}) {
      const bool f16 = dtype == DType::kF16;
      cases.push_back(
          {.name = padded ? (f16 ? "padded_sums" : "padded_f32_sums") : (f16 ? "sums" : "f32_sums"),
           .cu_seqlens = {0, 17, 17, 400},
           .num_heads = 2});
      Case& test = cases.back();
      test.dtype = dtype;
      test.order = TokenOrder::kPi;
      test.sums = true;
      test.padded_rows = padded;
      test.exponent = padded ? -3 : 9;
      test.magnitude = padded ? 1.0 : 1000.0;
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Sums, QuantizeOnDevice,
                         ::testing::Combine(::testing::ValuesIn(sums_cases()),
                                            ::testing::Values(BlockShape::k1x32, BlockShape::k32x32,
                                                              BlockShape::k32xD, BlockShape::k1xD)),
                         name_of);

INSTANTIATE_TEST_SUITE_P(Inputs, QuantizeOnDevice,
                         ::testing::Combine(::testing::ValuesIn(input_cases()),
                                            ::testing::Values(BlockShape::k32x32, BlockShape::k32xD,
                                                              BlockShape::k1xD)),
                         name_of);

TEST(QuantizeChecks, NameTheField) {
  testing::Machine& machine = testing::machine();
  const QuantizeParams good{
      .input = {.row_stride = 128, .rows = 1, .head_dim = 128}, .num_heads = 1, .head_dim = 128};
  const auto message = [&](auto change) {
    QuantizeParams params = good;
    change(params);
    try {
      quantize(machine.queue(), params, 1);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const auto expect_named = [&](const char* name, auto change) {
    const std::string text = message(change);
    EXPECT_EQ(text.rfind(name, 0), 0u) << text;
  };
  expect_named("head_dim", [](QuantizeParams& p) { p.head_dim = 48; });
  expect_named("input.head_dim", [](QuantizeParams& p) { p.input.head_dim = 130; });
  expect_named("input.dtype", [](QuantizeParams& p) { p.input.dtype = DType::kI32; });
  expect_named("input.rows", [](QuantizeParams& p) { p.input.rows = std::int64_t{1} << 31; });
  expect_named("num_heads", [](QuantizeParams& p) { p.num_heads = 0; });
  expect_named("input.sums.exponent", [](QuantizeParams& p) { p.input.sums.exponent = 65; });
  expect_named("codes_row_stride", [](QuantizeParams& p) { p.codes_row_stride = 4; });
  expect_named("scale axis", [](QuantizeParams& p) {
    p.block_shape = BlockShape::k1x32;
    p.tiled_tokens = reinterpret_cast<std::uint8_t*>(4096);
  });
}

}  // namespace
}  // namespace mxfa::device
