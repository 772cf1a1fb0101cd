#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "cpu/kernels.h"
#include "mx/bits.h"
#include "mx/block.h"
#include "reference/recipe/exp2.h"
#include "support/compare.h"
#include "support/rng.h"

/// The loops of every instruction set that this machine runs, against scalar definitions.
namespace mxfa::cpu {
namespace {

class CpuKernels : public ::testing::TestWithParam<Isa> {
 protected:
  const Kernels& kernel_ = kernels_of(GetParam());
};

/// Distance in units of the last place of the exact value.
double ulps(float got, double want) {
  int exponent = 0;
  std::frexp(want, &exponent);
  return std::abs(double(got) - want) / std::ldexp(1.0, std::max(exponent, -125) - 24);
}

TEST_P(CpuKernels, Exp2IsWithinOnePlaceAndAHalf) {
  std::vector<float> x;
  for (int i = -126 * 4096; i <= 128 * 4096; ++i) x.push_back(float(i) / 4096.0f + 1e-5f);
  std::vector<float> y(x.size());
  kernel_.exp2(x.data(), y.data(), std::ssize(x));
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] >= 128 || x[i] < -126) continue;
    worst = std::max(worst, ulps(y[i], std::exp2(double(x[i]))));
  }
  EXPECT_LE(worst, GetParam() == Isa::kPortable ? 1.5 : 1.1) << "units of the last place";
  std::vector<float> whole, powers(257);
  for (int i = -126; i <= 127; ++i) whole.push_back(float(i));
  kernel_.exp2(whole.data(), powers.data(), std::ssize(whole));
  for (std::size_t i = 0; i < whole.size(); ++i) {
    ASSERT_EQ(powers[i], std::ldexp(1.0f, int(whole[i]))) << "2^" << whole[i];
  }
  const float infinity = std::numeric_limits<float>::infinity();
  const float special[] = {-infinity, infinity, NAN, -1000.0f, 1000.0f, -149.0f};
  float got[6];
  kernel_.exp2(special, got, 6);
  EXPECT_EQ(got[0], 0);
  EXPECT_EQ(got[1], infinity);
  EXPECT_TRUE(std::isnan(got[2]));
  EXPECT_EQ(got[3], 0);
  EXPECT_EQ(got[4], infinity);
  EXPECT_EQ(got[5], 0x1p-149f);
}

TEST_P(CpuKernels, DecodesEveryCode) {
  std::vector<std::uint8_t> codes(256);
  for (int i = 0; i < 256; ++i) codes[i] = std::uint8_t(i);
  for (const float scale : {1.0f, 0x1p-20f, 0x1p40f}) {
    const std::vector<float> scales(256, scale);
    std::vector<std::uint16_t> got(256), want(256);
    kernel_.decode_e4m3(codes.data(), scales.data(), got.data(), 256);
    for (int i = 0; i < 256; ++i) {
      want[i] = mx::encode_bf16(mx::decode_e4m3(std::uint8_t(i)) * scale);
      if (mx::is_nan(mx::decode_bf16(want[i]))) want[i] = 0x7FC0;
      if (mx::is_nan(mx::decode_bf16(got[i]))) got[i] = 0x7FC0;
    }
    EXPECT_TRUE(testing::bitwise_equal(got, want));
  }
}

/// Values around every rounding boundary of E4M3, and special ones.
std::vector<float> boundary_values() {
  std::vector<float> values{0.0f, -0.0f, 464.0f, -465.0f, 1e30f, -1e30f, 1e-30f, NAN, 448.0f};
  for (int code = 0; code < 126; ++code) {
    const float low = mx::decode_e4m3(std::uint8_t(code));
    const float middle = (low + mx::decode_e4m3(std::uint8_t(code + 1))) / 2;
    for (const float v : {low, std::nextafter(low, 0.0f), std::nextafter(low, 1e9f), middle,
                          std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)}) {
      values.push_back(v);
      values.push_back(-v);
    }
  }
  while (values.size() % 64 != 0) values.push_back(1.0f);
  return values;
}

