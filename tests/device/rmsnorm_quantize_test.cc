#include <gtest/gtest.h>

#include <limits>

#include "cpu/rmsnorm.h"
#include "cpu/rmsnorm_quantize.h"
#include "device/ops.h"
#include "mx/bits.h"
#include "mx/scale_layout.h"
#include "mxfa/quantize.h"
#include "support/bf16.h"
#include "support/device_batch.h"

namespace mxfa::device {
namespace {

struct Case {
  const char* name;
  std::int64_t rows;
  std::int64_t dim;
  float eps = 1e-6f;
  float corner = 0.0f;  ///< value planted at the first element of the last row; 0 = none
};

/// What the CPU gives for values [rows, dim].
struct Expected {
  std::vector<std::uint8_t> codes, dim_scales, row_scales;
  std::vector<float> rstd;

  Expected(const Case& test)
      : codes(static_cast<std::size_t>(test.rows * test.dim)),
        dim_scales(mx::TiledScaleLayout{test.rows, test.dim / 32}.size_bytes()),
        row_scales(mx::TiledScaleLayout{test.dim, (test.rows + 31) / 32}.size_bytes()),
        rstd(static_cast<std::size_t>(test.rows)) {}
};

// On FP32 rows the CPU normalizes and quantizes in two calls.
Expected expected_f32(const Case& test, std::vector<float> x, std::vector<std::uint16_t> weight) {
  Expected want(test);
  std::vector<float> y(x.size());
  const std::int32_t ends[] = {0, static_cast<std::int32_t>(test.rows)};
  const mx::JaggedOffsets offsets = mx::make_jagged_offsets(ends, test.rows);
  cpu::rmsnorm_forward({.x = make_tensor(x.data(), DType::kF32, {test.rows, test.dim}),
                        .weight = make_tensor(weight.data(), DType::kBF16, {test.dim}),
                        .eps = test.eps,
                        .y = {.dtype = DType::kF32,
                              .data = y.data(),
                              .token_stride = test.dim,
                              .offsets = &offsets,
                              .head_dim = test.dim},
                        .rstd = make_tensor(want.rstd.data(), DType::kF32, {test.rows})});
  const std::int64_t dims[] = {test.rows, test.dim};
  QuantizeOptions options{.layout = ScaleLayout::kTiled128x4};
  for (const ScaleAxis axis : {ScaleAxis::kHeadDim, ScaleAxis::kTokens}) {
    options.scale_axis = axis;
    auto& scales = axis == ScaleAxis::kHeadDim ? want.dim_scales : want.row_scales;
    quantize(make_tensor(y.data(), DType::kF32, dims),
             make_tensor(want.codes.data(), DType::kE4M3, dims),
             make_tensor(scales.data(), DType::kE8M0, scale_shape(dims, options)), options);
  }
  return want;
}

class RmsNormQuantize : public ::testing::TestWithParam<Case> {};

void check(const Case& test, DType dtype, const void* x, std::span<const std::uint16_t> weight,
           const Expected& want) {
  testing::Machine& machine = testing::machine();
  const std::span<const std::uint8_t> bytes(
      static_cast<const std::uint8_t*>(x),
      static_cast<std::size_t>(test.rows * test.dim) * dtype_size(dtype));
  const auto x_d = machine.upload(bytes);
  const auto weight_d = machine.upload(weight);
  const auto codes_d = machine.poisoned(want.codes.size());
  const auto dim_d = machine.poisoned(want.dim_scales.size());
  const auto rows_d = machine.poisoned(want.row_scales.size());
  const auto rstd_d = machine.poisoned(want.rstd.size() * sizeof(float));
  rmsnorm_quantize(machine.queue(), {.x = x_d.as<const void>(),
                                     .x_dtype = dtype,
                                     .weight = weight_d.as<const std::uint16_t>(),
                                     .codes = codes_d.as<std::uint8_t>(),
                                     .scales_dim = dim_d.as<std::uint8_t>(),
                                     .scales_rows = rows_d.as<std::uint8_t>(),
                                     .rstd = rstd_d.as<float>(),
                                     .rows = test.rows,
                                     .dim = static_cast<std::int32_t>(test.dim),
                                     .eps = test.eps});
  machine.synchronize();
  EXPECT_TRUE(testing::bitwise_equal(testing::canonical(rstd_d.download<float>()),
                                     testing::canonical(want.rstd), {.label = "rstd"}));
  EXPECT_TRUE(rstd_d.guards_intact());
  testing::expect_same(codes_d, want.codes, "codes", test.dim);
  testing::expect_same(dim_d, want.dim_scales, "scales_dim");
  testing::expect_same(rows_d, want.row_scales, "scales_rows");
}

TEST_P(RmsNormQuantize, BitEqualToTheCpu) {
  const Case& test = GetParam();
  auto x = testing::random_bf16(test.rows * test.dim, 1);
  const auto weight = testing::random_bf16(test.dim, 2);
  if (test.corner != 0.0f) x[(test.rows - 1) * test.dim] = mx::encode_bf16(test.corner);
  Expected want(test);
  cpu::rmsnorm_quantize(x, weight, test.eps,
                        {.codes = want.codes,
                         .scales_dim = want.dim_scales,
                         .scales_rows = want.row_scales,
                         .rstd = want.rstd});
  check(test, DType::kBF16, x.data(), weight, want);
}

TEST_P(RmsNormQuantize, BitEqualToTheCpuFromF32) {
  const Case& test = GetParam();
  auto x = testing::Rng(3).normal_values<float>(test.rows * test.dim);
  const auto weight = testing::random_bf16(test.dim, 2);
  if (test.corner != 0.0f) x[(test.rows - 1) * test.dim] = test.corner;
  check(test, DType::kF32, x.data(), weight, expected_f32(test, x, weight));
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();

INSTANTIATE_TEST_SUITE_P(
    Shapes, RmsNormQuantize,
    ::testing::Values(Case{"empty", 0, 128}, Case{"one_row", 1, 32}, Case{"tail_rows", 33, 96},
                      Case{"one_tile", 128, 128}, Case{"two_tiles", 129, 256},
                      Case{"d384", 1000, 384}, Case{"d512", 4096, 512}, Case{"d672", 70, 672},
                      Case{"d1024", 300, 1024}, Case{"d1152", 65, 1152}, Case{"d2048", 257, 2048},
                      Case{"d2080", 40, 2080}, Case{"d4096", 130, 4096}, Case{"d16384", 33, 16384},
                      Case{"eps0", 64, 512, 0.0f}, Case{"huge", 40, 256, 1e-6f, 1e30f},
                      Case{"infinite", 40, 256, 1e-6f, kInfinity},
                      Case{"nan", 40, 256, 1e-6f, std::numeric_limits<float>::quiet_NaN()}),
    [](const auto& spec) { return spec.param.name; });

}  // namespace
}  // namespace mxfa::device
