#include "exec/soft_float.h"

#include <bit>

namespace mxfa::emu::exec {
namespace {

struct FloatFormat {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  std::uint64_t max_code;  ///< of the largest finite value, without sign
  std::uint64_t infinity;  ///< 0: the format has none
  std::uint64_t nan;       ///< 0: the format has none, NaN becomes the largest value
};

FloatFormat describe(NumberFormat format) {
  switch (format) {
    case NumberFormat::kF16:
      return {5, 10, 15, 0x7BFF, 0x7C00, 0x7FFF};
    case NumberFormat::kBF16:
      return {8, 7, 127, 0x7F7F, 0x7F80, 0x7FFF};
    case NumberFormat::kTF32:
      return {8, 10, 127, 0x7F7FE000u >> 13, 0x7F800000u >> 13, 0x7FFFFFFFu >> 13};
    case NumberFormat::kF64:
      return {11, 52, 1023, 0x7FEFFFFFFFFFFFFFu, 0x7FF0000000000000u, 0x7FFFFFFFFFFFFFFFu};
    case NumberFormat::kE4M3:
      return {4, 3, 7, 0x7E, 0, 0x7F};
    case NumberFormat::kE5M2:
      return {5, 2, 15, 0x7B, 0x7C, 0x7F};
    case NumberFormat::kE2M3:
      return {2, 3, 1, 0x1F, 0, 0};
    case NumberFormat::kE3M2:
      return {3, 2, 3, 0x1F, 0, 0};
    case NumberFormat::kE2M1:
      return {2, 1, 1, 0x7, 0, 0};
    default:
      return {8, 23, 127, 0x7F7FFFFFu, 0x7F800000u, 0x7FFFFFFFu};
  }
}

// value >> shift, rounded; shift may exceed 64. Negative shifts are exact.
std::uint64_t shift_rounding(const Unpacked& value, int shift, const RoundingRule& rule) {
  if (shift <= 0) return value.significand << -shift;
  const std::uint64_t kept = shift < 64 ? value.significand >> shift : 0;
  const std::uint64_t rest =
      shift < 64 ? value.significand & ((std::uint64_t{1} << shift) - 1) : value.significand;
  if (rest == 0) return kept;
  const bool above_half = shift <= 64 && rest > std::uint64_t{1} << (shift - 1);
  const bool half = shift <= 64 && rest == std::uint64_t{1} << (shift - 1);
  switch (rule.mode) {
    case Rounding::kNearestEven:
      return kept + (above_half || (half && (kept & 1u)) ? 1 : 0);
    case Rounding::kNearestAway:
      return kept + (above_half || half ? 1 : 0);
    case Rounding::kDown:
      return kept + (value.negative ? 1 : 0);
    case Rounding::kUp:
      return kept + (value.negative ? 0 : 1);
    case Rounding::kStochastic: {
      const int drop = shift - rule.random_bits;
      const std::uint64_t scaled = drop >= 0 ? (drop < 64 ? rest >> drop : 0) : rest << -drop;
      return kept + ((scaled + rule.random) >> rule.random_bits);
    }
    default:
      return kept;
  }
}

bool overflow_to_infinity(const Unpacked& value, const RoundingRule& rule) {
  if (rule.saturate_finite) return false;
  switch (rule.mode) {
    case Rounding::kZero:
      return false;
    case Rounding::kDown:
      return value.negative;
    case Rounding::kUp:
      return !value.negative;
    default:
      return true;
  }
}

// Magnitude 2^(code - 127); the sign does not matter. Modes rz and rp only.
std::uint64_t round_to_scale(const Unpacked& value, const RoundingRule& rule) {
  if (value.nan) return 0xFF;
  const bool up = rule.mode == Rounding::kUp;
  if (value.infinity) return rule.saturate_finite ? 0xFE : 0xFF;
  if (value.significand == 0) return 0;
  const int top = 63 - std::countl_zero(value.significand);
  const bool power_of_two = std::has_single_bit(value.significand);
  const int code = value.exponent + top + 127 + (up && !power_of_two ? 1 : 0);
  if (code > 0xFE) return rule.saturate_finite ? 0xFE : 0xFF;
  return code < 0 ? 0 : static_cast<std::uint64_t>(code);
}

}  // namespace

int format_bits(NumberFormat format) {
  switch (format) {
    case NumberFormat::kU16:
    case NumberFormat::kS16:
    case NumberFormat::kF16:
    case NumberFormat::kBF16:
      return 16;
    case NumberFormat::kU32:
    case NumberFormat::kS32:
    case NumberFormat::kF32:
    case NumberFormat::kTF32:
      return 32;
    case NumberFormat::kU64:
    case NumberFormat::kS64:
    case NumberFormat::kF64:
      return 64;
    default:
      return 8;
  }
}

Unpacked unpack(NumberFormat format, std::uint64_t bits) {
  Unpacked result;
  if (format == NumberFormat::kUE8M0) {
    bits &= 0xFFu;
    result.nan = bits == 0xFF;
    result.significand = 1;
    result.exponent = static_cast<int>(bits) - 127;
    return result;
  }
  if (is_integer(format)) {
    const int unused = 64 - format_bits(format);
    if (is_signed_integer(format)) {
      const std::int64_t value = static_cast<std::int64_t>(bits << unused) >> unused;
      result.negative = value < 0;
      result.significand = static_cast<std::uint64_t>(value);
      if (value < 0) result.significand = 0 - result.significand;
    } else {
      result.significand = (bits << unused) >> unused;
    }
    return result;
  }
  const FloatFormat f = describe(format == NumberFormat::kTF32 ? NumberFormat::kF32 : format);
  const std::uint64_t exponent_mask = (std::uint64_t{1} << f.exponent_bits) - 1;
  const std::uint64_t magnitude =
      bits & ((std::uint64_t{1} << (f.exponent_bits + f.mantissa_bits)) - 1);
  result.negative = ((bits >> (f.exponent_bits + f.mantissa_bits)) & 1u) != 0;
  if (magnitude > f.max_code) {
    result.infinity = f.infinity != 0 && magnitude == f.infinity;
    result.nan = !result.infinity;
    return result;
  }
  const auto exponent = static_cast<int>((magnitude >> f.mantissa_bits) & exponent_mask);
  result.significand = magnitude & ((std::uint64_t{1} << f.mantissa_bits) - 1);
  if (exponent != 0) result.significand |= std::uint64_t{1} << f.mantissa_bits;
  result.exponent = (exponent == 0 ? 1 : exponent) - f.bias - f.mantissa_bits;
  return result;
}

std::uint64_t round_to(NumberFormat format, const Unpacked& value, const RoundingRule& rule) {
  if (format == NumberFormat::kUE8M0) return round_to_scale(value, rule);
  const FloatFormat f = describe(format);
  const int unused = format == NumberFormat::kTF32 ? 13 : 0;
  if (value.nan) return (f.nan != 0 ? f.nan : f.max_code) << unused;
  const std::uint64_t sign =
      value.negative ? std::uint64_t{1} << (f.exponent_bits + f.mantissa_bits) : std::uint64_t{0};
  const bool unbounded = f.infinity != 0;
  std::uint64_t code = 0;
  if (value.infinity) {
    code = unbounded && !rule.saturate_finite ? f.infinity : f.max_code;
  } else if (value.significand != 0) {
    const int top = 63 - std::countl_zero(value.significand) + value.exponent;
    const int least = 1 - f.bias;
    const int scale = (top < least ? least : top) - f.mantissa_bits;
    // The leading bit, where there is one, adds one to the exponent field.
    const std::uint64_t kept = shift_rounding(value, scale - value.exponent, rule);
    const auto field = static_cast<std::uint64_t>(top < least ? 0 : top - least);
    code = top > 2048 ? f.max_code + 1 : (field << f.mantissa_bits) + kept;
    if (code > f.max_code) {
      code = unbounded && overflow_to_infinity(value, rule) ? f.infinity : f.max_code;
    }
  }
  return (sign | code) << unused;
}

Unpacked round_integral(const Unpacked& value, Rounding mode) {
  if (value.nan || value.infinity || value.exponent >= 0) return value;
  Unpacked result = value;
  result.significand = shift_rounding(value, -value.exponent, {mode, false, 0, 0});
  result.exponent = 0;
  return result;
}

std::uint64_t round_to_integer(NumberFormat format, const Unpacked& value, Rounding mode,
                               std::uint64_t nan_result) {
  if (value.nan) return nan_result;
  const int bits = format_bits(format);
  const bool is_signed = is_signed_integer(format);
  const std::uint64_t highest = (~std::uint64_t{0} >> (64 - bits)) >> (is_signed ? 1 : 0);
  const std::uint64_t lowest = is_signed ? highest + 1 : 0;  // as a magnitude
  const Unpacked whole = round_integral(value, mode);
  std::uint64_t magnitude = whole.significand;
  if (whole.infinity ||
      (whole.exponent > 0 && whole.significand != 0 &&
       (whole.exponent > 63 || std::countl_zero(whole.significand) < whole.exponent))) {
    magnitude = ~std::uint64_t{0};
  } else if (whole.exponent > 0) {
    magnitude <<= whole.exponent;
  }
  if (whole.negative) return 0 - (magnitude > lowest ? lowest : magnitude);
  return magnitude > highest ? highest : magnitude;
}

}  // namespace mxfa::emu::exec
