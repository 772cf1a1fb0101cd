#include "model/mma_unit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "expect_fault.h"
#include "mx/bits.h"

namespace mxfa::emu::model {
namespace {

using mx::MmaType;

struct Random {
  std::mt19937 rng;
  explicit Random(unsigned seed) : rng(seed) {}
  Multiplicand operand(MmaType type, std::uint32_t rows, std::uint32_t k, int specials_in_1000,
                       bool negate = false, bool small = false) {
    Multiplicand out{type, rows, k, {}};
    std::vector<std::byte> raw(std::size_t{rows} * k * mma_type_bytes(type));
    for (std::size_t i = 0; i < raw.size(); ++i) {
      raw[i] = static_cast<std::byte>(rng());
      // Without the top exponent bit: below 2.
      const std::uint32_t bytes = mma_type_bytes(type);
      if (small && i % bytes == bytes - 1) raw[i] &= std::byte{0xBF};
    }
    decode_multiplicand(raw, negate, out);
    for (float& value : out.values) {
      const bool special = static_cast<int>(rng() % 1000) < specials_in_1000;
      if (!mx::is_finite(value) && !special) value = 0.5f;
      if (rng() % 10 == 0) value = 0.0f;
    }
    return out;
  }
  /// Exponents of bf16 and tf32 near 0, so that sums are neither all overflow nor all one term.
  void narrow(Multiplicand& x, int spread) {
    for (float& value : x.values) {
      if (!mx::is_finite(value) || value == 0.0f) continue;
      int e;
      const float s = std::frexp(value, &e);
      value = std::ldexp(s, static_cast<int>(rng() % static_cast<unsigned>(spread)) - spread / 2);
    }
  }
  /// The same for a sum over `spread` binades; 8-bit types are narrow enough as they are.
  void narrow_wide(Multiplicand& x, int spread) {
    if (mma_type_bytes(x.type) > 1) narrow(x, x.type == MmaType::kF16 ? 4 : spread / 2);
  }
};

constexpr MmaType kTypes[] = {MmaType::kE4M3, MmaType::kE5M2, MmaType::kE2M3, MmaType::kE3M2,
                              MmaType::kE2M1, MmaType::kF16,  MmaType::kBF16, MmaType::kTF32};
constexpr ArithmeticMode kModes[] = {ArithmeticMode::kExact, ArithmeticMode::kHopper,
                                     ArithmeticMode::kBlackwell};

std::uint32_t depth_of(MmaType type) { return 32 / mma_type_bytes(type); }

void expect_tile_f32(const Multiplicand& a, const Multiplicand& b, ArithmeticMode mode,
                     bool accumulate, const BlockScales& scales, std::vector<float> d) {
  const std::vector<float> before = d;
  MmaUnit unit(mode);
  unit.f32(a, b, accumulate, d, scales);
  for (std::uint32_t m = 0; m < a.rows; ++m) {
    for (std::uint32_t n = 0; n < b.rows; ++n) {
      mx::MmaElement one{a.type, b.type, accumulator_rule(mode, a.type), 0};
      bool nan = false;
      for (const auto& [list, row] : {std::pair{scales.a, m}, std::pair{scales.b, n}}) {
        if (list.empty()) continue;
        one.scale_exponent += list[row] - 127;
        nan = nan || list[row] == 255;
      }
      const float c = accumulate ? before[m * b.rows + n] : 0.0f;
      const float want = nan ? mx::bits_float(0x7FFFFFFFu)
                             : one.f32(std::span(a.values).subspan(m * a.k, a.k),
                                       std::span(b.values).subspan(n * b.k, b.k), c);
      ASSERT_EQ(mx::float_bits(d[m * b.rows + n]), mx::float_bits(want))
          << "type " << mma_type_name(a.type) << " mode " << arithmetic_mode_name(mode) << " m "
          << m << " n " << n << " got " << d[m * b.rows + n] << " want " << want << " c " << c;
    }
  }
}

std::vector<float> random_accumulator(std::size_t size, std::mt19937& rng, int spread) {
  std::vector<float> d(size);
  for (float& value : d) {
    value = std::ldexp(static_cast<float>(static_cast<int>(rng())),
                       static_cast<int>(rng() % static_cast<unsigned>(spread)) - 31 - spread / 2);
  }
  return d;
}

TEST(MmaUnit, EveryTypeAndModeEqualsTheScalarDefinition) {
  Random random(1);
  for (const MmaType type : kTypes) {
    for (const ArithmeticMode mode : kModes) {
      for (const int spread : {4, 40, 250}) {
        for (const std::uint32_t n : {8u, 40u}) {
          Multiplicand a = random.operand(type, 13, depth_of(type), 0);
          Multiplicand b = random.operand(type, n, depth_of(type), 0, true);
          random.narrow_wide(a, spread);
          random.narrow_wide(b, spread);
          const auto d = random_accumulator(13u * n, random.rng, spread);
          expect_tile_f32(a, b, mode, true, {}, d);
          expect_tile_f32(a, b, mode, false, {}, d);
        }
      }
    }
  }
}

TEST(MmaUnit, MixedTypes) {
  Random random(2);
  for (const ArithmeticMode mode : kModes) {
    const Multiplicand a = random.operand(MmaType::kE5M2, 16, 32, 0);
    const Multiplicand b = random.operand(MmaType::kE4M3, 16, 32, 0);
    expect_tile_f32(a, b, mode, true, {}, random_accumulator(256, random.rng, 20));
  }
}

TEST(MmaUnit, BlockScales) {
  Random random(3);
  for (const ArithmeticMode mode : {ArithmeticMode::kExact, ArithmeticMode::kBlackwell}) {
    for (const unsigned spread : {4u, 60u, 256u}) {
      const Multiplicand a = random.operand(MmaType::kE4M3, 32, 32, 0);
      const Multiplicand b = random.operand(MmaType::kE5M2, 32, 32, 0);
      std::vector<std::uint8_t> sa(32), sb(32);
      for (auto* list : {&sa, &sb}) {
        for (auto& s : *list) {
          s = static_cast<std::uint8_t>(spread == 256 ? random.rng() : 127 + random.rng() % spread);
        }
      }
      const auto d = random_accumulator(1024, random.rng, 60);
      expect_tile_f32(a, b, mode, true, {sa, sb}, d);
      expect_tile_f32(a, b, mode, true, {sa, {}}, d);
      expect_tile_f32(a, b, mode, false, {{}, sb}, d);
    }
  }
}

TEST(MmaUnit, NansAndInfinities) {
  Random random(4);
  for (const MmaType type : kTypes) {
    for (const ArithmeticMode mode : kModes) {
      const Multiplicand a = random.operand(type, 16, depth_of(type), 20);
      const Multiplicand b = random.operand(type, 24, depth_of(type), 20);
      auto d = random_accumulator(16 * 24, random.rng, 20);
      d[5] = NAN;
      d[17] = INFINITY;
      d[18] = -INFINITY;
      expect_tile_f32(a, b, mode, true, {}, d);
    }
  }
}

TEST(MmaUnit, SubnormalAndHugeResults) {
  for (const ArithmeticMode mode : kModes) {
    Multiplicand a{MmaType::kBF16, 1, 16, std::vector<float>(16)};
    Multiplicand b{MmaType::kBF16, 16, 16, std::vector<float>(256)};
    a.values[0] = 0x1p-100f;
    for (int n = 0; n < 16; ++n) b.values[n * 16] = std::ldexp(1.0f, -20 - n);
    expect_tile_f32(a, b, mode, false, {}, std::vector<float>(16));
    expect_tile_f32(a, b, mode, true, {}, std::vector<float>(16, 0x1p-149f));
    a.values[0] = 0x1p100f;
    for (int n = 0; n < 16; ++n) b.values[n * 16] = std::ldexp(-1.5f, 20 + n);
    expect_tile_f32(a, b, mode, true, {}, std::vector<float>(16, 3e38f));
  }
}

TEST(MmaUnit, HalfAccumulators) {
  Random random(5);
  for (const MmaType type : {MmaType::kE4M3, MmaType::kE5M2, MmaType::kF16}) {
    for (const ArithmeticMode mode : kModes) {
      for (const int specials : {0, 10}) {
        const Multiplicand a = random.operand(type, 20, depth_of(type), specials, false, true);
        const Multiplicand b = random.operand(type, 24, depth_of(type), specials);
        std::vector<std::uint16_t> d(20 * 24);
        for (auto& code : d) code = static_cast<std::uint16_t>(random.rng() & 0xFBFF);
        const auto before = d;
        MmaUnit unit(mode);
        unit.f16(a, b, true, d);
        for (std::uint32_t i = 0; i < d.size(); ++i) {
          const std::uint32_t m = i / 24, n = i % 24;
          const mx::MmaElement one{type, type, accumulator_rule(mode, type), 0};
          ASSERT_EQ(d[i], one.f16(std::span(a.values).subspan(m * a.k, a.k),
                                  std::span(b.values).subspan(n * b.k, b.k), before[i]))
              << mma_type_name(type) << " " << arithmetic_mode_name(mode) << " " << m << "," << n;
        }
      }
    }
  }
}

TEST(MmaUnit, SubnormalHalfAccumulatorAlignsAtItsLeastExponent) {
  // C is 2^-24, the products are 32 times 2^-28 (or larger for higher n): the exponent of C is -14,
  // so that 13 fraction bits end at 2^-27 and the small products are gone.
  Multiplicand a{MmaType::kE5M2, 1, 32, std::vector<float>(32, 0x1p-14f)};
  Multiplicand b{MmaType::kE5M2, 16, 32, std::vector<float>(512)};
  for (int n = 0; n < 16; ++n) {
    for (int k = 0; k < 32; ++k) b.values[n * 32 + k] = std::ldexp(1.0f, n / 2 - 14);
  }
  for (const ArithmeticMode mode : kModes) {
    std::vector<std::uint16_t> d(16, 0x0001);
    MmaUnit unit(mode);
    unit.f16(a, b, true, d);
    EXPECT_EQ(d[0], mode == ArithmeticMode::kHopper ? 0x0001 : 0x0003);
    for (std::uint32_t n = 0; n < 16; ++n) {
      const mx::MmaElement one{a.type, b.type, accumulator_rule(mode, a.type), 0};
      ASSERT_EQ(d[n], one.f16(a.values, std::span(b.values).subspan(n * 32, 32), 0x0001)) << n;
    }
  }
}

TEST(MmaUnit, ExactSumsBeyondTwoDoubles) {
  // The sum of the first two is a tie of FP32; 2^-100 decides it, but only where 2^-30 and its
  // negative, which hide it from a sum of two doubles, leave it alone.
  Multiplicand a{MmaType::kBF16, 1, 16, std::vector<float>(16)};
  Multiplicand b{MmaType::kBF16, 16, 16, std::vector<float>(256)};
  const float x[5] = {0x1p24f, 1.0f, 0x1p-30f, 0x1p-100f, -0x1p-30f};
  for (int k = 0; k < 5; ++k) a.values[k] = x[k];
  for (int n = 0; n < 16; ++n) {
    for (int k = 0; k < 5; ++k) b.values[n * 16 + k] = n % 2 == 1 && k == 3 ? -1.0f : 1.0f;
  }
  std::vector<float> d(16);
  MmaUnit unit(ArithmeticMode::kExact);
  unit.f32(a, b, false, d);
  for (int n = 0; n < 16; ++n) EXPECT_EQ(d[n], n % 2 == 1 ? 0x1p24f : 0x1p24f + 2.0f) << n;
}

TEST(MmaUnit, ExactSumsAtTheLimitOfOneDouble) {
  // 2^w + 2^-w with every width around 53 bits, where the plain sum stops being exact.
  for (int w = 20; w <= 34; ++w) {
    Multiplicand a{MmaType::kBF16, 1, 16, std::vector<float>(16)};
    Multiplicand b{MmaType::kBF16, 16, 16, std::vector<float>(256, 1.0f)};
    a.values[0] = std::ldexp(1.0f, w);
    a.values[1] = std::ldexp(1.0f, w - 24);  // a tie
    a.values[2] = std::ldexp(1.0f, -w);
    for (const float sign : {1.0f, -1.0f}) {
      for (int n = 0; n < 16; ++n) b.values[n * 16 + 2] = sign;
      std::vector<float> d(16);
      MmaUnit unit(ArithmeticMode::kExact);
      unit.f32(a, b, false, d);
      const float big = std::ldexp(1.0f, w);
      EXPECT_EQ(d[3], sign > 0 ? std::nextafterf(big, INFINITY) : big) << w;
    }
  }
}

TEST(MmaUnit, Integers) {
  std::mt19937 rng(6);
  std::vector<std::byte> a(4 * 32), b(8 * 32);
  for (auto& byte : a) byte = static_cast<std::byte>(rng());
  for (auto& byte : b) byte = static_cast<std::byte>(rng());
  for (const bool signed_a : {true, false}) {
    for (const bool signed_b : {true, false}) {
      std::vector<std::int32_t> d(32, 7);
      mma_s32({a, signed_a, 4, 32}, {b, signed_b, 8, 32}, true, false, d);
      for (int i = 0; i < 32; ++i) {
        const int m = i / 8, n = i % 8;
        int want = 7;
        for (int k = 0; k < 32; ++k) {
          const int x = static_cast<int>(a[m * 32 + k]), y = static_cast<int>(b[n * 32 + k]);
          want += (signed_a && x > 127 ? x - 256 : x) * (signed_b && y > 127 ? y - 256 : y);
        }
        ASSERT_EQ(d[i], want);
      }
    }
  }
  const std::vector<std::byte> big(32, std::byte{127});
  std::vector<std::int32_t> d{INT32_MAX};
  mma_s32({big, true, 1, 32}, {big, true, 1, 32}, true, true, d);
  EXPECT_EQ(d[0], INT32_MAX);
  mma_s32({big, true, 1, 32}, {big, true, 1, 32}, true, false, d);
  EXPECT_EQ(d[0], INT32_MIN + 127 * 127 * 32 - 1) << "wraps around";
}

TEST(MmaUnit, BadOperands) {
  MmaUnit unit(ArithmeticMode::kExact);
  const Multiplicand a{MmaType::kE4M3, 2, 32, std::vector<float>(64)};
  const Multiplicand b{MmaType::kE4M3, 2, 16, std::vector<float>(32)};
  std::vector<float> d(4);
  expect_fault([&] { unit.f32(a, b, true, d); }, "mma K");
  expect_fault([&] { unit.f32(a, a, true, std::span(d).first(3)); }, "mma accumulator");
  const std::vector<std::uint8_t> scales(3);
  expect_fault([&] { unit.f32(a, a, true, d, {scales, {}}); }, "mma scales");
}

}  // namespace
}  // namespace mxfa::emu::model
