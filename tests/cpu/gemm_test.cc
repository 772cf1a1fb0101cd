#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/parallel.h"
#include "cpu/gemm.h"
#include "mx/bits.h"
#include "mxfa/error.h"
#include "mxfa/quantize.h"
#include "support/compare.h"
#include "support/rng.h"

namespace mxfa::testing {
namespace {

/// An MXFP8 tensor, the operand that names it, and its values.
struct QuantizedTensor {
  std::vector<std::uint8_t> payload, scales;
  std::vector<float> values;  ///< dequantized; 0 behind the last sequence
  std::vector<std::int32_t> cu_seqlens;
  cpu::MatrixOperand operand;

  QuantizedTensor(Rng& rng, std::vector<std::int64_t> shape, BlockShape block,
                  std::vector<std::int32_t> offsets = {})
      : cu_seqlens(std::move(offsets)) {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) count *= extent;
    std::vector<float> source = rng.normal_values<float>(count);
    QuantizeOptions options{.block_shape = block};
    if (!cu_seqlens.empty()) {
      options.cu_seqlens = make_tensor(cu_seqlens.data(), DType::kI32, {std::ssize(cu_seqlens)});
    }
    payload.resize(std::size_t(count));
    values.resize(std::size_t(count));
    TensorView scales_view = make_tensor(
        nullptr, DType::kE8M0, std::span<const std::int64_t>(scale_shape(shape, options)));
    scales.resize(std::size_t(scales_view.num_elements()));
    scales_view.data = scales.data();
    const TensorView payload_view = make_tensor(payload.data(), DType::kE4M3, shape);
    quantize(make_tensor(source.data(), DType::kF32, shape), payload_view, scales_view, options);
    dequantize(payload_view, scales_view, make_tensor(values.data(), DType::kF32, shape), options);
    operand = {.values = payload_view,
               .scales = scales_view,
               .block_shape = block,
               .cu_seqlens = cu_seqlens};
  }
};

std::vector<double> product(const std::vector<float>& a, bool a_transposed,
                            const std::vector<float>& b, bool b_transposed, std::int64_t m,
                            std::int64_t n, std::int64_t k) {
  std::vector<double> c(std::size_t(m * n));
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::int64_t p = 0; p < k; ++p) {
        c[i * n + j] += double(a_transposed ? a[p * m + i] : a[i * k + p]) *
                        double(b_transposed ? b[j * k + p] : b[p * n + j]);
      }
    }
  }
  return c;
}

constexpr Tolerance kClose{.metric = Metric::kRmsRel, .limit = 1e-6};

TEST(CpuGemm, EveryOrientationAndBlockShape) {
  constexpr std::int64_t kM = 101, kN = 96, kK = 130;
  Rng rng(1);
  for (const BlockShape block : {BlockShape::k1x32, BlockShape::k32x1, BlockShape::k32x32,
                                 BlockShape::k32xD, BlockShape::k1xD}) {
    for (int transposed = 0; transposed < 4; ++transposed) {
      const bool a_t = (transposed & 1) != 0, b_t = (transposed & 2) != 0;
      QuantizedTensor a(rng, a_t ? std::vector{kK, kM} : std::vector{kM, kK}, block);
      QuantizedTensor b(rng, b_t ? std::vector{kN, kK} : std::vector{kK, kN}, block);
      a.operand.transposed = a_t;
      b.operand.transposed = b_t;
      std::vector<float> c(kM * kN, NAN);
      const TensorView view = make_tensor(c.data(), DType::kF32, {kM, kN});
      cpu::gemm(a.operand, b.operand, view, 0.5f);
      std::vector<double> want = product(a.values, a_t, b.values, b_t, kM, kN, kK);
      for (double& value : want) value *= 0.5;
      EXPECT_TRUE(expect_close(c, want, kClose, {.label = "c", .cols = kN}));
      cpu::gemm(a.operand, b.operand, view, 0.5f, true);
      for (double& value : want) value *= 2;
      EXPECT_TRUE(expect_close(c, want, kClose, {.label = "accumulated", .cols = kN}));
    }
  }
}

/// A weight's gradient: jagged rows, heads, NaN in the slack; the sum is cut among threads.
TEST(CpuGemm, LongSumsOverJaggedRows) {
  constexpr std::int64_t kRows = 20000, kHeads = 2, kDim = 32, kN = 40;
  Rng rng(2);
  QuantizedTensor dk(rng, {kRows, kHeads, kDim}, BlockShape::k32xD, {0, 5, 5, 9001, 19990});
  std::fill(dk.payload.begin() + 19990 * kHeads * kDim, dk.payload.end(), std::uint8_t{0x7F});
  std::vector<float> x = rng.normal_values<float>(kRows * kN);
  for (float& value : x) value = mx::round_bf16(value);
  dk.operand.transposed = true;
  const auto run = [&](int threads) {
    core::set_num_threads(threads);
    std::vector<float> c(kHeads * kDim * kN, NAN);
    cpu::gemm(dk.operand, {.values = make_tensor(x.data(), DType::kF32, {kRows, kN})},
              make_tensor(c.data(), DType::kF32, {kHeads * kDim, kN}));
    core::set_num_threads(0);
    return c;
  };
  const std::vector<float> c = run(1);
  EXPECT_TRUE(expect_close(c, product(dk.values, true, x, false, kHeads * kDim, kN, kRows), kClose,
                           {.label = "dw", .cols = kN}));
  EXPECT_TRUE(bitwise_equal(run(5), c, {.label = "5 threads"}));
}