TEST_P(CpuKernels, RoundsToPayloadAsTheDefinitionDoes) {
  const std::vector<float> values = boundary_values();
  const auto count = std::ssize(values);
  for (const Rounding rounding : {Rounding::kE4M3, Rounding::kBf16}) {
    std::vector<std::uint16_t> got(values.size()), want(values.size());
    kernel_.round({.rows = 1,
                   .cols = count,
                   .values = values.data(),
                   .ld = count,
                   .rounding = rounding,
                   .out = got.data(),
                   .out_layout = LeftLayout::rows(count)});
    for (std::size_t i = 0; i < values.size(); ++i) {
      want[i] = mx::encode_bf16(
          rounding == Rounding::kBf16 ? values[i] : mx::decode_e4m3(mx::encode_e4m3(values[i])));
      if (mx::is_nan(mx::decode_bf16(want[i]))) want[i] = 0x7FC0;
      if (mx::is_nan(mx::decode_bf16(got[i]))) got[i] = 0x7FC0;
    }
    EXPECT_TRUE(testing::bitwise_equal(got, want, {.label = "rounding"}));
  }
}

TEST_P(CpuKernels, BlocksAreQuantizedAsTheDefinitionDoes) {
  testing::Rng rng(9);
  constexpr std::int64_t kRows = 40;
  std::vector<float> values(kRows * kPanel);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = float(rng.normal() * std::exp2(rng.integer(-30, 10)));
  }
  values[5] = NAN;
  values[kPanel + 40] = std::numeric_limits<float>::infinity();
  std::fill_n(values.begin() + 2 * kPanel, kSquare, 0.0f);
  for (const ScaleRule rule : {ScaleRule::kRoundUp, ScaleRule::kFloor}) {
    std::vector<std::uint16_t> got(values.size()), want(values.size());
    kernel_.round_blocks({.rows = kRows,
                          .cols = kPanel,
                          .values = values.data(),
                          .ld = kPanel,
                          .out = got.data(),
                          .out_layout = LeftLayout::rows(kPanel)},
                         rule == ScaleRule::kFloor);
    for (std::size_t i = 0; i < values.size(); i += kSquare) {
      const mx::Block block = mx::quantize_block(values.data() + i, kSquare, rule);
      for (int j = 0; j < kSquare; ++j) {
        want[i + j] = mx::encode_bf16(mx::dequantize(block.codes[j], block.scale));
      }
    }
    for (auto* codes : {&got, &want}) {
      for (std::uint16_t& code : *codes) {
        if (mx::is_nan(mx::decode_bf16(code))) code = 0x7FC0;
        if (code == 0x8000) code = 0;  // no sum of products can tell
      }
    }
    EXPECT_TRUE(testing::bitwise_equal(got, want, {.label = "blocks", .cols = kPanel}));
  }
}

/// Where no value lies beyond 448 the short way gives the same, but for the sign of zero.
TEST_P(CpuKernels, RoundingWithoutSaturationIsTheSameWithinRange) {
  std::vector<float> values = boundary_values();
  for (float& value : values) {
    if (std::abs(value) > 448) value = 448;
  }
  const auto count = std::ssize(values);
  std::vector<std::uint16_t> got[2];
  for (const bool saturates : {false, true}) {
    got[saturates].resize(values.size());
    kernel_.round({.rows = 1,
                   .cols = count,
                   .values = values.data(),
                   .ld = count,
                   .saturates = saturates,
                   .out = got[saturates].data(),
                   .out_layout = LeftLayout::rows(count)});
    for (std::uint16_t& code : got[saturates]) {
      if (mx::is_nan(mx::decode_bf16(code))) code = 0x7FC0;
      if (code == 0x8000) code = 0;
    }
  }
  EXPECT_TRUE(testing::bitwise_equal(got[0], got[1], {.label = "rounding"}));
}

/// Bits do not depend on whether k ends or goes on in zeros, as in the slack behind a batch.
TEST_P(CpuKernels, ZerosBehindTheSumChangeNoBit) {
  constexpr std::int64_t kRows = 51, kDepths = 64;
  for (const std::int64_t k : {2, 32, 34, 40, 62}) {
    testing::Rng rng(4);
    std::vector<std::uint16_t> a(kRows * kDepths), b(kDepths * kPanel);
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t i = 0; i < k; ++i) {
        a[std::size_t(row * kDepths + i)] = mx::encode_bf16(float(rng.normal()));
      }
    }
    for (std::int64_t i = 0; i < k * kPanel; ++i) {
      b[std::size_t(i)] = mx::encode_bf16(float(rng.normal()));
    }
    for (const bool accumulate : {false, true}) {
      std::vector<float> c[2];
      for (const bool whole : {false, true}) {
        c[whole].assign(kRows * kPanel, 0.5f);
        kernel_.product({.m = kRows,
                         .n = kPanel,
                         .k = whole ? kDepths : k,
                         .a = a.data(),
                         .a_layout = LeftLayout::rows(kDepths),
                         .b = b.data(),
                         .b_panel = kDepths * kPanel,
                         .c = c[whole].data(),
                         .c_layout = SumLayout::rows(kPanel),
                         .accumulate = accumulate});
      }
      EXPECT_TRUE(testing::bitwise_equal(c[0], c[1], {.label = "k = " + std::to_string(k)}));
    }
  }
}

