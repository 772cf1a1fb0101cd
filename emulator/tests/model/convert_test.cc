#include "model/convert.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "expect_fault.h"
#include "mx/bits.h"
#include "mx/fp8.h"

namespace mxfa::emu::model {
namespace {

/// A format from its definition: every finite magnitude by its formula, in ascending order.
struct Table {
  SmallFloat format;
  int exponent_bits, mantissa_bits;
  double max;  // largest finite value
  bool infinity, nan;
  std::vector<double> values;
  Table(SmallFloat f, int e, int m, double largest, bool inf, bool has_nan)
      : format(f), exponent_bits(e), mantissa_bits(m), max(largest), infinity(inf), nan(has_nan) {
    const int bias = (1 << (e - 1)) - 1;
    for (int field = 0; field < 1 << e; ++field) {
      for (int mantissa = 0; mantissa < 1 << m; ++mantissa) {
        const double fraction = std::ldexp(mantissa, -m);
        const double value =
            field == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, field - bias);
        if (value > max) return;
        values.push_back(value);
      }
    }
  }
  int sign_bit() const { return exponent_bits + mantissa_bits; }

  /// The code of |x| rounded, by search in the list; values.size() stands for "one past the end".
  std::size_t round(double x, bool negative, Rounding rounding) const {
    const std::size_t above = static_cast<std::size_t>(
        std::lower_bound(values.begin(), values.end(), x) - values.begin());
    if (above < values.size() && values[above] == x) return above;
    const std::size_t below = above - 1;
    const double step = values.back() - values[values.size() - 2];
    const double next = above < values.size() ? values[above] : values.back() + step;
    const double up = next - x, down = x - values[below];
    switch (rounding) {
      case Rounding::kNearestEven:
        return up < down || (up == down && below % 2 == 1) ? above : below;
      case Rounding::kNearestAway:
        return up <= down ? above : below;
      case Rounding::kDown:
        return negative ? above : below;
      case Rounding::kUp:
        return negative ? below : above;
      default:
        return below;
    }
  }

