#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "mx/bits.h"

/// One element of D = A*B + D as a tensor core computes it: a single fused sum of K products and
/// the old accumulator. The scalar definition; faster code is compared with it bit for bit.
///
/// Sources: the published model of MMA-Sim (arXiv 2511.10909), but that products with a zero take
/// no part in the alignment. Compared with an H200, bit for bit (wgmma of e4m3, e5m2, f16, bf16 and
/// tf32 to f32 and f16, specials, subnormals and tiny accumulators included): FP8 keeps 13 fraction
/// bits, the accumulator included, truncated toward zero, the other types 25; an f16 result rounds
/// to nearest even. The PTX ISA itself promises only A*B+D. Unconfirmed: Blackwell (no such card at
/// hand); the exponent of a subnormal f16 accumulator (here -14) beside products below 2^-14.
namespace mxfa::mx {

/// Element types of multiplicands. The exponent of a subnormal is its format's least one.
enum class MmaType : std::uint8_t { kE4M3, kE5M2, kE2M3, kE3M2, kE2M1, kF16, kBF16, kTF32 };

constexpr int min_exponent(MmaType type) {
  switch (type) {
    case MmaType::kE4M3:
      return -6;
    case MmaType::kE5M2:
      return -14;
    case MmaType::kE2M3:
      return 0;
    case MmaType::kE3M2:
      return -2;
    case MmaType::kE2M1:
      return 0;
    case MmaType::kF16:
      return -14;
    case MmaType::kBF16:
      return -126;
    case MmaType::kTF32:
      return -126;
  }
  return -126;
}

/// How the terms are added and what the result keeps.
struct AccumulatorRule {
  /// Terms are truncated toward zero to this many bits below the largest exponent; 0 = exact sum,
  /// rounded once to nearest even.
  int fraction_bits = 0;
  /// Fraction bits of an FP32 result, truncated toward zero. FP16 results round to nearest even.
  int result_bits = 23;
  friend constexpr bool operator==(const AccumulatorRule&, const AccumulatorRule&) = default;
};
inline constexpr AccumulatorRule kExactAccumulator{0, 23};
inline constexpr AccumulatorRule kHopperFp8Accumulator{13, 13};      ///< wgmma, e4m3 and e5m2
inline constexpr AccumulatorRule kHopperFp8HalfAccumulator{13, 10};  ///< the same, f16 results
inline constexpr AccumulatorRule kHopperF16Accumulator{25, 23};      ///< wgmma, f16, bf16 and tf32
inline constexpr AccumulatorRule kBlackwellAccumulator{25, 23};      ///< tcgen05, all of them

/// The significand (an integer) and the exponent of a finite value: significand * 2^(exponent-23),
/// with exponent >= least and the leading bit at 23 unless the value is subnormal there.
struct FloatParts {
  std::int64_t significand = 0;
  int exponent = 0;
};
constexpr FloatParts float_parts(float value, int least) {
  const std::uint32_t bits = float_bits(value);
  int exponent = static_cast<int>((bits >> 23) & 0xFFu) - 127;
  std::int64_t significand = bits & 0x7FFFFFu;
  if (exponent == -127) {
    exponent = -126;
  } else {
    significand |= 0x800000;
  }
  // Exact for every value of the format: its step is 2^(least - fraction bits), at least 2^-149.
  if (significand != 0 && exponent < least) {
    const int shift = least - exponent;
    significand = shift < 24 ? significand >> shift : 0;
    exponent = least;
  }
  return {(bits >> 31) ? -significand : significand, exponent};
}

/// value * 2^exponent
struct FixedPoint {
  std::int64_t value = 0;
  int exponent = 0;
};

namespace detail {

/// Shifts the magnitude; to the right it truncates toward zero.
constexpr std::int64_t shift_truncating(std::int64_t value, int shift) {
  if (value == 0) return 0;  // its exponent, and so the shift, may be anything
  if (shift >= 0) return value * (std::int64_t{1} << shift);
  if (shift <= -63) return 0;
  return value < 0 ? -((-value) >> -shift) : value >> -shift;
}

constexpr int leading_bit(std::uint64_t value) { return 63 - std::countl_zero(value); }

/// The nearest double below or above `high`, whichever has an odd last bit, where `rest` != 0 is
/// what `high` misses: rounding that to a shorter format equals rounding the sum itself.
inline double round_to_odd(double high, double rest) {
  if (rest == 0.0 || !std::isfinite(high)) return high;
  std::uint64_t bits = std::bit_cast<std::uint64_t>(high);
  if ((bits & 1u) == 0) bits += (rest > 0.0) == (high > 0.0) ? 1 : -1;
  return std::bit_cast<double>(bits);
}

/// Double to float with an odd last bit where inexact.
inline float round_to_odd_float(double value) {
  const float nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || !std::isfinite(value)) return nearest;
  std::uint32_t bits = float_bits(nearest);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --bits;  // now truncated
  return bits_float(bits | 1u);
}

/// The sum of finite terms without any rounding but the last, which is to odd. `partials` is
/// scratch: it holds a non-overlapping expansion (Shewchuk 1997).
inline double exact_sum(std::span<const double> terms, std::vector<double>& partials) {
  partials.clear();
  for (double x : terms) {
    std::size_t kept = 0;
    for (double y : partials) {
      if (std::fabs(x) < std::fabs(y)) std::swap(x, y);
      const double high = x + y;
      const double low = y - (high - x);
      if (low != 0.0) partials[kept++] = low;
      x = high;
    }
    partials.resize(kept);
    partials.push_back(x);
  }
  if (partials.empty()) return 0.0;
  double high = partials.back();
  double rest = 0.0;
  for (std::size_t i = partials.size() - 1; i-- > 0 && rest == 0.0;) {
    const double sum = high + partials[i];
    rest = partials[i] - (sum - high);
    high = sum;
  }
  return high == 0.0 ? 0.0 : round_to_odd(high, rest);  // a zero sum is +0
}

}  // namespace detail

