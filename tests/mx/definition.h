#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "mxfa/types.h"

/// The MX format written a second time, from the words of the two OCP specifications and in double
/// precision (where every product and comparison below is exact). It shares no code with src/mx.
namespace mxfa::testing {

struct FormatFacts {
  int exponent_bits;
  int mantissa_bits;
  int bias;
  int max_code;      ///< largest finite magnitude
  double max_value;  ///< its value
  int max_exponent;
};

inline FormatFacts facts_of(DType format) {
  if (format == DType::kE4M3) return {4, 3, 7, 0x7E, 448.0, 8};
  return {5, 2, 15, 0x7B, 57344.0, 15};
}

/// Value of a code by the format's formula; NaN and infinity for the special codes.
inline double code_value(DType format, int code) {
  const FormatFacts facts = facts_of(format);
  const double sign = code & 0x80 ? -1.0 : 1.0;
  const int magnitude = code & 0x7F;
  if (magnitude > facts.max_code) {
    const bool infinite = format == DType::kE5M2 && magnitude == 0x7C;
    return infinite ? sign * std::numeric_limits<double>::infinity()
                    : std::numeric_limits<double>::quiet_NaN();
  }
  const int exponent = magnitude >> facts.mantissa_bits;
  const int mantissa = magnitude & ((1 << facts.mantissa_bits) - 1);
  const double fraction = std::ldexp(mantissa, -facts.mantissa_bits);
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - facts.bias);
  return sign * std::ldexp(1.0 + fraction, exponent - facts.bias);
}

/// The nearest finite code by search over all of them: ties to the even code, too large saturates.
class NearestCode {
 public:
  explicit NearestCode(DType format) : max_code_(facts_of(format).max_code) {
    for (int code = 0; code <= max_code_; ++code) values_.push_back(code_value(format, code));
  }

  std::uint8_t operator()(double value) const {
    if (std::isnan(value)) return 0x7F;
    const int sign = std::signbit(value) ? 0x80 : 0;
    const double magnitude = std::abs(value);
    const auto above = std::lower_bound(values_.begin(), values_.end(), magnitude);
    if (above == values_.end()) return static_cast<std::uint8_t>(sign | max_code_);
    const int high = static_cast<int>(above - values_.begin());
    if (high == 0) return static_cast<std::uint8_t>(sign);
    const double up = values_[high] - magnitude;
    const double down = magnitude - values_[high - 1];
    const bool take_high = up < down || (up == down && high % 2 == 0);
    return static_cast<std::uint8_t>(sign | (take_high ? high : high - 1));
  }

 private:
  int max_code_;
  std::vector<double> values_;
};

/// The scale of a block: the smallest e in 0..254 with amax <= max * 2^(e-127) (round up), or
/// floor(log2(amax)) - emax + 127, at least 0 (floor). NaN and infinity give 255, zero gives 0.
inline int scale_of_amax(DType format, double amax, ScaleRule rule) {
  if (!std::isfinite(amax)) return 255;
  if (amax == 0) return 0;
  const FormatFacts facts = facts_of(format);
  if (rule == ScaleRule::kFloor) {
    return std::max(0, std::ilogb(amax) - facts.max_exponent + 127);
  }
  int scale = 0;
  while (amax > std::ldexp(facts.max_value, scale - 127)) ++scale;
  return scale;
}

struct DefinedBlock {
  std::uint8_t scale = 0;
  std::vector<std::uint8_t> codes;
};

inline DefinedBlock define_block(DType format, ScaleRule rule, std::span<const float> values) {
  static const NearestCode nearest_e4m3(DType::kE4M3);
  static const NearestCode nearest_e5m2(DType::kE5M2);
  const NearestCode& nearest = format == DType::kE4M3 ? nearest_e4m3 : nearest_e5m2;
  double amax = 0;
  bool poisoned = false;
  for (const float value : values) {
    poisoned = poisoned || !std::isfinite(value);
    amax = std::max(amax, std::abs(static_cast<double>(value)));
  }
  DefinedBlock block;
  if (poisoned) return {0xFF, std::vector<std::uint8_t>(values.size(), 0x7F)};
  block.scale = static_cast<std::uint8_t>(scale_of_amax(format, amax, rule));
  for (const float value : values) {
    block.codes.push_back(nearest(std::ldexp(static_cast<double>(value), 127 - block.scale)));
  }
  return block;
}

}  // namespace mxfa::testing
