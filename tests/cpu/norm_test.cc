#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/parallel.h"
#include "cpu/kernels.h"
#include "cpu/rmsnorm.h"
#include "cpu/rmsnorm_quantize.h"
#include "mx/bits.h"
#include "mx/block.h"
#include "mx/row_sum.h"
#include "mx/scale_layout.h"
#include "reference/gemm.h"
#include "reference/rmsnorm.h"
#include "support/compare.h"
#include "support/rng.h"

namespace mxfa::testing {
namespace {

std::vector<std::uint16_t> random_bf16(Rng& rng, std::int64_t count) {
  std::vector<std::uint16_t> values(static_cast<std::size_t>(count));
  for (std::uint16_t& value : values) value = mx::encode_bf16(static_cast<float>(rng.normal()));
  return values;
}

/// The order that mx/row_sum.h describes, as plainly as it can be written.
float plain_sum_squares(const float* row, std::int64_t dim) {
  namespace order = mx::row_sum;
  float total = 0;
  for (std::int64_t first = 0; first < dim; first += order::kChunk) {
    float lanes[order::kLanes] = {};
    for (std::int64_t c = first; c < std::min<std::int64_t>(dim, first + order::kChunk); ++c) {
      float& lane = lanes[order::lane_of(c - first)];
      lane = std::fma(row[c], row[c], lane);
    }
    for (int distance = 16; distance > 0; distance /= 2) {
      for (int lane = 0; lane < distance; ++lane) lanes[lane] += lanes[lane + distance];
    }
    total += lanes[0];
  }
  return total;
}

struct Quantized {
  std::vector<std::uint8_t> codes, scales_dim, scales_rows;
  std::vector<float> rstd;

