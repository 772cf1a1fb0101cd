#include "mx/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "core/parallel.h"
#include "mx/bits.h"
#include "mx/block.h"
#include "mx/definition.h"
#include "mxfa/error.h"
#include "support/compare.h"

namespace mxfa::mx {
namespace {

using mxfa::testing::bitwise_equal;
using mxfa::testing::code_value;
using mxfa::testing::facts_of;

std::vector<std::uint8_t> encode_all(DType format, const std::vector<float>& values) {
  const std::vector<float> ones(values.size(), 1.0f);
  std::vector<std::uint8_t> codes(values.size());
  encode_row(format, values.data(), ones.data(), codes.data(),
             static_cast<std::int64_t>(values.size()));
  return codes;
}

std::uint8_t encode_one(DType format, float value) {
  return format == DType::kE4M3 ? encode_e4m3(value) : encode_e5m2(value);
}

std::vector<float> values_of_bits(const std::vector<std::uint32_t>& bits) {
  std::vector<float> values;
  for (const std::uint32_t pattern : bits) values.push_back(bits_float(pattern));
  return values;
}

/// All upper halves of FP32 with the lower halves at which any rounding could go wrong.
std::vector<float> critical_values() {
  std::vector<std::uint32_t> bits;
  for (std::uint32_t high = 0; high < 0x10000; ++high) {
    for (const std::uint32_t low : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      bits.push_back(high << 16 | low);
    }
  }
  return values_of_bits(bits);
}

TEST(Convert, EncodeRowEqualsDefinitionAtCriticalValues) {
  const std::vector<float> values = critical_values();
  for (const DType format : {DType::kE4M3, DType::kE5M2}) {
    std::vector<std::uint8_t> want;
    for (const float value : values) want.push_back(encode_one(format, value));
    EXPECT_TRUE(bitwise_equal(encode_all(format, values), want, {std::string(dtype_name(format))}));
  }
}

/// Lengths around the vector widths, with the inverse scale of each column.
TEST(Convert, RowsOfAnyLengthAndScale) {
  for (std::int64_t count = 0; count < 70; ++count) {
    std::vector<float> values;
    std::vector<float> inverse;
    std::vector<float> scale;
    std::vector<std::uint8_t> want;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto byte = static_cast<std::uint8_t>(i * 37 + 100);
      values.push_back(std::ldexp(static_cast<float>(i) - 30.3f, byte - 130));
      inverse.push_back(inverse_e8m0(byte));
      scale.push_back(decode_e8m0(byte));
      want.push_back(encode_scaled<E4M3>(values.back(), byte));
    }
    std::vector<std::uint8_t> got(values.size() + 1, 0xA5);
    encode_row(DType::kE4M3, values.data(), inverse.data(), got.data(), count);
    EXPECT_EQ(got.back(), 0xA5);
    got.pop_back();
    EXPECT_TRUE(bitwise_equal(got, want));
    std::vector<float> back(values.size());
    decode_row(DType::kE4M3, got.data(), scale.data(), back.data(), count);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto byte = static_cast<std::uint8_t>(i * 37 + 100);
      const float expected = dequantize<E4M3>(got[i], byte);
      EXPECT_TRUE(back[i] == expected || (std::isnan(back[i]) && std::isnan(expected))) << i;
    }
  }
}

TEST(Convert, NanScaleGivesNanCodes) {
  const std::vector<float> values{0.0f, -1.0f, 1e30f, std::numeric_limits<float>::infinity()};
  const std::vector<float> inverse(4, inverse_e8m0(0xFF));
  std::vector<std::uint8_t> codes(4);
  for (const DType format : {DType::kE4M3, DType::kE5M2}) {
    encode_row(format, values.data(), inverse.data(), codes.data(), 4);
    EXPECT_EQ(codes, (std::vector<std::uint8_t>{0x7F, 0x7F, 0x7F, 0x7F}));
  }
}

TEST(Convert, DecodeRowEqualsDefinitionForEveryCode) {
  std::vector<std::uint8_t> codes(256);
  std::iota(codes.begin(), codes.end(), std::uint8_t{0});
  for (int byte = 0; byte < 256; ++byte) {
    const std::vector<float> scales(256, decode_e8m0(static_cast<std::uint8_t>(byte)));
    for (const DType format : {DType::kE4M3, DType::kE5M2}) {
      std::vector<float> got(256);
      decode_row(format, codes.data(), scales.data(), got.data(), 256);
      for (int code = 0; code < 256; ++code) {
        const auto c = static_cast<std::uint8_t>(code);
        const auto s = static_cast<std::uint8_t>(byte);
        const float want = format == DType::kE4M3 ? dequantize<E4M3>(c, s) : dequantize<E5M2>(c, s);
        if (std::isnan(want)) {
          ASSERT_TRUE(std::isnan(got[code])) << code << " scale " << byte;
        } else {
          ASSERT_EQ(float_bits(got[code]), float_bits(want)) << code << " scale " << byte;
        }
      }
    }
  }
}

