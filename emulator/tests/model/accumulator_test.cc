#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "mx/fp8.h"
#include "mx/tensor_core.h"

// The scalar definition of the accumulators (mx/tensor_core.h) against formulas coded apart.
namespace mxfa::mx {
namespace {

__extension__ using Int128 = __int128;
__extension__ using UInt128 = unsigned __int128;

// The published model, in doubles: split with frexp, truncate, add, renormalise.
struct Split {
  double significand;
  int exponent;
};
Split split(double x, int least) {
  if (x == 0) return {0, -100000};
  int e;
  double s = std::frexp(x, &e) * 2;
  --e;
  if (e < least) {
    s = std::ldexp(s, e - least);
    e = least;
  }
  return {s, e};
}
double model_sum(const std::vector<float>& a, const std::vector<float>& b, double c, MmaType type_a,
                 MmaType type_b, int least_c, int bits, int scale) {
  std::vector<Split> terms{split(c, least_c)};
  for (std::size_t k = 0; k < a.size(); ++k) {
    const Split x = split(a[k], min_exponent(type_a)), y = split(b[k], min_exponent(type_b));
    if (x.significand * y.significand == 0) continue;
    terms.push_back({x.significand * y.significand, x.exponent + y.exponent + scale});
  }
  int top = -100000;
  for (const Split& t : terms) top = std::max(top, t.exponent);
  if (top == -100000) return 0;
  double sum = 0;
  for (const Split& t : terms) {
    sum += std::trunc(std::ldexp(t.significand, bits + t.exponent - top));
  }
  return std::ldexp(sum, top - bits);
}
float truncated(double x, int bits) {
  const Split s = split(x, -126);
  if (s.significand == 0) return 0.0f;
  if (std::fabs(x) >= 0x1p128) return x > 0 ? INFINITY : -INFINITY;
  return static_cast<float>(
      std::ldexp(std::trunc(std::ldexp(s.significand, bits)), s.exponent - bits));
}
std::uint16_t nearest_f16(double x) {
  const double magnitude = std::fabs(x);
  const std::uint16_t sign = x < 0 ? 0x8000 : 0;
  if (magnitude >= 65520) return sign | 0x7C00;
  const int unit = std::max(magnitude < 0x1p-14 ? -14 : std::ilogb(magnitude), -14) - 10;
  const double steps = std::nearbyint(std::ldexp(magnitude, -unit));  // ties to even
  const double value = std::ldexp(steps, unit);
  for (int code = 0; code < 0x7C00; ++code) {
    if (static_cast<double>(decode_f16(static_cast<std::uint16_t>(code))) == value) {
      return static_cast<std::uint16_t>(value == 0 ? 0 : sign | code);
    }
  }
  return sign | 0x7C00;
}

float random_value(MmaType type, std::mt19937& rng, int spread) {
  const auto code = static_cast<std::uint32_t>(rng());
  float value = 0;
  switch (type) {
    case MmaType::kE4M3:
      value = decode_e4m3(static_cast<std::uint8_t>(code));
      break;
    case MmaType::kE5M2:
      value = decode_e5m2(static_cast<std::uint8_t>(code));
      break;
    case MmaType::kF16:
      value = decode_f16(static_cast<std::uint16_t>(code));
      break;
    default: {
      const std::uint32_t mask = type == MmaType::kBF16 ? 0xFFFF0000u : 0xFFFFE000u;
      const std::uint32_t exponent = 127u - static_cast<std::uint32_t>(spread) / 2 +
                                     (code >> 8) % static_cast<std::uint32_t>(spread);
      value = bits_float(((code & 0x807FFFFFu) | exponent << 23) & mask);
    }
  }
  return is_finite(value) ? value : 1.0f;
}

constexpr MmaType kTypes[] = {MmaType::kE4M3, MmaType::kE5M2, MmaType::kF16, MmaType::kBF16,
                              MmaType::kTF32};

TEST(TensorCore, AlignedRulesMatchThePublishedModel) {
  std::mt19937 rng(1);
  for (const MmaType type : kTypes) {
    for (const AccumulatorRule rule : {kHopperFp8Accumulator, kBlackwellAccumulator}) {
      for (int run = 0; run < 2000; ++run) {
        const std::size_t depth = type == MmaType::kTF32 ? 8 : 32;
        std::vector<float> a(depth), b(depth);
        for (std::size_t k = 0; k < depth; ++k) {
          a[k] = rng() % 5 == 0 ? 0.0f : random_value(type, rng, 30);
          b[k] = rng() % 5 == 0 ? 0.0f : random_value(type, rng, 30);
        }
        const float c = run % 7 == 0 ? 0.0f
                                     : std::ldexp(static_cast<float>(rng()) - 0x1p31f,
                                                  static_cast<int>(rng() % 60) - 60);
        const int scale = run % 3 == 0 ? static_cast<int>(rng() % 200) - 100 : 0;
        const MmaElement mma{type, type, rule, scale};
        const double want = model_sum(a, b, c, type, type, -126, rule.fraction_bits, scale);
        ASSERT_EQ(float_bits(mma.f32(a, b, c)), float_bits(truncated(want, rule.result_bits)))
            << "type " << static_cast<int>(type) << " run " << run;
        if (scale != 0) continue;
        const auto half = static_cast<std::uint16_t>(rng() % 0x7C00);
        const double sum =
            model_sum(a, b, decode_f16(half), type, type, -14, rule.fraction_bits, 0);
        if (run % 50 == 0) {
          ASSERT_EQ(mma.f16(a, b, half), nearest_f16(sum)) << sum;
        }
      }
    }
  }
}

TEST(TensorCore, SubnormalResultsKeepTheirOwnBits) {
  std::mt19937 rng(8);
  int subnormal = 0;
  for (int run = 0; run < 4000; ++run) {
    std::vector<float> a(8), b(8);
    for (std::size_t k = 0; k < 8; ++k) {
      a[k] = std::ldexp(random_value(MmaType::kTF32, rng, 4), -66 - static_cast<int>(rng() % 6));
      b[k] = std::ldexp(random_value(MmaType::kTF32, rng, 4), -66 - static_cast<int>(rng() % 6));
    }
    const float c = bits_float(static_cast<std::uint32_t>(rng()) & 0x81FFFFFFu);
    for (const AccumulatorRule rule : {kHopperFp8Accumulator, kBlackwellAccumulator}) {
      const MmaElement mma{MmaType::kTF32, MmaType::kTF32, rule, 0};
      const double want =
          model_sum(a, b, c, MmaType::kTF32, MmaType::kTF32, -126, rule.fraction_bits, 0);
      const float got = mma.f32(a, b, c);
      ASSERT_EQ(float_bits(got), float_bits(truncated(want, rule.result_bits))) << run;
      subnormal += got != 0.0f && magnitude(got) < 0x1p-126f ? 1 : 0;
    }
  }
  EXPECT_GT(subnormal, 500);
}

// Fixed point of 128 bits in units of 2^-64 holds every sum of these types exactly.
TEST(TensorCore, ExactRuleRoundsTheExactSumOnce) {
  std::mt19937 rng(2);
  for (const MmaType type : {MmaType::kE4M3, MmaType::kE5M2, MmaType::kF16}) {
    for (int run = 0; run < 3000; ++run) {
      std::vector<float> a(32), b(32);
      Int128 sum = 0;
      const auto add = [&sum](double x) {
        sum += static_cast<Int128>(std::ldexp(x, 32)) << 32;  // multiples of 2^-32 first
        const double rest = std::ldexp(x, 32) - std::trunc(std::ldexp(x, 32));
        sum += static_cast<Int128>(std::ldexp(rest, 32));
      };
      for (std::size_t k = 0; k < 32; ++k) {
        a[k] = random_value(type, rng, 1);
        b[k] = random_value(type, rng, 1);
        if (run % 2 == 1 && k >= 16) {  // cancellation
          a[k] = a[k - 16];
          b[k] = -b[k - 16];
        }
        add(static_cast<double>(a[k]) * static_cast<double>(b[k]));
      }
      const float c = std::ldexp(static_cast<float>(static_cast<int>(rng() >> 8)) - 0x1p23f,
                                 static_cast<int>(rng() % 30) - 36);
      add(c);
      // Nearest even of the 128-bit integer to 24 bits.
      const bool negative = sum < 0;
      UInt128 magnitude = static_cast<UInt128>(negative ? -sum : sum);
      int drop = 0;
      while ((magnitude >> drop) >> 24 != 0) ++drop;
      UInt128 kept = magnitude >> drop;
      if (drop > 0) {
        const UInt128 rest = magnitude - (kept << drop);
        const UInt128 half = static_cast<UInt128>(1) << (drop - 1);
        if (rest > half || (rest == half && (kept & 1) != 0)) ++kept;
      }
      const double want =
          std::ldexp(static_cast<double>(static_cast<std::uint64_t>(kept)), drop - 64);
      const float got = MmaElement{type, type, kExactAccumulator, 0}.f32(a, b, c);
      ASSERT_EQ(got, static_cast<float>(negative ? -want : want)) << "run " << run;
    }
  }
}

TEST(TensorCore, ExactRuleDecidesTiesByFarAwayTerms) {
  const MmaElement mma{MmaType::kBF16, MmaType::kBF16, kExactAccumulator, 0};
  // 2^24 + 1 is a tie between two floats; 2^-200 more or less decides.
  const std::vector<float> a{0x1p24f, 1.0f, 0x1p-100f}, up{1.0f, 1.0f, 0x1p-100f};
  EXPECT_EQ(mma.f32(a, up, 0.0f), 0x1p24f + 2.0f);
  const std::vector<float> down{1.0f, 1.0f, -0x1p-100f};
  EXPECT_EQ(mma.f32(a, down, 0.0f), 0x1p24f);
  const std::vector<float> tie{1.0f, 1.0f, 0.0f};
  EXPECT_EQ(mma.f32(a, tie, 0.0f), 0x1p24f);
}

// Measured on an H200 (m64n8k32, e4m3 to f32).
TEST(TensorCore, HopperFp8Facts) {
  const MmaElement mma{MmaType::kE4M3, MmaType::kE4M3, kHopperFp8Accumulator, 0};
  const std::vector<float> zeros(32), ones(32, 1.0f), big(32, 448.0f);
  EXPECT_EQ(float_bits(mma.f32(zeros, ones, 1.23456776f)), float_bits(1.23449707f));
  EXPECT_EQ(float_bits(mma.f32(zeros, ones, 3.14159274f)), float_bits(3.14135742f));
  for (const float sign : {1.0f, -1.0f}) {
    const std::vector<float> factor(32, 0x1p-6f);
    EXPECT_EQ(mma.f32(factor, std::vector<float>(32, sign * 0x1p-7f), 1.0f),
              1.0f + sign * 32 * 0x1p-13f);
    EXPECT_EQ(mma.f32(factor, std::vector<float>(32, sign * 0x1p-8f), 1.0f), 1.0f);
  }
  float chain = 0.0f;
  for (int step = 0; step < 1000; ++step) chain = mma.f32(ones, ones, chain);
  EXPECT_EQ(chain, 16384.0f) << "adding 32 a step stalls at 2^14";
  std::vector<float> one(32);
  one[0] = 1.0f;
  chain = 16000.0f;
  for (int step = 0; step < 1000; ++step) chain = mma.f32(one, ones, chain);
  EXPECT_EQ(chain, 16384.0f) << "adding 1 a step stalls there as well";
  const float small = 1.0f + 0x1p-13f;
  for (int e = 0; e >= -40; --e) {
    EXPECT_EQ(mma.f32(zeros, big, std::ldexp(small, e)), std::ldexp(small, e)) << e;
  }
}

TEST(TensorCore, Specials) {
  const std::vector<float> ones(8, 1.0f), zeros(8);
  std::vector<float> x(8, 1.0f);
  for (const AccumulatorRule rule : {kExactAccumulator, kBlackwellAccumulator}) {
    const MmaElement mma{MmaType::kF16, MmaType::kF16, rule, 0};
    x[3] = INFINITY;
    EXPECT_EQ(mma.f32(x, ones, 0.0f), INFINITY);
    EXPECT_EQ(mma.f16(x, ones, 0), 0x7C00);
    EXPECT_EQ(float_bits(mma.f32(x, zeros, 0.0f)), 0x7FFFFFFFu) << "inf * 0";
    EXPECT_EQ(float_bits(mma.f32(x, ones, -INFINITY)), 0x7FFFFFFFu) << "inf - inf";
    EXPECT_EQ(mma.f16(x, ones, 0xFC00), 0x7FFF);
    x[3] = NAN;
    EXPECT_EQ(float_bits(mma.f32(x, ones, 0.0f)), 0x7FFFFFFFu);
    x[3] = 1.0f;
    EXPECT_EQ(float_bits(mma.f32(zeros, ones, -0.0f)), 0u) << "a zero sum is +0";
  }
  const MmaElement scaled{MmaType::kE4M3, MmaType::kE4M3, kBlackwellAccumulator, 200};
  EXPECT_EQ(scaled.f32(ones, ones, 0.0f), INFINITY) << "overflow at the end";
}

}  // namespace
}  // namespace mxfa::mx