  Quantized(std::int64_t rows, std::int64_t dim)
      : codes(std::size_t(rows * dim), 0xFF),
        scales_dim(std::size_t(mx::TiledScaleLayout{rows, dim / 32}.size_bytes()), 0xFF),
        scales_rows(std::size_t(mx::TiledScaleLayout{dim, (rows + 31) / 32}.size_bytes()), 0xFF),
        rstd(std::size_t(rows), NAN) {}
};

/// The definition, square by square.
Quantized plain(const std::vector<std::uint16_t>& x, const std::vector<std::uint16_t>& weight) {
  const auto dim = std::int64_t(weight.size());
  const std::int64_t rows = std::int64_t(x.size()) / dim;
  Quantized out(rows, dim);
  std::ranges::fill(out.scales_dim, std::uint8_t{0});
  std::ranges::fill(out.scales_rows, std::uint8_t{0});
  std::vector<float> y(x.size());
  for (std::int64_t r = 0; r < rows; ++r) {
    std::vector<float> row;
    for (std::int64_t c = 0; c < dim; ++c) row.push_back(mx::decode_bf16(x[r * dim + c]));
    const float mean = plain_sum_squares(row.data(), dim) / float(dim);
    out.rstd[r] = 1.0f / std::sqrt(mean + 1e-6f);
    for (std::int64_t c = 0; c < dim; ++c) {
      y[r * dim + c] = row[c] * out.rstd[r] * mx::decode_bf16(weight[c]);
    }
  }
  const mx::TiledScaleLayout along_dim{rows, dim / 32}, along_rows{dim, (rows + 31) / 32};
  for (std::int64_t r0 = 0; r0 < rows; r0 += 32) {
    for (std::int64_t c0 = 0; c0 < dim; c0 += 32) {
      const std::int64_t count = std::min<std::int64_t>(32, rows - r0);
      float amax = 0;
      std::vector<float> square;
      for (std::int64_t i = 0; i < count * 32; ++i) {
        square.push_back(y[(r0 + i / 32) * dim + c0 + i % 32]);
      }
      amax = mx::block_amax(square.data(), int(square.size()));
      const std::uint8_t scale = mx::scale_from_amax<mx::E4M3>(amax, ScaleRule::kRoundUp);
      for (std::int64_t i = 0; i < count * 32; ++i) {
        out.codes[(r0 + i / 32) * dim + c0 + i % 32] =
            mx::encode_scaled<mx::E4M3>(square[std::size_t(i)], scale);
      }
      for (std::int64_t r = 0; r < count; ++r) {
        out.scales_dim[along_dim.offset(r0 + r, c0 / 32)] = scale;
      }
      for (std::int64_t c = 0; c < 32; ++c) {
        out.scales_rows[along_rows.offset(c0 + c, r0 / 32)] = scale;
      }
    }
  }
  return out;
}

struct Size {
  std::int64_t rows, dim;
};
class NormQuantize : public ::testing::TestWithParam<Size> {};

TEST_P(NormQuantize, BitEqualToTheDefinitionOnEveryInstructionSet) {
  const auto [rows, dim] = GetParam();
  Rng rng(3);
  auto x = random_bf16(rng, rows * dim);
  const auto weight = random_bf16(rng, dim);
  if (rows > 40) {
    std::fill_n(x.begin() + 5 * dim, dim, std::uint16_t{0});  // a row of zeros
    x[33 * dim + 40] = 0x7F80;                                // infinity in the second group
    for (std::int64_t c = 0; c < dim; ++c) x[c] = mx::encode_bf16(c % 7 == 0 ? 3e4f : 1e-6f);
  }
  const Quantized want = plain(x, weight);
  for (const cpu::Isa isa : cpu::supported_isas()) {
    cpu::force_isa(isa);
    Quantized got(rows, dim);
    cpu::rmsnorm_quantize(x, weight, 1e-6f,
                          {.codes = got.codes,
                           .scales_dim = got.scales_dim,
                           .scales_rows = got.scales_rows,
                           .rstd = got.rstd});
    cpu::force_isa(std::nullopt);
    const std::string label(cpu::kernels_of(isa).name);
    EXPECT_TRUE(bitwise_equal(got.codes, want.codes, {.label = label + " codes", .cols = dim}));
    EXPECT_TRUE(bitwise_equal(got.scales_dim, want.scales_dim, {.label = label + " scales_dim"}));
    EXPECT_TRUE(
        bitwise_equal(got.scales_rows, want.scales_rows, {.label = label + " scales_rows"}));
    EXPECT_TRUE(bitwise_equal(got.rstd, want.rstd, {.label = label + " rstd"}));
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, NormQuantize,
                         ::testing::Values(Size{1, 32}, Size{3, 3584}, Size{70, 512},
                                           Size{129, 1152}, Size{33, 2880}));

/// Two adjacent squares; the second one's weights are times `factor`.
class TwoSquares {
 public:
  TwoSquares(Rng& rng, float factor)
      : rows_(rng.integer(1, 32)),
        x_(random_bf16(rng, rows_ * kLd)),
        weight_(rng.normal_values<float>(64)),
        rstd_(std::size_t(rows_), 1.25f) {
    for (int c = 32; c < 64; ++c) weight_[std::size_t(c)] *= factor;
  }

  void run(const cpu::Kernels& kernels, int squares, bool stream) {
    std::ranges::fill(codes_, std::uint8_t{0xFF});
    for (int first = 0; first < 2; first += squares) {
      kernels.norm_squares({.rows = rows_,
                            .squares = squares,
                            .x = x_.data() + first * 32,
                            .ld = kLd,
                            .rstd = rstd_.data(),
                            .weight = weight_.data() + first * 32,
                            .codes = codes_ + first * 32,
                            .scales = scales_ + first,
                            .stream = stream,
                            .ahead = x_.data()});
    }
  }
  void expect_equal_to_the_definition(int square) const {
    std::vector<float> y;
    for (std::int64_t i = 0; i < rows_ * 32; ++i) {
      const std::int64_t c = square * 32 + i % 32;
      const float value = mx::decode_bf16(x_[std::size_t(i / 32 * kLd + c)]);
      y.push_back(value * 1.25f * weight_[std::size_t(c)]);
    }
    const float amax = mx::block_amax(y.data(), int(y.size()));
    const std::uint8_t scale = mx::scale_from_amax<mx::E4M3>(amax, ScaleRule::kRoundUp);
    ASSERT_EQ(scales_[square], scale);
    for (std::int64_t i = 0; i < rows_ * 32; ++i) {
      const float value = y[std::size_t(i)];
      ASSERT_EQ(codes_[i / 32 * kLd + square * 32 + i % 32],
                mx::encode_scaled<mx::E4M3>(value, scale))
          << "value " << value;
    }
  }

 private:
  static constexpr std::int64_t kLd = 128;
  std::int64_t rows_;
  std::vector<std::uint16_t> x_;
  std::vector<float> weight_, rstd_;
  alignas(64) std::uint8_t codes_[32 * kLd];
  std::uint8_t scales_[2] = {};
};

/// Scales at both ends of E8M0, NaN beside a plain square, rows that end early; one or two squares
/// at a time, through the caches or past them.
TEST(NormSquares, BitEqualToTheDefinitionForEveryScale) {
  Rng rng(9);
  for (const float factor : {1.0f, 1e-30f, 0x1p-119f, 1e-38f, 0x1p-140f, 1e30f, 0x1p119f, 1e38f,
                             0.0f, std::numeric_limits<float>::infinity()}) {
    TwoSquares data(rng, factor);
    for (const cpu::Isa isa : cpu::supported_isas()) {
      const cpu::Kernels& kernels = cpu::kernels_of(isa);
      for (const auto& [squares, stream] : {std::pair{1, false}, {2, false}, {2, true}}) {
        SCOPED_TRACE(std::string(kernels.name) + ", factor " + std::to_string(factor));
        data.run(kernels, squares, stream);
        for (const int square : {0, 1}) data.expect_equal_to_the_definition(square);
      }
    }
  }
}

/// A tensor of a float dtype; rounds the values to it.
class FloatTensor {
 public:
  FloatTensor(std::vector<float>& values, DType dtype, std::vector<std::int64_t> shape) {
    for (float& value : values) {
      if (dtype == DType::kF16) value = mx::round_f16(value);
      if (dtype == DType::kBF16) value = mx::round_bf16(value);
      halves_.push_back(dtype == DType::kF16 ? mx::encode_f16(value) : mx::encode_bf16(value));
    }
    floats_ = values;
    void* const data = dtype == DType::kF32 ? static_cast<void*>(floats_.data()) : halves_.data();
    view = make_tensor(data, dtype, shape);
  }
  TensorView view;

 private:
  std::vector<float> floats_;
  std::vector<std::uint16_t> halves_;
};

reference::Matrix<double> to_matrix(const std::vector<float>& values, std::int64_t cols) {
  reference::Matrix<double> result(std::ssize(values) / cols, cols);
  result.data.assign(values.begin(), values.end());
  return result;
}

class Norm : public ::testing::TestWithParam<DType> {};

TEST_P(Norm, ForwardAndGradientsMatchTheOracle) {
  constexpr std::int64_t kRows = 600, kDim = 200;
  Rng rng(5);
  std::vector<float> x = rng.normal_values<float>(kRows * kDim, 2, 0.5);
  std::vector<float> dy = rng.normal_values<float>(kRows * kDim);
  std::vector<float> weight = rng.normal_values<float>(kDim, 0.3, 1);
  const FloatTensor x_tensor(x, GetParam(), {kRows, kDim});
  const FloatTensor dy_tensor(dy, DType::kBF16, {kRows, kDim});
  const FloatTensor weight_tensor(weight, GetParam(), {kDim});
  std::vector<float> y(x.size(), NAN), dx(x.size(), NAN), rstd(kRows, NAN), dweight(kDim, NAN);
  const mx::JaggedOffsets offsets = mx::make_jagged_offsets({{0, 7, 7, 600}}, kRows);
  const TensorView rstd_view = make_tensor(rstd.data(), DType::kF32, {kRows});
  cpu::rmsnorm_forward({.x = x_tensor.view,
                        .weight = weight_tensor.view,
                        .eps = 1e-5f,
                        .y = {.dtype = DType::kF32,
                              .data = y.data(),
                              .token_stride = kDim,
                              .offsets = &offsets,
                              .head_dim = kDim},
                        .rstd = rstd_view});
  cpu::RmsNormBackward backward{.dy = dy_tensor.view,
                                .x = x_tensor.view,
                                .weight = weight_tensor.view,
                                .rstd = rstd_view,
                                .rows = kRows,
                                .dx = make_tensor(dx.data(), DType::kF32, {kRows, kDim}),
                                .dweight = make_tensor(dweight.data(), DType::kF32, {kDim})};
  cpu::rmsnorm_backward(backward);
  const std::vector<double> weights(weight.begin(), weight.end());
  const auto forward = reference::rmsnorm_forward(to_matrix(x, kDim), weights, 1e-5f);
  const auto want =
      reference::rmsnorm_backward(to_matrix(x, kDim), weights, forward.rstd, to_matrix(dy, kDim));
  const Tolerance close{.metric = Metric::kRmsRel, .limit = 3e-7};
  EXPECT_TRUE(expect_close(y, forward.y.data, close, {.label = "y", .cols = kDim}));
  EXPECT_TRUE(expect_close(rstd, forward.rstd, close, {.label = "rstd"}));
  EXPECT_TRUE(expect_close(dx, want.dx.data, close, {.label = "dx", .cols = kDim}));
  EXPECT_TRUE(expect_close(dweight, want.dweight, close, {.label = "dweight"}));
  core::set_num_threads(3);
  std::vector<float> again(kDim, NAN);
  backward.dx = {};
  backward.dweight.data = again.data();
  cpu::rmsnorm_backward(backward);
  core::set_num_threads(0);
  EXPECT_TRUE(bitwise_equal(again, dweight, {.label = "dweight with 3 threads"}));
}
INSTANTIATE_TEST_SUITE_P(DTypes, Norm, ::testing::Values(DType::kF32, DType::kBF16, DType::kF16));

/// dy as a sum of products gives what the stored dy gives, and may be looked at.
TEST(NormGradients, DyMayBeASumOfProducts) {
  constexpr std::int64_t kRows = 300, kDim = 72, kInner = 50;
  Rng rng(8);
  std::vector<float> x = rng.normal_values<float>(kRows * kDim), a[2], b[2];
  std::vector<float> weight = rng.normal_values<float>(kDim, 0.3, 1);
  const FloatTensor x_tensor(x, DType::kBF16, {kRows, kDim});
  const FloatTensor weight_tensor(weight, DType::kBF16, {kDim});
  std::vector<FloatTensor> tensors;
  reference::Matrix<double> dy(kRows, kDim);
  for (int i = 0; i < 2; ++i) {
    a[i] = rng.normal_values<float>(kRows * kInner);
    b[i] = rng.normal_values<float>(kInner * kDim);
    tensors.emplace_back(a[i], DType::kBF16, std::vector{kRows, kInner});
    tensors.emplace_back(b[i], DType::kBF16, std::vector{kInner, kDim});
    const auto product = reference::multiply_nn(to_matrix(a[i], kInner), to_matrix(b[i], kDim));
    for (std::size_t e = 0; e < dy.data.size(); ++e) dy.data[e] += product.data[e];
  }
  const cpu::Product products[] = {{{.values = tensors[0].view}, {.values = tensors[1].view}},
                                   {{.values = tensors[2].view}, {.values = tensors[3].view}}};
  std::vector<float> rstd(kRows, 0.5f), dx(x.size(), NAN), sum(x.size(), NAN), dweight(kDim, NAN);
  cpu::rmsnorm_backward({.products = products,
                         .x = x_tensor.view,
                         .weight = weight_tensor.view,
                         .rstd = make_tensor(rstd.data(), DType::kF32, {kRows}),
                         .rows = kRows,
                         .dy_sum = make_tensor(sum.data(), DType::kF32, {kRows, kDim}),
                         .dx = make_tensor(dx.data(), DType::kF32, {kRows, kDim}),
                         .dweight = make_tensor(dweight.data(), DType::kF32, {kDim})});
  const auto want = reference::rmsnorm_backward(to_matrix(x, kDim), {weight.begin(), weight.end()},
                                                {rstd.begin(), rstd.end()}, dy);
  const Tolerance close{.metric = Metric::kRmsRel, .limit = 1e-6};
  EXPECT_TRUE(expect_close(sum, dy.data, close, {.label = "dy", .cols = kDim}));
  EXPECT_TRUE(expect_close(dx, want.dx.data, close, {.label = "dx", .cols = kDim}));
  EXPECT_TRUE(expect_close(dweight, want.dweight, close, {.label = "dweight"}));
}

}  // namespace
}  // namespace mxfa::testing
