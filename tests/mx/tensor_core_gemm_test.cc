#include "mx/tensor_core_gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "mx/fp8.h"
#include "mxfa/error.h"
#include "support/compare.h"
#include "support/rng.h"

namespace mxfa::mx {
namespace {

using mxfa::testing::bitwise_equal;
using mxfa::testing::Rng;

// Facts measured on an H200 with m64n8k32 e4m3: one accumulator, 32 products a * b.
struct MeasuredCase {
  const char* name;
  float c;
  float a;
  float b;
  int steps;
  float want;
};
const MeasuredCase kMeasured[] = {
    {"C=1, 32 products of 2^-13 are kept", 1.0f, 0x1p-7f, 0x1p-6f, 1, 1.0f + 32 * 0x1p-13f},
    {"C=1, 32 products of -2^-13 are kept", 1.0f, 0x1p-7f, -0x1p-6f, 1, 1.0f - 32 * 0x1p-13f},
    {"C=1, 32 products of 2^-14 are lost", 1.0f, 0x1p-7f, 0x1p-7f, 1, 1.0f},
    {"C=1, 32 products of -2^-14 are lost", 1.0f, 0x1p-7f, -0x1p-7f, 1, 1.0f},
    {"adding zeros truncates C", 1.23456776f, 0.0f, 448.0f, 1, 1.23449707f},
    {"adding zeros truncates C, 3.14", 3.14159274f, 0.0f, 448.0f, 1, 3.14135742f},
    {"a chain of 32 a step stalls at 2^14", 0.0f, 1.0f, 1.0f, 1000, 16384.0f},
    {"0 * 448 does not raise the alignment", 1.0f + 0x1p-13f, 0.0f, 448.0f, 1, 1.0f + 0x1p-13f},
    {"zero products keep 2^-40", 0x1p-40f * (1.0f + 0x1p-13f), 0.0f, 448.0f, 1,
     0x1p-40f * (1.0f + 0x1p-13f)},
};

class MeasuredOnHopper : public ::testing::TestWithParam<MeasuredCase> {};

TEST_P(MeasuredOnHopper, ScalarAndVector) {
  const MeasuredCase& p = GetParam();
  const std::vector<float> a(32, p.a);
  const std::vector<float> b(32, p.b);
  const MmaElement element{MmaType::kE4M3, MmaType::kE4M3, kHopperFp8Accumulator, 0};
  MmaPanel pa(1, 32);
  MmaPanel pb(32, 8);
  for (int k = 0; k < 32; ++k) {
    pa.row(0)[k] = p.a;
    for (int j = 0; j < 8; ++j) pb.row(k)[j] = p.b;
  }
  prepare_aligned(pa);
  prepare_aligned(pb);
  float scalar = p.c;
  std::vector<float> vector(8, p.c);
  for (int step = 0; step < p.steps; ++step) {
    scalar = element.f32(a, b, scalar);
    tensor_core_gemm(pa, pb, {.m = 1, .n = 8, .depth = 32}, kHopperFp8Accumulator, vector.data(),
                     8);
  }
  EXPECT_EQ(scalar, p.want) << p.name;
  EXPECT_TRUE(bitwise_equal(vector, std::vector<float>(8, p.want), {.label = p.name}));
}

INSTANTIATE_TEST_SUITE_P(H200, MeasuredOnHopper, ::testing::ValuesIn(kMeasured));

TEST(TensorCore, AddingOneAStepStallsAt2To14) {
  const MmaElement element{MmaType::kE4M3, MmaType::kE4M3, kHopperFp8Accumulator, 0};
  std::vector<float> a(32, 0.0f);
  a[5] = 1.0f;
  const std::vector<float> b(32, 1.0f);
  float c = 16380.0f;
  for (int step = 0; step < 20; ++step) c = element.f32(a, b, c);
  EXPECT_EQ(c, 16384.0f);
}

// How random operands are drawn; every kind meets subnormals, zeros and cancellation.
enum class Kind { kAnyCode, kFewBinades, kSparse, kWithNan };

struct GemmCase {
  AccumulatorRule rule;
  bool scaled;
  Kind kind;
  std::string label;
};

float draw(Rng& rng, Kind kind) {
  if (kind == Kind::kSparse && rng.uniform() < 0.9) return 0.0f;
  if (kind == Kind::kWithNan && rng.uniform() < 0.002) return std::nanf("");
  if (kind == Kind::kFewBinades) return decode_e4m3(encode_e4m3(float(rng.normal()) * 8));
  const auto code = static_cast<std::uint8_t>(rng.integer(0, 255));
  return (code & 0x7F) == 0x7F ? 0.0f : decode_e4m3(code);
}

float draw_accumulator(Rng& rng) {
  const double pick = rng.uniform();
  if (pick < 0.1) return 0.0f;
  if (pick < 0.12) return -0.0f;
  if (pick < 0.14) return HUGE_VALF;
  if (pick < 0.16) return std::nanf("");
  if (pick < 0.18) return 0x1p-140f;
  return static_cast<float>(rng.normal() * std::exp2(rng.integer(-30, 30)));
}

void expect_equal_to_scalar(const GemmCase& test, std::int64_t depth, std::uint64_t seed) {
  Rng rng(seed);
  const std::int64_t m = 7;
  const std::int64_t n = 41;
  MmaPanel a(m + 3, depth + 32);
  MmaPanel b(depth + 64, n + 16);
  for (std::int64_t i = 0; i < m + 3; ++i) {
    for (std::int64_t k = 0; k < depth + 32; ++k) a.row(i)[k] = draw(rng, test.kind);
  }
  for (std::int64_t k = 0; k < depth + 64; ++k) {
    for (std::int64_t j = 0; j < n + 16; ++j) b.row(k)[j] = draw(rng, test.kind);
  }
  if (test.scaled) {
    a.scales.resize(static_cast<std::size_t>(a.rows * a.cols / 32));
    b.scales.resize(static_cast<std::size_t>(b.rows / 32 * b.cols));
    for (auto& scale : a.scales) scale = static_cast<std::int16_t>(rng.integer(-20, 20));
    for (auto& scale : b.scales) scale = static_cast<std::int16_t>(rng.integer(-20, 20));
  }
  const MmaPanel plain_a = a;  // with NaNs where they were
  const MmaPanel plain_b = b;
  prepare_aligned(a);
  prepare_aligned(b);
  const MmaTile tile{m, n, depth, 3, 32, 64, 16};
  std::vector<float> want(static_cast<std::size_t>(m * n));
  const bool half = test.rule == kHopperFp8HalfAccumulator;
  for (float& value : want) {
    value = draw_accumulator(rng);
    if (half) value = round_f16(value);
  }
  std::vector<float> got = want;
  tensor_core_gemm(a, b, tile, test.rule, got.data(), n);

  std::vector<float> x(32);
  std::vector<float> y(32);
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::int64_t k = 0; k < depth; k += 32) {
        for (int q = 0; q < 32; ++q) {
          x[q] = plain_a.row(3 + i)[32 + k + q];
          y[q] = plain_b.row(64 + k + q)[16 + j];
        }
        MmaElement element{MmaType::kE4M3, MmaType::kE4M3, test.rule, 0};
        if (test.scaled) {
          element.scale_exponent = a.scales[((3 + i) * a.cols + 32 + k) / 32] +
                                   b.scales[(64 + k) / 32 * b.cols + 16 + j];
        }
        float& sum = want[i * n + j];
        sum = half ? decode_f16(element.f16(x, y, encode_f16(sum))) : element.f32(x, y, sum);
        if (is_nan(sum)) sum = bits_float(0x7FFFFFFFu);  // half has another one
      }
    }
  }
  EXPECT_TRUE(bitwise_equal(got, want, {.label = test.label, .cols = n}));
}

