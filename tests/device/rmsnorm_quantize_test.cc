#include <gtest/gtest.h>

#include <limits>

#include "cpu/rmsnorm_quantize.h"
#include "device/ops.h"
#include "mx/bits.h"
#include "mx/scale_layout.h"
#include "support/bf16.h"
#include "support/compare.h"
#include "support/machine.h"

namespace mxfa::device {
namespace {

struct Case {
  const char* name;
  std::int64_t rows;
  std::int64_t dim;
  float eps = 1e-6f;
  float corner = 0.0f;  ///< value planted at the first element of the last row; 0 = none
};

class RmsNormQuantize : public ::testing::TestWithParam<Case> {};

using testing::Guarded;

// NaNs are compared as a class: which bits a NaN has differs between machines.
std::vector<float> canonical(std::vector<float> values) {
  for (float& value : values) {
    if (mx::is_nan(value)) value = std::numeric_limits<float>::quiet_NaN();
  }
  return values;
}
std::vector<std::uint8_t> canonical(std::vector<std::uint8_t> values) { return values; }

template <class T>
void expect_equal(const Guarded& got, const std::vector<T>& want, const std::string& label,
                  std::int64_t cols = 0) {
  EXPECT_TRUE(testing::bitwise_equal(canonical(got.download<T>()), canonical(want),
                                     {.label = label, .cols = cols}));
  EXPECT_TRUE(got.guards_intact()) << label << ": wrote outside";
}

TEST_P(RmsNormQuantize, BitEqualToTheCpu) {
  const Case& test = GetParam();
  auto x = testing::random_bf16(test.rows * test.dim, 1);
  const auto weight = testing::random_bf16(test.dim, 2);
  if (test.corner != 0.0f && test.rows > 0) {
    x[(test.rows - 1) * test.dim] = mx::encode_bf16(test.corner);
  }
  const mx::TiledScaleLayout along_dim{test.rows, test.dim / 32};
  const mx::TiledScaleLayout along_rows{test.dim, (test.rows + 31) / 32};
  std::vector<std::uint8_t> codes(x.size()), dim_scales(along_dim.size_bytes()),
      row_scales(along_rows.size_bytes());
  std::vector<float> rstd(test.rows);
  cpu::rmsnorm_quantize(
      x, weight, test.eps,
      {.codes = codes, .scales_dim = dim_scales, .scales_rows = row_scales, .rstd = rstd});

  testing::Machine& machine = testing::machine();
  const auto x_d = machine.upload(std::span<const std::uint16_t>(x));
  const auto weight_d = machine.upload(std::span<const std::uint16_t>(weight));
  const auto codes_d = machine.poisoned(codes.size());
  const auto dim_d = machine.poisoned(dim_scales.size());
  const auto rows_d = machine.poisoned(row_scales.size());
  const auto rstd_d = machine.poisoned(rstd.size() * sizeof(float));
  rmsnorm_quantize(machine.queue(), {.x = x_d.as<const std::uint16_t>(),
                                     .weight = weight_d.as<const std::uint16_t>(),
                                     .codes = codes_d.as<std::uint8_t>(),
                                     .scales_dim = dim_d.as<std::uint8_t>(),
                                     .scales_rows = rows_d.as<std::uint8_t>(),
                                     .rstd = rstd_d.as<float>(),
                                     .rows = test.rows,
                                     .dim = static_cast<std::int32_t>(test.dim),
                                     .eps = test.eps});
  machine.synchronize();
  expect_equal(rstd_d, rstd, "rstd");
  expect_equal(codes_d, codes, "codes", test.dim);
  expect_equal(dim_d, dim_scales, "scales_dim");
  expect_equal(rows_d, row_scales, "scales_rows");
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