TEST(Convert, MaximaIgnoreSignsAndKeepNanOnTop) {
  std::vector<float> values{-3.0f, 2.0f, -0.0f, 1e-40f};
  EXPECT_EQ(max_magnitude(values.data(), 4), float_bits(3.0f));
  EXPECT_EQ(max_magnitude(values.data(), 0), 0u);
  EXPECT_EQ(max_magnitude(values.data() + 3, 1), float_bits(1e-40f));
  values[2] = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(max_magnitude(values.data(), 4), 0x7F800000u);
  values[1] = bits_float(0xFFC00000u);
  EXPECT_EQ(max_magnitude(values.data(), 4), 0x7FC00000u);
  std::vector<std::uint32_t> top{0u, float_bits(5.0f), 0u, 0u};
  max_magnitude_columns(values.data(), top.data(), 4);
  EXPECT_EQ(top, (std::vector<std::uint32_t>{float_bits(3.0f), 0x7FC00000u, 0x7F800000u,
                                             float_bits(1e-40f)}));
}

TEST(Convert, RefusesOtherFormats) {
  const float value = 1;
  std::uint8_t code = 0;
  float back = 0;
  EXPECT_THROW(encode_row(DType::kU8, &value, &value, &code, 1), Error);
  EXPECT_THROW(decode_row(DType::kF32, &code, &value, &back, 1), Error);
}

/// `value` rounded to `mantissa_bits` at exponents from `min_exponent` on, in double precision by
/// the current rounding mode (nearest even); overflow becomes infinity.
double round_to(double value, int mantissa_bits, int min_exponent, int max_exponent) {
  if (!std::isfinite(value) || value == 0) return value;
  const int exponent = std::max(std::ilogb(value), min_exponent);
  const double step = std::ldexp(1.0, exponent - mantissa_bits);
  const double rounded = std::nearbyint(value / step) * step;
  const bool overflow = std::abs(rounded) >= std::ldexp(1.0, max_exponent + 1);
  return overflow ? std::copysign(std::numeric_limits<double>::infinity(), value) : rounded;
}

TEST(HalfPrecision, EveryF16CodeDecodesToItsFormula) {
  std::vector<std::uint16_t> codes(0x10000);
  std::iota(codes.begin(), codes.end(), std::uint16_t{0});
  std::vector<float> row(codes.size());
  decode_f16_row(codes.data(), row.data(), 0x10000);
  for (int code = 0; code < 0x10000; ++code) {
    const int exponent = code >> 10 & 0x1F;
    const int mantissa = code & 0x3FF;
    const double sign = code & 0x8000 ? -1.0 : 1.0;
    double want =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    if (exponent == 31) want = std::numeric_limits<double>::infinity();
    const float got = decode_f16(static_cast<std::uint16_t>(code));
    if (exponent == 31 && mantissa != 0) {
      ASSERT_TRUE(std::isnan(got)) << code;
      ASSERT_EQ(encode_f16(got), (code & 0x8000) | 0x7E00) << code;
    } else {
      ASSERT_EQ(float_bits(got), float_bits(static_cast<float>(sign * want))) << code;
      ASSERT_EQ(encode_f16(got), code);
    }
    ASSERT_EQ(float_bits(row[code]), float_bits(got)) << code;
  }
}

TEST(HalfPrecision, EveryBf16CodeIsTheUpperHalf) {
  std::vector<std::uint16_t> codes(0x10000);
  std::iota(codes.begin(), codes.end(), std::uint16_t{0});
  std::vector<float> row(codes.size());
  decode_bf16_row(codes.data(), row.data(), 0x10000);
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    ASSERT_EQ(float_bits(row[code]), code << 16);
    ASSERT_EQ(float_bits(decode_bf16(static_cast<std::uint16_t>(code))), code << 16);
    const bool nan = (code & 0x7FFF) > 0x7F80;
    ASSERT_EQ(encode_bf16(row[code]), nan ? code | 0x40 : code);
  }
}