TEST(TensorCoreGemm, AlignedRulesEqualTheScalarDefinition) {
  for (const Kind kind : {Kind::kAnyCode, Kind::kFewBinades, Kind::kSparse, Kind::kWithNan}) {
    const int number = static_cast<int>(kind);
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      const std::string label = fmt::format("kind {} seed {}", number, seed);
      expect_equal_to_scalar({kHopperFp8Accumulator, false, kind, "13 bits " + label}, 96, seed);
      expect_equal_to_scalar({kHopperFp8HalfAccumulator, false, kind, "half " + label}, 96, seed);
      expect_equal_to_scalar({kBlackwellAccumulator, false, kind, "25 bits " + label}, 96, seed);
      expect_equal_to_scalar({kBlackwellAccumulator, true, kind, "scaled " + label}, 96, seed);
    }
  }
}

TEST(TensorCoreGemm, ExtremeBlockExponents) {
  Rng rng(7);
  MmaPanel a(1, 32);
  MmaPanel b(32, 1);
  for (int k = 0; k < 32; ++k) {
    a.row(0)[k] = draw(rng, Kind::kAnyCode);
    b.row(k)[0] = draw(rng, Kind::kAnyCode);
  }
  std::vector<float> x(a.row(0), a.row(0) + 32);
  std::vector<float> y(32);
  for (int k = 0; k < 32; ++k) y[k] = b.row(k)[0];
  prepare_aligned(a);
  prepare_aligned(b);
  a.scales.resize(32);
  b.scales.resize(32);
  for (int sa : {-127, -64, 0, 64, 127}) {
    for (int sb : {-127, -64, 0, 64, 127}) {
      for (float c : {0.0f, 1.0f, 0x1p-149f, -0x1.fffffep127f}) {
        a.scales[0] = static_cast<std::int16_t>(sa);
        b.scales[0] = static_cast<std::int16_t>(sb);
        float got = c;
        tensor_core_gemm(a, b, {.m = 1, .n = 1, .depth = 32}, kBlackwellAccumulator, &got, 1);
        const MmaElement element{MmaType::kE4M3, MmaType::kE4M3, kBlackwellAccumulator, sa + sb};
        const float want = element.f32(x, y, c);
        EXPECT_EQ(float_bits(got), float_bits(want)) << sa << " " << sb << " " << c;
      }
    }
  }
}

