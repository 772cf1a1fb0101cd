#pragma once

#include <cstdint>

/// Exact values and their rounding into any float format of PTX: the definition that all
/// conversions follow. Sources: PTX ISA 9.0, sections 5.2.3 (formats) and 9.7.9.21 (cvt).
namespace mxfa::emu::exec {

enum class NumberFormat : std::uint8_t {
  kU8,
  kU16,
  kU32,
  kU64,
  kS8,
  kS16,
  kS32,
  kS64,
  kF16,
  kBF16,
  kTF32,
  kF32,
  kF64,
  kE4M3,
  kE5M2,
  kE2M3,
  kE3M2,
  kE2M1,
  kUE8M0,
};
constexpr bool is_integer(NumberFormat f) { return f <= NumberFormat::kS64; }
constexpr bool is_signed_integer(NumberFormat f) {
  return f >= NumberFormat::kS8 && f <= NumberFormat::kS64;
}
/// Bits of one element.
int format_bits(NumberFormat format);

enum class Rounding : std::uint8_t {
  kNearestEven,
  kNearestAway,  ///< ties away from zero (rna)
  kZero,
  kDown,
  kUp,
  kStochastic,  ///< adds `random` below the last bit
};

/// (-1)^negative * significand * 2^exponent, or NaN, or infinity.
struct Unpacked {
  bool nan = false;
  bool infinity = false;
  bool negative = false;
  std::uint64_t significand = 0;
  int exponent = 0;
  bool is_zero() const { return !nan && !infinity && significand == 0; }
};

Unpacked unpack(NumberFormat format, std::uint64_t bits);

struct RoundingRule {
  Rounding mode = Rounding::kNearestEven;
  bool saturate_finite = false;  ///< overflow and infinity give the largest finite value
  std::uint32_t random = 0;      ///< kStochastic
  int random_bits = 0;
};
/// To a float format. NaN becomes the format's canonical one (the largest value where it has none).
std::uint64_t round_to(NumberFormat format, const Unpacked& value, const RoundingRule& rule);

/// The integral value nearest in the sense of `mode`.
Unpacked round_integral(const Unpacked& value, Rounding mode);

/// To an integer format; values out of range are clamped, `nan_result` is returned for NaN.
std::uint64_t round_to_integer(NumberFormat format, const Unpacked& value, Rounding mode,
                               std::uint64_t nan_result);

}  // namespace mxfa::emu::exec