TEST(HalfPrecision, RoundingEqualsDefinitionAtCriticalValues) {
  std::vector<float> values = critical_values();
  for (int code = 0; code < 0x7C00; ++code) {  // midpoints of FP16 codes and what lies beside them
    const double middle =
        (decode_f16(static_cast<std::uint16_t>(code)) +
         (code == 0x7BFF ? 65536.0 : decode_f16(static_cast<std::uint16_t>(code + 1)))) /
        2;
    const auto tie = static_cast<float>(middle);
    for (const float value : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 1e9f)}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  const auto count = static_cast<std::int64_t>(values.size());
  std::vector<std::uint16_t> f16(values.size());
  std::vector<std::uint16_t> bf16(values.size());
  encode_f16_row(values.data(), f16.data(), count);
  encode_bf16_row(values.data(), bf16.data(), count);
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(f16[i], encode_f16(values[i])) << values[i];
    ASSERT_EQ(bf16[i], encode_bf16(values[i])) << values[i];
    if (std::isnan(values[i])) continue;
    ASSERT_EQ(static_cast<double>(round_f16(values[i])), round_to(values[i], 10, -14, 15))
        << values[i];
    ASSERT_EQ(static_cast<double>(round_bf16(values[i])), round_to(values[i], 7, -126, 127))
        << values[i];
  }
}

/// Codes of all FP32 magnitudes in [begin, begin + count) by the definition: the number of
/// midpoints of neighbouring codes that lie below, a midpoint itself going to the even code.
std::vector<std::uint8_t> codes_by_midpoints(DType format, std::uint32_t begin,
                                             std::uint32_t count) {
  const int max_code = facts_of(format).max_code;
  std::vector<double> middles;
  for (int code = 0; code < max_code; ++code) {
    middles.push_back((code_value(format, code) + code_value(format, code + 1)) / 2);
  }
  std::vector<std::uint8_t> codes(count);
  std::size_t passed = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    const double value = bits_float(begin + i);
    if (std::isnan(value)) {
      codes[i] = 0x7F;
      continue;
    }
    while (passed < middles.size() &&
           (value > middles[passed] || (value == middles[passed] && passed % 2 == 1))) {
      ++passed;
    }
    codes[i] = static_cast<std::uint8_t>(passed);
  }
  return codes;
}

/// All 2^32 FP32 values, both formats: definition, scalar code and vector code give the same byte.
TEST(ConvertFull, EncodeOfEveryFp32Value) {
  constexpr std::uint32_t kChunk = 1u << 14;
  core::parallel_for((std::int64_t{1} << 31) / kChunk, [](std::int64_t chunk) {
    if (::testing::Test::HasFailure()) return;
    const auto begin = static_cast<std::uint32_t>(chunk * kChunk);
    for (const DType format : {DType::kE4M3, DType::kE5M2}) {
      std::vector<std::uint8_t> want = codes_by_midpoints(format, begin, kChunk);
      for (const std::uint32_t sign : {0u, 0x80000000u}) {
        std::vector<float> values(kChunk);
        std::vector<std::uint8_t> scalar(kChunk);
        for (std::uint32_t i = 0; i < kChunk; ++i) {
          values[i] = bits_float(sign | (begin + i));
          scalar[i] = encode_one(format, values[i]);
          if (sign != 0 && !std::isnan(values[i])) want[i] |= 0x80;
        }
        const std::string name = fmt::format("{} from {:08x}", dtype_name(format), sign | begin);
        // Bytes first: what says where they differ takes far longer.
        if (scalar != want) FAIL() << bitwise_equal(scalar, want, {"scalar " + name}).message();
        const std::vector<std::uint8_t> vector = encode_all(format, values);
        if (vector != want) FAIL() << bitwise_equal(vector, want, {"vector " + name}).message();
      }
    }
  });
}

/// All 2^32 FP32 values to FP16 and BF16 and the vector loops beside them.
TEST(ConvertFull, HalfPrecisionOfEveryFp32Value) {
  constexpr std::uint32_t kChunk = 1u << 14;
  core::parallel_for((std::int64_t{1} << 32) / kChunk, [](std::int64_t chunk) {
    if (::testing::Test::HasFailure()) return;
    const auto begin = static_cast<std::uint32_t>(chunk * kChunk);
    std::vector<float> values(kChunk);
    std::vector<std::uint16_t> f16(kChunk);
    std::vector<std::uint16_t> bf16(kChunk);
    for (std::uint32_t i = 0; i < kChunk; ++i) values[i] = bits_float(begin + i);
    encode_f16_row(values.data(), f16.data(), kChunk);
    encode_bf16_row(values.data(), bf16.data(), kChunk);
    for (std::uint32_t i = 0; i < kChunk; ++i) {
      if (f16[i] == encode_f16(values[i]) && bf16[i] == encode_bf16(values[i])) continue;
      FAIL() << fmt::format("{:08x}: {:04x} {:04x}, one by one {:04x} {:04x}", begin + i, f16[i],
                            bf16[i], encode_f16(values[i]), encode_bf16(values[i]));
    }
  });
}

}  // namespace
}  // namespace mxfa::mx