TEST(CpuGemm, RefusesWhatDoesNotFit) {
  std::vector<float> values(64, 1.0f);
  const cpu::MatrixOperand a{.values = make_tensor(values.data(), DType::kF32, {4, 8})};
  const cpu::MatrixOperand b{.values = make_tensor(values.data(), DType::kF32, {4, 4})};
  EXPECT_THROW(cpu::gemm(a, b, make_tensor(values.data(), DType::kF32, {4, 4})), Error);
  const cpu::MatrixOperand payload{.values = make_tensor(values.data(), DType::kE4M3, {8, 4})};
  EXPECT_THROW(cpu::gemm(a, payload, make_tensor(values.data(), DType::kF32, {4, 4})), Error);
}

/// The fused output equals quantize() of the same sums, in both tiled layouts as well.
TEST(CpuGemmQuantize, EqualsProductThenQuantize) {
  constexpr std::int64_t kTokens = 300, kHeads = 3, kDim = 64, kK = 100;
  Rng rng(6);
  QuantizedTensor x(rng, {kTokens, kK}, BlockShape::k32x32);
  QuantizedTensor w(rng, {kHeads * kDim, kK}, BlockShape::k32x32);
  std::vector<std::int32_t> offsets{0, 40, 40, 171, 290};
  const std::vector<std::int64_t> shape{kTokens, kHeads, kDim};
  for (const BlockShape block : {BlockShape::k32x32, BlockShape::k32xD, BlockShape::k1xD}) {
    QuantizeOptions options{.block_shape = block,
                            .cu_seqlens = make_tensor(offsets.data(), DType::kI32, {5})};
    const auto scales_of = [&](std::vector<std::uint8_t>& bytes) {
      TensorView view = make_tensor(nullptr, DType::kE8M0,
                                    std::span<const std::int64_t>(scale_shape(shape, options)));
      bytes.assign(std::size_t(view.num_elements()), 0xFF);
      view.data = bytes.data();
      return view;
    };
    const bool tokens_too = block != BlockShape::k1xD;
    std::vector<std::uint8_t> payload(kTokens * kHeads * kDim, 0xFF), scales, dim, tokens;
    std::vector<std::uint16_t> bf16(payload.size(), 0xFFFF);
    cpu::GemmQuantizeOutputs outputs{.payload = make_tensor(payload.data(), DType::kE4M3, shape),
                                     .scales = scales_of(scales),
                                     .bf16 = make_tensor(bf16.data(), DType::kBF16, shape)};
    options.layout = ScaleLayout::kTiled128x4;
    outputs.tiled_dim = scales_of(dim);
    options.scale_axis = ScaleAxis::kTokens;
    if (tokens_too) outputs.tiled_tokens = scales_of(tokens);
    cpu::gemm_quantize(x.operand, w.operand,
                       {.num_heads = kHeads, .block_shape = block, .cu_seqlens = offsets}, outputs);

    std::vector<float> y(payload.size(), NAN);
    w.operand.transposed = true;
    cpu::gemm(x.operand, w.operand, make_tensor(y.data(), DType::kF32, {kTokens, kHeads * kDim}));
    w.operand.transposed = false;
    const auto check = [&](ScaleLayout layout, ScaleAxis axis,
                           const std::vector<std::uint8_t>& got) {
      options.layout = layout;
      options.scale_axis = axis;
      std::vector<std::uint8_t> want_payload(payload.size()), want;
      const TensorView scales_view = scales_of(want);
      quantize(make_tensor(y.data(), DType::kF32, shape),
               make_tensor(want_payload.data(), DType::kE4M3, shape), scales_view, options);
      EXPECT_TRUE(bitwise_equal(payload, want_payload, {.label = "payload"}));
      EXPECT_TRUE(bitwise_equal(got, want, {.label = "scales"}));
    };
    check(ScaleLayout::kRowMajor, ScaleAxis::kHeadDim, scales);
    check(ScaleLayout::kTiled128x4, ScaleAxis::kHeadDim, dim);
    if (tokens_too) check(ScaleLayout::kTiled128x4, ScaleAxis::kTokens, tokens);
    for (std::size_t i = 0; i < bf16.size(); ++i) {
      const bool slack = std::int64_t(i) >= 290 * kHeads * kDim;
      ASSERT_EQ(bf16[i], slack ? 0 : mx::encode_bf16(y[i])) << "index " << i;
    }
  }
}

}  // namespace
}  // namespace mxfa::testing
