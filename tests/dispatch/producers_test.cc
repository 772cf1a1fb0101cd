#include "mxfa/producers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "mx/bits.h"
#include "mxfa/error.h"
#include "mxfa/quantize.h"
#include "support/compare.h"
#include "support/rng.h"

/// The public producers: jagged tensors in MXFP8 against quantize() of the same values, slack, and
/// what they refuse.
namespace mxfa::testing {
namespace {

using producers::Matrix;

/// E4M3 payload with scales of `block`, all 0xFF before.
struct Mxfp8 {
  std::vector<std::uint8_t> payload, scales;
  Tensor tensor;

  Mxfp8(std::vector<std::int64_t> shape, const QuantizeOptions& options) {
    tensor.values = make_tensor(nullptr, DType::kE4M3, shape);
    tensor.scales = make_tensor(nullptr, DType::kE8M0, scale_shape(shape, options));
    payload.assign(std::size_t(tensor.values.num_elements()), 0xFF);
    scales.assign(std::size_t(tensor.scales.num_elements()), 0xFF);
    tensor.values.data = payload.data();
    tensor.scales.data = scales.data();
  }
};

void expect_same(const Mxfp8& got, const Mxfp8& want, const std::string& label) {
  EXPECT_TRUE(bitwise_equal(got.payload, want.payload, {.label = label + " payload"}));
  EXPECT_TRUE(bitwise_equal(got.scales, want.scales, {.label = label + " scales"}));
}

struct NormCase {
  std::int64_t dim;
  ScaleRule rule;
  DType x;
};
class ProducersNorm : public ::testing::TestWithParam<NormCase> {};

/// MXFP8 straight from the norm equals quantize() of its FP32 output, on both paths: squares in one
/// pass, and everything else.
TEST_P(ProducersNorm, EqualsNormThenQuantize) {
  const auto [dim, rule, dtype] = GetParam();
  constexpr std::int64_t kTokens = 110, kReal = 103;
  std::vector<std::int32_t> offsets{0, 0, 33, 34, kReal};
  const TensorView cu_seqlens = make_tensor(offsets.data(), DType::kI32, {5});
  Rng rng(4);
  std::vector<float> x = rng.normal_values<float>(kTokens * dim);
  std::vector<float> weight = rng.normal_values<float>(dim, 0.3, 1);
  std::fill(x.begin() + kReal * dim, x.end(), NAN);
  x[std::size_t(40 * dim + 3)] = INFINITY;
  std::vector<std::uint16_t> codes;
  for (const float value : x) codes.push_back(mx::encode_bf16(value));
  void* const data = dtype == DType::kF32 ? static_cast<void*>(x.data()) : codes.data();
  producers::RmsNormArgs args{.x = make_tensor(data, dtype, {kTokens, dim}),
                              .weight = make_tensor(weight.data(), DType::kF32, {dim}),
                              .cu_seqlens = cu_seqlens,
                              .y = {},
                              .rstd = {},
                              .rule = rule};
  std::vector<float> y(x.size(), NAN), rstd(kTokens, NAN), rstd_again(kTokens, NAN);
  args.y.values = make_tensor(y.data(), DType::kF32, {kTokens, dim});
  args.rstd = make_tensor(rstd.data(), DType::kF32, {kTokens});
  rmsnorm(args);
  const QuantizeOptions options{.rule = rule, .cu_seqlens = cu_seqlens};
  Mxfp8 want({kTokens, dim}, options), got({kTokens, dim}, options);
  quantize(args.y.values, want.tensor.values, want.tensor.scales, options);
  args.y = got.tensor;
  args.rstd.data = rstd_again.data();
  rmsnorm(args);
  expect_same(got, want, "y");
  EXPECT_TRUE(bitwise_equal(rstd_again, rstd, {.label = "rstd"}));
  for (std::int64_t row = kReal; row < kTokens; ++row) {
    EXPECT_EQ(rstd[std::size_t(row)], 0) << "slack of rstd";
    EXPECT_EQ(y[std::size_t(row * dim)], 0) << "slack of y";
  }
  EXPECT_EQ(rstd[40], 0) << "of a row with an infinity";
  EXPECT_TRUE(std::isnan(y[std::size_t(40 * dim + 3)]));
}
INSTANTIATE_TEST_SUITE_P(Forms, ProducersNorm,
                         ::testing::Values(NormCase{160, ScaleRule::kRoundUp, DType::kBF16},
                                           NormCase{160, ScaleRule::kRoundUp, DType::kF32},
                                           NormCase{160, ScaleRule::kFloor, DType::kBF16},
                                           NormCase{50, ScaleRule::kRoundUp, DType::kBF16}));

/// y = x w^T, with w as it is and transposed, equals the product then quantize().
TEST(Producers, ProjectionEqualsProductThenQuantize) {
  constexpr std::int64_t kTokens = 70, kIn = 64, kHeads = 2, kDim = 32;
  std::vector<std::int32_t> offsets{0, 31, 66};
  const TensorView cu_seqlens = make_tensor(offsets.data(), DType::kI32, {3});
  Rng rng(5);
  std::vector<float> x = rng.normal_values<float>(kTokens * kIn);
  std::vector<float> w = rng.normal_values<float>(kHeads * kDim * kIn), wt(w.size());
  for (std::int64_t i = 0; i < std::ssize(w); ++i) {
    wt[std::size_t(i % kIn * kHeads * kDim + i / kIn)] = w[std::size_t(i)];
  }
  const Matrix x_matrix{.tensor = {make_tensor(x.data(), DType::kF32, {kTokens, kIn}), {}}};
  const Matrix w_matrix{.tensor = {make_tensor(w.data(), DType::kF32, {kHeads * kDim, kIn}), {}}};
  const Matrix wt_matrix{.tensor = {make_tensor(wt.data(), DType::kF32, {kIn, kHeads * kDim}), {}},
                         .transposed = true};
  std::vector<float> y(kTokens * kHeads * kDim, NAN);
  Matrix right = w_matrix;
  right.transposed = true;
  gemm(x_matrix, right, make_tensor(y.data(), DType::kF32, {kTokens, kHeads * kDim}));
  const std::vector<std::int64_t> shape{kTokens, kHeads, kDim};
  for (const BlockShape block : {BlockShape::k32x32, BlockShape::k32xD, BlockShape::k1xD}) {
    const QuantizeOptions options{.block_shape = block, .cu_seqlens = cu_seqlens};
    Mxfp8 want(shape, options);
    quantize(make_tensor(y.data(), DType::kF32, shape), want.tensor.values, want.tensor.scales,
             options);
    for (const Matrix& matrix : {w_matrix, wt_matrix}) {
      Mxfp8 got(shape, options);
      producers::project({.x = x_matrix,
                          .w = matrix,
                          .y = got.tensor,
                          .block_shape = block,
                          .cu_seqlens = cu_seqlens});
      expect_same(got, want, std::string(block_shape_name(block)));
    }
  }
  std::vector<std::uint16_t> bf16(y.size(), 0xFFFF);
  producers::project(
      {.x = x_matrix, .w = wt_matrix, .y = {make_tensor(bf16.data(), DType::kBF16, shape), {}}});
  for (std::size_t i = 0; i < y.size(); ++i) ASSERT_EQ(bf16[i], mx::encode_bf16(y[i]));
}

/// Results without rows, columns or heads, and sums of nothing.
TEST(Producers, NothingToMultiply) {
  std::vector<float> values(61 * 74, 1.0f), c(61 * 61, -1.0f);
  const auto matrix = [&](std::int64_t rows, std::int64_t cols) {
    return Matrix{.tensor = {make_tensor(values.data(), DType::kF32, {rows, cols}), {}}};
  };
  const auto run = [&](std::int64_t m, std::int64_t n, std::int64_t k) {
    gemm(matrix(m, k), matrix(k, n), make_tensor(c.data(), DType::kF32, {m, n}));
  };
  run(61, 0, 74);
  run(0, 61, 74);
  run(0, 0, 9000);
  EXPECT_EQ(c[0], -1.0f);
  run(61, 61, 0);
  EXPECT_EQ(c, std::vector<float>(61 * 61, 0.0f));
  producers::project({.x = matrix(61, 74),
                      .w = matrix(0, 74),
                      .y = {make_tensor(c.data(), DType::kBF16, {61, 0, 64}), {}}});
  EXPECT_EQ(c[0], 0.0f);
}

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Producers, RefuseByName) {
  std::vector<float> values(4096, 1.0f), other(4096);
  const auto view = [&](std::vector<std::int64_t> shape, DType dtype = DType::kF32) {
    return make_tensor(values.data(), dtype, shape);
  };
  const producers::RmsNormArgs norm{.x = view({4, 32}),
                                    .weight = view({32}),
                                    .y = {make_tensor(other.data(), DType::kF32, {4, 32}), {}},
                                    .rstd = make_tensor(&other[512], DType::kF32, {4})};
  const auto norm_message = [&](auto spoil) {
    producers::RmsNormArgs args = norm;
    spoil(args);
    return message_of([&] { rmsnorm(args); });
  };
  EXPECT_EQ(norm_message([](auto&) {}), "no error");
  EXPECT_EQ(norm_message([&](auto& a) { a.weight = view({31}); }),
            "weight: expected shape [32], got f32 [31]");
  EXPECT_EQ(norm_message([](auto& a) { a.y.values.data = a.x.data; }),
            "y: expected memory that no other tensor of the call has, got some of x's");
  EXPECT_EQ(norm_message([](auto& a) { a.x.shape[0] = std::int64_t{1} << 52; }),
            "x: expected fewer than 2^56 elements, got f32 [4503599627370496, 32]");
  EXPECT_EQ(norm_message([](auto& a) { a.rule = static_cast<ScaleRule>(9); }),
            "rule: expected round-up or floor, got 9");
  EXPECT_EQ(norm_message([](auto& a) { a.eps = -1; }),
            "eps: expected a finite number of at least 0, got -1");
  EXPECT_EQ(norm_message([&](auto& a) {
              a.y.values = view({4, 32}, DType::kE4M3);
            }),
            "y.scales: expected the scales of 32x32 blocks, got none");
  EXPECT_EQ(norm_message([&](auto& a) {
              a.y.scales = view({1, 1}, DType::kU8);
            }),
            "y.scales: expected none without e4m3 payload, got u8 [1, 1]");
  EXPECT_EQ(norm_message([&](auto& a) { a.rstd = view({4}, DType::kBF16); }),
            "rstd: expected f32, got bf16 [4]");
  const Matrix a{.tensor = {view({4, 8}), {}}}, b{.tensor = {view({4, 4}), {}}};
  EXPECT_EQ(message_of([&] {
              gemm(a, b, view({4, 4}));
            }),
            "b: expected 8 rows, the columns of a, got 4");
  EXPECT_EQ(message_of([&] {
              gemm(b, b, view({4, 4}));
            }),
            "c: expected memory that no other tensor of the call has, got some of a's");
  EXPECT_EQ(message_of([&] {
              Matrix huge = b;
              huge.tensor.values.strides[0] = INT64_MAX;
              gemm(huge, b, view({4, 4}));
            }),
            "a: expected elements that lie within 2^56 bytes, got f32 [4, 4] with strides "
            "[9223372036854775807, 1]");
  EXPECT_EQ(message_of([&] {
              gemm(b, b, view({4, 5}));
            }),
            "c: expected shape [4, 4], got f32 [4, 5]");
  EXPECT_EQ(message_of([&] {
              gemm(b, {.tensor = {view({4, 4}, DType::kE4M3), {}}}, view({4, 4}));
            }),
            "b.scales: expected the scales of 32x32 blocks, got none");
  EXPECT_EQ(message_of([&] {
              gemm(b, b, view({4, 4}), Backend::kBlackwell);
            }),
            "backend: expected cpu, got blackwell (no kernels of it in this build)");
  EXPECT_EQ(message_of([&] {
              producers::project({.x = a, .w = a, .y = {view({4, 3, 2}, DType::kBF16), {}}});
            }),
            "y: expected [4, num_heads, head_dim] with 4 values a token, got bf16 [4, 3, 2]");
  EXPECT_EQ(message_of([&] {
              const producers::Product product{a, {.tensor = {view({8, 16}), {}}}};
              producers::rmsnorm_backward({.products = {&product, 1},
                                           .x = view({4, 32}),
                                           .weight = view({32}),
                                           .rstd = view({4})});
            }),
            "products[0]: expected shape [4, 32], got [4, 16]");
}

}  // namespace
}  // namespace mxfa::testing
