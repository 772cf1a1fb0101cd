#include "mx/fp8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "mx/block.h"
#include "mx/definition.h"
#include "mx/e8m0.h"
#include "mx/lower.h"

namespace mxfa::mx {
namespace {

using mxfa::testing::code_value;
using mxfa::testing::define_block;
using mxfa::testing::DefinedBlock;
using mxfa::testing::facts_of;
using mxfa::testing::NearestCode;
using mxfa::testing::scale_of_amax;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <class Format>
constexpr DType kFormatOf = Format::kMantissaBits == 3 ? DType::kE4M3 : DType::kE5M2;

template <class Format>
class Fp8 : public ::testing::Test {};
struct FormatNames {
  template <class Format>
  static std::string GetName(int) {
    return kFormatOf<Format> == DType::kE4M3 ? "E4M3" : "E5M2";
  }
};
using Formats = ::testing::Types<E4M3, E5M2>;
TYPED_TEST_SUITE(Fp8, Formats, FormatNames);

TYPED_TEST(Fp8, EveryCodeDecodesToItsFormula) {
  using Format = TypeParam;
  for (int code = 0; code < 256; ++code) {
    const double want = code_value(kFormatOf<Format>, code);
    const float got = decode_fp8<Format>(static_cast<std::uint8_t>(code));
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got)) << code;
      continue;
    }
    ASSERT_EQ(float_bits(got), float_bits(static_cast<float>(want))) << code;
    const int back = std::isinf(want) ? (code & 0x80) | Format::kMaxCode : code;
    ASSERT_EQ(encode_fp8<Format>(got), back) << code;
  }
}

TYPED_TEST(Fp8, ConstantsMatchTheCodeTable) {
  using Format = TypeParam;
  EXPECT_EQ(code_value(kFormatOf<Format>, Format::kMaxCode), Format::kMaxValue);
  EXPECT_EQ(std::ilogb(Format::kMaxValue), Format::kMaxExponent);
  EXPECT_EQ(std::ldexp(1.75, Format::kMaxExponent), Format::kMaxValue);
  EXPECT_TRUE(std::isnan(code_value(kFormatOf<Format>, Format::kNanCode)));
}

TYPED_TEST(Fp8, EveryBf16ValueRoundsToTheNearestCode) {
  using Format = TypeParam;
  const NearestCode nearest(kFormatOf<Format>);
  for (int bits = 0; bits < 0x10000; ++bits) {
    const float value = decode_bf16(static_cast<std::uint16_t>(bits));
    ASSERT_EQ(encode_fp8<Format>(value), nearest(value)) << value << " bits " << bits;
  }
}

/// Every midpoint of two codes, and the two FP32 values beside it, of both signs.
TYPED_TEST(Fp8, TiesGoToEvenAndNeighboursOfTiesDoNot) {
  using Format = TypeParam;
  for (int code = 0; code < Format::kMaxCode; ++code) {
    const double middle =
        (code_value(kFormatOf<Format>, code) + code_value(kFormatOf<Format>, code + 1)) / 2;
    const float tie = static_cast<float>(middle);
    ASSERT_EQ(tie, middle) << "midpoints are FP32 values";
    for (const int sign : {0, 0x80}) {
      const float flip = sign == 0 ? 1.0f : -1.0f;
      EXPECT_EQ(encode_fp8<Format>(flip * tie), sign | (code + code % 2)) << code;
      EXPECT_EQ(encode_fp8<Format>(flip * std::nextafter(tie, 0.0f)), sign | code) << code;
      EXPECT_EQ(encode_fp8<Format>(flip * std::nextafter(tie, kInfinity)), sign | (code + 1))
          << code;
    }
  }
}

TYPED_TEST(Fp8, SpecialValues) {
  using Format = TypeParam;
  EXPECT_EQ(encode_fp8<Format>(0.0f), 0x00);
  EXPECT_EQ(encode_fp8<Format>(-0.0f), 0x80);
  EXPECT_EQ(encode_fp8<Format>(kInfinity), Format::kMaxCode);
  EXPECT_EQ(encode_fp8<Format>(-kInfinity), 0x80 | Format::kMaxCode);
  EXPECT_EQ(encode_fp8<Format>(std::numeric_limits<float>::max()), Format::kMaxCode);
  EXPECT_EQ(encode_fp8<Format>(std::numeric_limits<float>::denorm_min()), 0x00);
  EXPECT_EQ(encode_fp8<Format>(bits_float(0x7FC00000u)), Format::kNanCode);
  EXPECT_EQ(encode_fp8<Format>(bits_float(0xFFC00000u)), Format::kNanCode);
  EXPECT_EQ(encode_fp8<Format>(bits_float(0x7F800001u)), Format::kNanCode);
}