  std::uint32_t encode(float value, const ConvertFlags& flags) const {
    const std::uint32_t all_ones = (1u << sign_bit()) - 1u;
    const auto max_code = static_cast<std::uint32_t>(values.size() - 1);
    if (std::isnan(value)) return nan ? all_ones : max_code;
    const bool negative = std::signbit(value);
    if (negative && flags.relu) return 0;
    const std::uint32_t sign = negative ? 1u << sign_bit() : 0u;
    double x = std::fabs(static_cast<double>(value));
    if (flags.ftz && x < 0x1p-126) x = 0;
    const bool saturate = flags.satfinite || !infinity;
    const std::uint32_t beyond = saturate ? max_code : max_code + 1;
    if (std::isinf(x)) return sign | beyond;
    const double far = 4 * max;  // anything above behaves alike
    const std::size_t code = round(std::min(x, far), negative, flags.rounding);
    if (x > max && flags.rounding != Rounding::kNearestEven &&
        flags.rounding != Rounding::kNearestAway) {
      const bool away = (flags.rounding == Rounding::kUp && !negative) ||
                        (flags.rounding == Rounding::kDown && negative);
      return sign | (away ? beyond : max_code);
    }
    return sign | (code > max_code ? beyond : static_cast<std::uint32_t>(code));
  }
};

const std::vector<Table>& tables() {
  static const std::vector<Table> all{
      {SmallFloat::kF16, 5, 10, 65504.0, true, true},
      {SmallFloat::kE4M3, 4, 3, 448.0, false, true},
      {SmallFloat::kE5M2, 5, 2, 57344.0, true, true},
      {SmallFloat::kE2M3, 2, 3, 7.5, false, false},
      {SmallFloat::kE3M2, 3, 2, 28.0, false, false},
      {SmallFloat::kE2M1, 2, 1, 6.0, false, false},
      {SmallFloat::kBF16, 8, 7, std::ldexp(255.0, 120), true, true},
  };
  return all;
}

std::vector<float> inputs(const Table& table) {
  std::vector<float> result{0.0f, -0.0f, INFINITY, -INFINITY, NAN, -NAN};
  std::mt19937 rng(1);
  for (int i = 0; i < 3000; ++i)
    result.push_back(mx::bits_float(static_cast<std::uint32_t>(rng())));
  // Around every boundary: values, midpoints and their neighbours.
  const std::size_t stride = table.values.size() > 2000 ? 37 : 1;
  for (std::size_t i = 0; i + 1 < table.values.size(); i += stride) {
    const double middle = (table.values[i] + table.values[i + 1]) / 2;
    for (const double x : {table.values[i], middle}) {
      const float f = static_cast<float>(x);
      for (const float g : {f, std::nextafterf(f, INFINITY), std::nextafterf(f, -INFINITY)}) {
        result.push_back(g);
        result.push_back(-g);
      }
    }
  }
  const float max = static_cast<float>(table.max);
  const float step =
      static_cast<float>(table.values.back() - table.values[table.values.size() - 2]);
  for (const float x : {max, max + step / 4, max + step / 2, max + step, 2 * max}) {
    for (const float g : {x, std::nextafterf(x, 0.0f), std::nextafterf(x, INFINITY)}) {
      result.push_back(g);
      result.push_back(-g);
    }
  }
  return result;
}

TEST(Convert, EveryRoundingAgainstTheDefinition) {
  const Rounding roundings[] = {Rounding::kNearestEven, Rounding::kNearestAway, Rounding::kZero,
                                Rounding::kDown, Rounding::kUp};
  for (const Table& table : tables()) {
    for (const float x : inputs(table)) {
      for (const Rounding rounding : roundings) {
        for (int bits = 0; bits < 8; ++bits) {
          const ConvertFlags flags{rounding, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
          ASSERT_EQ(encode_small(table.format, x, flags), table.encode(x, flags))
              << "format " << static_cast<int>(table.format) << " x " << x << " bits " << std::hex
              << mx::float_bits(x) << " rounding " << static_cast<int>(rounding) << " flags "
              << bits;
        }
      }
    }
  }
}

TEST(Convert, AllHalvesAndBf16ToFp8) {
  for (std::uint32_t code = 0; code < 65536; ++code) {
    for (const float x : {mx::decode_f16(static_cast<std::uint16_t>(code)),
                          mx::decode_bf16(static_cast<std::uint16_t>(code))}) {
      for (std::size_t t = 1; t <= 2; ++t) {
        const ConvertFlags flags{Rounding::kNearestEven, true, false, false};
        ASSERT_EQ(encode_small(tables()[t].format, x, flags), tables()[t].encode(x, flags)) << x;
      }
      ASSERT_EQ(encode_small(SmallFloat::kE4M3, x) & 0xFF,
                std::isnan(x) ? 0x7F : mx::encode_e4m3(x));
    }
  }
}

TEST(Convert, EveryCodeDecodesToItsDefinition) {
  for (const Table& table : tables()) {
    const std::uint32_t count = 1u << (table.sign_bit() + 1);
    for (std::uint32_t code = 0; code < count; ++code) {
      const std::uint32_t abs = code & ((1u << table.sign_bit()) - 1u);
      const bool negative = code >> table.sign_bit() != 0;
      const float got = decode_small(table.format, code);
      if (abs < table.values.size()) {
        const double want = negative ? -table.values[abs] : table.values[abs];
        ASSERT_EQ(static_cast<double>(got), want) << code;
        ASSERT_EQ(std::signbit(got), negative);
      } else if (table.infinity && abs == table.values.size()) {
        ASSERT_EQ(got, negative ? -INFINITY : INFINITY);
      } else {
        ASSERT_TRUE(std::isnan(got)) << code;
      }
    }
  }
}

TEST(Convert, Fp8ToHalfIsExact) {
  for (std::uint32_t code = 0; code < 256; ++code) {
    for (const SmallFloat format : {SmallFloat::kE4M3, SmallFloat::kE5M2}) {
      const float value = decode_small(format, code);
      const std::uint16_t half = small_to_f16(format, code);
      if (std::isnan(value)) {
        EXPECT_EQ(half, 0x7FFF);
      } else {
        EXPECT_EQ(mx::decode_f16(half), value);
        EXPECT_EQ(half >> 15, code >> 7) << "the sign of zero too";
      }
      const float positive = std::signbit(value) && !std::isnan(value) ? 0.0f : value;
      const std::uint16_t relu = small_to_f16(format, code, true);
      EXPECT_EQ(relu, std::isnan(value) ? 0x7FFF : mx::encode_f16(positive)) << code;
    }
  }
}

TEST(Convert, TF32) {
  const auto convert = [](std::uint32_t bits, const ConvertFlags& flags) {
    return encode_small(SmallFloat::kTF32, mx::bits_float(bits), flags);
  };
  const ConvertFlags rn{}, rz{Rounding::kZero, false, false, false};
  const ConvertFlags rna{Rounding::kNearestAway, false, false, false};
  const ConvertFlags rna_sat{Rounding::kNearestAway, true, false, false};
  EXPECT_EQ(convert(0x3F801000, rn), 0x3F800000u) << "tie to even";
  EXPECT_EQ(convert(0x3F801000, rna), 0x3F802000u) << "tie away";
  EXPECT_EQ(convert(0x3F803000, rn), 0x3F804000u);
  EXPECT_EQ(convert(0xBF801FFF, rz), 0xBF800000u);
  EXPECT_EQ(convert(0x7F7FFFFF, rn), 0x7F800000u) << "overflow";
  EXPECT_EQ(convert(0x7F7FFFFF, rna_sat), 0x7F7FE000u);
  EXPECT_EQ(convert(0xFF800000, rna_sat), 0xFF7FE000u);
  EXPECT_EQ(convert(0xFF800000, rn), 0xFF800000u);
  EXPECT_EQ(convert(0x7FC00001, rn), 0x7FFFE000u);
  EXPECT_EQ(convert(0x00001000, rn), 0x00000000u) << "subnormal tie";
  EXPECT_EQ(convert(0x00003000, rn), 0x00004000u) << "subnormal tie";
  std::mt19937 rng(4);
  for (int i = 0; i < 20000; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(rng());
    if ((bits & 0x7F800000u) == 0x7F800000u) continue;
    const std::uint32_t rest = bits & 0x1FFFu, kept = bits & ~0x1FFFu;
    const bool up = rest > 0x1000u || (rest == 0x1000u && (bits & 0x2000u) != 0);
    ASSERT_EQ(convert(bits, rn), up ? kept + 0x2000u : kept) << std::hex << bits;
    ASSERT_EQ(decode_small(SmallFloat::kTF32, kept), mx::bits_float(kept));
  }
}

TEST(Convert, StochasticRoundingCarries) {
  ConvertFlags rs;
  rs.rounding = Rounding::kStochastic;
  const auto bf16 = [&](std::uint32_t bits, std::uint32_t random) {
    return encode_small(SmallFloat::kBF16, mx::bits_float(bits), rs, random);
  };
  EXPECT_EQ(bf16(0x3F800001, 0xFFFE), 0x3F80u);
  EXPECT_EQ(bf16(0x3F800001, 0xFFFF), 0x3F81u);
  EXPECT_EQ(bf16(0x3F80FFFF, 0x0000), 0x3F80u);
  EXPECT_EQ(bf16(0xBF80FFFF, 0x0001), 0xBF81u);
  EXPECT_EQ(bf16(0x3F800000, 0xFFFF), 0x3F80u) << "exact values stay";
  // f16: 13 discarded bits against 13 random ones; e4m3: 20 against 16 at their top.
  EXPECT_EQ(encode_small(SmallFloat::kF16, mx::bits_float(0x3F801FFF), rs, 1), 0x3C01u);
  EXPECT_EQ(encode_small(SmallFloat::kF16, mx::bits_float(0x3F801FFF), rs, 0), 0x3C00u);
  rs.satfinite = true;
  EXPECT_EQ(encode_small(SmallFloat::kE4M3, mx::bits_float(0x3F8FFFF0), rs, 1), 0x39u);
  EXPECT_EQ(encode_small(SmallFloat::kE4M3, mx::bits_float(0x3F8FFFF0), rs, 0), 0x38u);
  // Over all random values the mean is the value itself.
  double sum = 0;
  for (std::uint32_t random = 0; random < 65536; ++random) {
    sum += decode_small(SmallFloat::kE4M3, encode_small(SmallFloat::kE4M3, 1.0625f, rs, random));
  }
  EXPECT_DOUBLE_EQ(sum / 65536, 1.0625);
}

TEST(Convert, Ue8m0AgainstTheDefinition) {
  std::mt19937 rng(9);
  std::vector<std::uint32_t> patterns;
  for (int i = 0; i < 20000; ++i) patterns.push_back(static_cast<std::uint32_t>(rng()));
  for (std::uint32_t e = 0; e < 256; ++e) {
    for (const std::uint32_t m : {0u, 1u, 0x3FFFFFu, 0x400000u, 0x400001u, 0x7FFFFFu}) {
      patterns.push_back(e << 23 | m);
      patterns.push_back(0x80000000u | e << 23 | m);
    }
  }
  for (const std::uint32_t bits : patterns) {
    const float x = mx::bits_float(bits);
    const double magnitude = std::fabs(static_cast<double>(x));
    for (const bool sat : {false, true}) {
      int up = 0, down = 0;
      if (std::isnan(x)) {
        up = down = 0xFF;
      } else if (std::isinf(x)) {
        up = down = sat ? 0xFE : 0xFF;
      } else {
        while (up < 255 && std::ldexp(1.0, up - 127) < magnitude) ++up;
        while (down < 254 && std::ldexp(1.0, down + 1 - 127) <= magnitude) ++down;
        if (sat) up = std::min(up, 254);
      }
      ASSERT_EQ(encode_ue8m0(x, Rounding::kUp, sat), up) << std::hex << bits;
      ASSERT_EQ(encode_ue8m0(x, Rounding::kZero, sat), down) << std::hex << bits;
    }
  }
  expect_fault([] { encode_ue8m0(1.0f, Rounding::kNearestEven, true); }, ".rz or .rp");
}

TEST(Convert, Ue8m0ToBf16) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(mx::decode_bf16(ue8m0_to_bf16(static_cast<std::uint8_t>(code))),
              std::ldexp(1.0f, code - 127));
  }
  EXPECT_EQ(ue8m0_to_bf16(0xFF), 0x7FFF);
  EXPECT_EQ(ue8m0_to_bf16(0), 0x0040);
}

TEST(Convert, Packing) {
  EXPECT_EQ(pack_16(0x1111, 0x2222), 0x11112222u);
  EXPECT_EQ(pack_8(0x11, 0x22), 0x1122u);
  EXPECT_EQ(pack_4(0x1, 0x2), 0x12u);
}

}  // namespace
}  // namespace mxfa::emu::model