/// P's payload from the same accumulators with an exact exp2: how many codes differ, and by how
/// much. One place of exp2 is 2^-20 of the distance of two codes; measured none.
TEST_P(CpuKernels, PayloadOfPDiffersFromAnExactExp2InFewRoundings) {
  constexpr std::int64_t kRows = 96, kCols = 128, kTiles = 20;
  testing::Rng rng(2);
  std::int64_t differing = 0;
  for (std::int64_t tile = 0; tile < kTiles; ++tile) {
    std::vector<float> acc = rng.normal_values<float>(kRows * kCols, 4);
    std::vector<std::uint16_t> p(acc.size());
    std::vector<std::int32_t> begin(kRows, 0), end(kRows, kCols);
    std::vector<float> max(kRows, -INFINITY), true_max = max, sum(kRows, 0), alpha(kRows);
    kernel_.softmax({.rows = kRows,
                     .cols = kCols,
                     .acc = acc.data(),
                     .acc_layout = SumLayout::rows(kCols),
                     .p = p.data(),
                     .p_layout = LeftLayout::rows(kCols),
                     .begin = begin.data(),
                     .end = end.data(),
                     .mult = 0.7f,
                     .offset = 8,
                     .max = max.data(),
                     .true_max = true_max.data(),
                     .sum = sum.data(),
                     .alpha = alpha.data()});
    for (std::int64_t i = 0; i < kRows * kCols; ++i) {
      const float x = std::fma(acc[i], 0.7f, 8.0f - max[i / kCols]);
      const std::uint8_t want = mx::encode_e4m3(reference::recipe::exp2_f32(x));
      const std::uint8_t got = mx::encode_e4m3(mx::decode_bf16(p[i]));
      EXPECT_LE(std::abs(int(got) - int(want)), 1);
      differing += got != want ? 1 : 0;
    }
  }
  EXPECT_LE(differing, 2) << "of " << kRows * kCols * kTiles << " codes";
}

TEST_P(CpuKernels, ProductMatchesDoubleSumsOfEveryExtent) {
  testing::Rng rng(4);
  for (const auto& [m, n, k] :
       {std::array<std::int64_t, 3>{1, 64, 2}, {6, 64, 32}, {13, 128, 40}, {97, 192, 128}}) {
    const auto values = [&](std::int64_t count) {
      std::vector<std::uint16_t> result(std::size_t(count), 0);
      for (auto& v : result) v = mx::encode_bf16(float(rng.normal()));
      return result;
    };
    const std::vector<std::uint16_t> a = values(m * k), b = values(n * k);
    std::vector<float> c(std::size_t(m * n), 2.0f);
    std::vector<float> alpha(std::size_t(m), 1.0f);  // some rows shrink, as in a softmax
    for (std::int64_t i = 0; i < m; ++i) {
      if (rng.uniform() < 0.4) alpha[i] = 0.5f;
    }
    kernel_.product({.m = m,
                     .n = n,
                     .k = k,
                     .a = a.data(),
                     .a_layout = LeftLayout::rows(k),
                     .b = b.data(),
                     .b_panel = k * kPanel,
                     .c = c.data(),
                     .c_layout = SumLayout::rows(n),
                     .accumulate = true,
                     .alpha = alpha.data()});
    std::vector<double> want(c.size());
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = 2.0 * alpha[i];
        for (std::int64_t p = 0; p < k; ++p) {
          const std::int64_t at = j / kPanel * k * kPanel + p / 2 * 2 * kPanel + j % kPanel * 2;
          sum += double(mx::decode_bf16(a[i * k + p])) * mx::decode_bf16(b[at + p % 2]);
        }
        want[i * n + j] = sum;
      }
    }
    EXPECT_TRUE(testing::expect_close(c, want, {.metric = testing::Metric::kRmsRel, .limit = 1e-6},
                                      {.label = "product", .cols = n}));
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, CpuKernels,
                         ::testing::ValuesIn(supported_isas().begin(), supported_isas().end()),
                         [](const ::testing::TestParamInfo<Isa>& isa) {
                           return "Isa" + std::to_string(int(isa.param));
                         });

}  // namespace
}  // namespace mxfa::cpu