/// A block of one value is its own maximum: scale and code of all BF16 values by both rules.
TYPED_TEST(Fp8, EveryBf16ValueAsABlockMaximum) {
  using Format = TypeParam;
  for (const ScaleRule rule : {ScaleRule::kRoundUp, ScaleRule::kFloor}) {
    for (int bits = 0; bits < 0x10000; ++bits) {
      const float values[] = {decode_bf16(static_cast<std::uint16_t>(bits))};
      const Block got = quantize_block<Format>(values, rule);
      const DefinedBlock want = define_block(kFormatOf<Format>, rule, values);
      ASSERT_EQ(got.scale, want.scale) << values[0] << " bits " << bits;
      ASSERT_EQ(got.codes[0], want.codes[0]) << values[0] << " bits " << bits;
      ASSERT_EQ(got.codes[1], 0) << "a missing value";
    }
  }
}

/// The defining property of each rule in exact arithmetic: doubles hold amax * 2^k without error.
template <class Format>
void expect_scale_defined(std::uint32_t bits) {
  const double amax = bits_float(bits);
  const int up = scale_from_amax<Format>(bits_float(bits), ScaleRule::kRoundUp);
  ASSERT_LE(amax, std::ldexp(Format::kMaxValue, up - 127)) << bits;
  ASSERT_TRUE(up == 0 || amax > std::ldexp(Format::kMaxValue, up - 1 - 127)) << bits;
  const int down = scale_from_amax<Format>(bits_float(bits), ScaleRule::kFloor);
  ASSERT_EQ(down, scale_of_amax(kFormatOf<Format>, amax, ScaleRule::kFloor)) << bits;
}

TYPED_TEST(Fp8, ScaleRulesForAllExponentsAtCriticalMantissas) {
  using Format = TypeParam;
  for (std::uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (const std::uint32_t mantissa :
         {0u, 1u, 0x3FFFFFu, 0x400000u, 0x5FFFFFu, 0x600000u, 0x600001u, 0x7FFFFEu, 0x7FFFFFu}) {
      expect_scale_defined<Format>(exponent << 23 | mantissa);
    }
  }
  for (const ScaleRule rule : {ScaleRule::kRoundUp, ScaleRule::kFloor}) {
    EXPECT_EQ(scale_from_amax<Format>(0.0f, rule), 0);
    EXPECT_EQ(scale_from_amax<Format>(kInfinity, rule), 0xFF);
    EXPECT_EQ(scale_from_amax<Format>(bits_float(0x7FC00000u), rule), 0xFF);
  }
}

/// All 2^23 mantissas of one exponent. The sums need no ldexp here: the bounds are constants.
TYPED_TEST(Fp8, ScaleRuleForEveryMantissa) {
  using Format = TypeParam;
  constexpr std::uint32_t kExponent = 127;
  for (std::uint32_t mantissa = 0; mantissa < (1u << 23); ++mantissa) {
    const float amax = bits_float(kExponent << 23 | mantissa);
    const int scale = scale_from_amax<Format>(amax, ScaleRule::kRoundUp);
    const int want = amax <= 1.75f ? 127 - Format::kMaxExponent : 128 - Format::kMaxExponent;
    ASSERT_EQ(scale, want) << mantissa;
    ASSERT_EQ(scale_from_amax<Format>(amax, ScaleRule::kFloor), 127 - Format::kMaxExponent);
  }
}

TEST(E8M0, EveryByteIsItsPowerOfTwo) {
  for (int byte = 0; byte < 255; ++byte) {
    const auto scale = static_cast<std::uint8_t>(byte);
    ASSERT_EQ(decode_e8m0(scale), std::ldexp(1.0, byte - 127)) << byte;
    ASSERT_EQ(inverse_e8m0(scale), std::ldexp(1.0, 127 - byte)) << byte;
    ASSERT_EQ(decode_e8m0(scale) * inverse_e8m0(scale), 1.0f) << byte;
  }
  EXPECT_TRUE(std::isnan(decode_e8m0(0xFF)));
  EXPECT_TRUE(std::isnan(inverse_e8m0(0xFF)));
}