/// FP32 from a fixed-point sum, truncated toward zero to `bits` fraction bits. Subnormals are kept,
/// magnitudes of 2^128 or more become infinity, zero is +0.
inline float truncate_to_f32(FixedPoint sum, int bits) {
  if (sum.value == 0) return 0.0f;
  std::uint64_t magnitude = static_cast<std::uint64_t>(sum.value < 0 ? -sum.value : sum.value);
  const int top = detail::leading_bit(magnitude) + sum.exponent;
  const float sign = sum.value < 0 ? -1.0f : 1.0f;
  if (top >= 128) return sign * HUGE_VALF;
  const int lowest = (top < -126 ? -126 : top) - bits;
  if (lowest > sum.exponent) {
    const int drop = lowest - sum.exponent;
    magnitude = drop > 63 ? 0 : (magnitude >> drop) << drop;
  }
  return sign * static_cast<float>(std::ldexp(static_cast<double>(magnitude), sum.exponent));
}

/// FP16 from a fixed-point sum, nearest even; 65520 and more become infinity.
inline std::uint16_t round_to_f16(FixedPoint sum) {
  // At most 37 significant bits: exact in double.
  const double value = std::ldexp(static_cast<double>(sum.value), sum.exponent);
  return encode_f16(detail::round_to_odd_float(value));
}

/// One dot product. Operands are decoded values of their types, `scale_exponent` the sum of both
/// block scales' exponents (byte - 127 each), 0 where there are none.
struct MmaElement {
  MmaType type_a = MmaType::kE4M3;
  MmaType type_b = MmaType::kE4M3;
  AccumulatorRule rule;
  int scale_exponent = 0;

  /// The aligned, truncated sum of finite terms. Needs rule.fraction_bits in 1..30, K <= 256.
  FixedPoint aligned_sum(std::span<const float> a, std::span<const float> b, float c,
                         int least_c) const {
    const FloatParts parts_c = float_parts(c, least_c);
    int top = parts_c.significand != 0 ? parts_c.exponent : kNothing;
    for (std::size_t k = 0; k < a.size(); ++k) {
      if (a[k] == 0.0f || b[k] == 0.0f) continue;
      const int exponent = product_exponent(a[k], b[k]);
      top = exponent > top ? exponent : top;
    }
    if (top == kNothing) return {};
    std::int64_t sum = detail::shift_truncating(parts_c.significand,
                                                rule.fraction_bits - 23 + parts_c.exponent - top);
    for (std::size_t k = 0; k < a.size(); ++k) {
      if (a[k] == 0.0f || b[k] == 0.0f) continue;
      const FloatParts x = float_parts(a[k], min_exponent(type_a));
      const FloatParts y = float_parts(b[k], min_exponent(type_b));
      const int exponent = x.exponent + y.exponent + scale_exponent;
      sum += detail::shift_truncating(x.significand * y.significand,
                                      rule.fraction_bits - 46 + exponent - top);
    }
    return {sum, top - rule.fraction_bits};
  }

  /// D in FP32. NaN results are the canonical 0x7FFFFFFF.
  float f32(std::span<const float> a, std::span<const float> b, float c) const {
    const double special = special_sum(a, b, c);
    if (std::isnan(special)) return bits_float(0x7FFFFFFFu);
    if (std::isinf(special)) return static_cast<float>(special);
    if (rule.fraction_bits == 0) return static_cast<float>(exact(a, b, c));
    return truncate_to_f32(aligned_sum(a, b, c, -126), rule.result_bits);
  }

  /// D in FP16. NaN results are the canonical 0x7FFF.
  std::uint16_t f16(std::span<const float> a, std::span<const float> b, std::uint16_t c) const {
    const float addend = decode_f16(c);
    const double special = special_sum(a, b, addend);
    if (std::isnan(special)) return 0x7FFFu;
    if (std::isinf(special)) return special > 0 ? 0x7C00u : 0xFC00u;
    if (rule.fraction_bits == 0) {
      return encode_f16(detail::round_to_odd_float(exact(a, b, addend)));
    }
    return round_to_f16(aligned_sum(a, b, addend, -14));
  }

 private:
  static constexpr int kNothing = -100000;

  int product_exponent(float x, float y) const {
    return float_parts(x, min_exponent(type_a)).exponent +
           float_parts(y, min_exponent(type_b)).exponent + scale_exponent;
  }
  /// NaN or an infinity where the exact sum is one, else 0.
  static double special_sum(std::span<const float> a, std::span<const float> b, float c) {
    double sum = is_finite(c) ? 0.0 : static_cast<double>(c);
    for (std::size_t k = 0; k < a.size(); ++k) {
      if (is_finite(a[k]) && is_finite(b[k])) continue;
      sum += static_cast<double>(a[k]) * static_cast<double>(b[k]);
    }
    return sum;
  }
  double exact(std::span<const float> a, std::span<const float> b, float c) const {
    std::vector<double> terms;
    std::vector<double> partials;
    for (std::size_t k = 0; k < a.size(); ++k) {
      terms.push_back(
          std::ldexp(static_cast<double>(a[k]) * static_cast<double>(b[k]), scale_exponent));
    }
    terms.push_back(c);
    return detail::exact_sum(terms, partials);
  }
};

}  // namespace mxfa::mx