// Of E4M3 values without block exponents the sum of any depth in use is exact in double.
TEST(TensorCoreGemm, ExactRuleRoundsTheWholeSumOnce) {
  Rng rng(3);
  const std::int64_t m = 6;
  const std::int64_t n = 19;
  const std::int64_t depth = 128;
  MmaPanel a(m, depth);
  MmaPanel b(depth, n);
  for (float& value : a.values) value = draw(rng, Kind::kAnyCode);
  for (float& value : b.values) value = draw(rng, Kind::kAnyCode);
  std::vector<float> got = rng.normal_values<float>(m * n, 1000);
  std::vector<float> want = got;
  tensor_core_gemm(a, b, {m, n, depth}, kExactAccumulator, got.data(), n);
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      std::vector<float> y(depth);
      for (std::int64_t k = 0; k < depth; ++k) y[k] = b.row(k)[j];
      const MmaElement element{MmaType::kE4M3, MmaType::kE4M3, kExactAccumulator, 0};
      want[i * n + j] = element.f32({a.row(i), std::size_t(depth)}, y, want[i * n + j]);
    }
  }
  EXPECT_TRUE(bitwise_equal(got, want, {.label = "exact", .cols = n}));
}

TEST(TensorCoreGemm, ExactRuleAppliesBlockExponents) {
  MmaPanel a(1, 64);
  MmaPanel b(64, 1);
  for (int k = 0; k < 64; ++k) {
    a.row(0)[k] = 1.0f;
    b.row(k)[0] = k < 32 ? 1.0f : 2.0f;
  }
  a.scales.assign(static_cast<std::size_t>(a.rows * 2), 0);
  b.scales.assign(static_cast<std::size_t>(b.cols * 2), 0);
  a.scales[1] = 3;
  b.scales[static_cast<std::size_t>(b.cols)] = -1;
  float c = 0.5f;
  tensor_core_gemm(a, b, {1, 1, 64}, kExactAccumulator, &c, 1);
  EXPECT_EQ(c, 0.5f + 32.0f + 64.0f * 4.0f);
}

TEST(TensorCoreGemm, RefusesTilesOutsideThePanels) {
  MmaPanel a(32, 32);
  MmaPanel b(32, 32);
  float c[4] = {};
  EXPECT_THROW(tensor_core_gemm(a, b, {1, 1, 64}, kExactAccumulator, c, 1), mxfa::Error);
  EXPECT_THROW(tensor_core_gemm(a, b, {33, 1, 32}, kExactAccumulator, c, 1), mxfa::Error);
  EXPECT_THROW(tensor_core_gemm(a, b, {1, 1, 32}, kHopperFp8Accumulator, c, 1), mxfa::Error);
}

}  // namespace
}  // namespace mxfa::mx