/// A raised scale is a number wherever the scale was one: the largest finite values have 247.
TEST(E8M0, RaisedScalesEndAtTheLargest) {
  EXPECT_EQ(scale_from_amax<E4M3>(std::numeric_limits<float>::max(), ScaleRule::kRoundUp), 247);
  for (int scale = 0; scale < 256; ++scale) {
    for (int binades = 0; binades < 12; ++binades) {
      ASSERT_EQ(raised_scale(scale, binades), scale == 255 ? 255 : std::min(scale + binades, 254))
          << scale << " by " << binades;
    }
  }
}

/// The least of the grid that is not smaller; the largest has no coarser one.
TEST(E8M0, CoarseScalesGoInStepsOfFourBinades) {
  for (int scale = 0; scale < 254; ++scale) {
    const int coarse = coarse_scale(scale);
    ASSERT_TRUE(coarse >= scale && coarse < scale + 4 && (coarse - (kE8M0Bias - 6)) % 4 == 0)
        << scale << ": " << coarse;
  }
  EXPECT_EQ(coarse_scale(254), 254);
  EXPECT_EQ(coarse_scale(kE8M0Nan), kE8M0Nan);
  // 1/2 to 7 share one.
  EXPECT_EQ(coarse_scale(scale_from_amax<E4M3>(0.5f, ScaleRule::kRoundUp)), kE8M0Bias - 6);
  EXPECT_EQ(coarse_scale(scale_from_amax<E4M3>(7.0f, ScaleRule::kRoundUp)), kE8M0Bias - 6);
  EXPECT_EQ(coarse_scale(scale_from_amax<E4M3>(7.5f, ScaleRule::kRoundUp)), kE8M0Bias - 2);
}

/// Payload of the largest values, 8 binades below what the format holds: under 254 it is 7 below.
TEST(Lowered, TheLargestValuesStayNumbers) {
  const float values[] = {std::numeric_limits<float>::max(), -0x1p127f, 0x1p110f, 0.0f};
  const FloatView view = row_major(values, 1, 4);
  const QuantizedMatrix got = lowered(quantize(view, {BlockShape::k1xD}), view, 8);
  EXPECT_EQ(got.scale(0, 0), 254);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(got.codes[i], encode_scaled<E4M3>(values[i], 254)) << values[i];
  }
  EXPECT_EQ(dequantize<E4M3>(got.codes[1], got.scale(0, 0)), -0x1p127f);
}

/// All 65536 pairs; a product beyond FP32 is infinite.
TYPED_TEST(Fp8, EveryCodeUnderEveryScale) {
  using Format = TypeParam;
  for (int scale = 0; scale < 256; ++scale) {
    for (int code = 0; code < 256; ++code) {
      const float got =
          dequantize<Format>(static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(scale));
      const double want = scale == 255
                              ? std::nan("")
                              : std::ldexp(code_value(kFormatOf<Format>, code), scale - 127);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(got)) << code << " scale " << scale;
      } else {
        ASSERT_EQ(float_bits(got), float_bits(static_cast<float>(want)))
            << code << " scale " << scale;
      }
    }
  }
}

/// A block that holds NaN or an infinity decodes to NaN everywhere, also without its scale.
TYPED_TEST(Fp8, PoisonedBlock) {
  using Format = TypeParam;
  for (const float special : {kInfinity, -kInfinity, bits_float(0x7FC00000u),
                              bits_float(0xFFC00000u), bits_float(0x7F800001u)}) {
    float values[32] = {1.0f, 2.0f, 448.0f};
    values[17] = special;
    const Block block = quantize_block<Format>(values);
    EXPECT_EQ(block.scale, 0xFF);
    for (const std::uint8_t code : block.codes) EXPECT_EQ(code, 0x7F);
  }
}

/// Under a constant scale that was not derived from the block, an infinity saturates.
TYPED_TEST(Fp8, ConstantScaleSaturates) {
  using Format = TypeParam;
  EXPECT_EQ(encode_scaled<Format>(kInfinity, 119), Format::kMaxCode);
  EXPECT_EQ(encode_scaled<Format>(3.0e38f, 0), Format::kMaxCode);
  EXPECT_EQ(encode_scaled<Format>(-3.0e38f, 0), 0x80 | Format::kMaxCode);
  EXPECT_EQ(encode_scaled<Format>(1.0f, 0xFF), Format::kNanCode);
  EXPECT_EQ(encode_scaled<E4M3>(1.0f, 119), 0x78);  // P = 1 is the exact code of 256
}

}  // namespace
}  // namespace mxfa::mx
