#include "model/convert.h"

#include <string>

#include "model/fault.h"
#include "mx/bits.h"

namespace mxfa::emu::model {
namespace {

struct Format {
  int mantissa_bits;
  int bias;
  std::uint32_t max_code;  ///< largest finite magnitude
  std::uint32_t infinity;  ///< 0 where there is none
  std::uint32_t nan;       ///< 0 where there is none
  int sign_bit;
};

constexpr Format kFormats[] = {
    {10, 15, 0x7BFF, 0x7C00, 0x7FFF, 15},      // f16
    {7, 127, 0x7F7F, 0x7F80, 0x7FFF, 15},      // bf16
    {10, 127, 0x3FBFF, 0x3FC00, 0x3FFFF, 18},  // tf32, without its 13 low zeros
    {3, 7, 0x7E, 0, 0x7F, 7},                  // e4m3
    {2, 15, 0x7B, 0x7C, 0x7F, 7},              // e5m2
    {3, 1, 0x1F, 0, 0, 5},                     // e2m3
    {2, 3, 0x1F, 0, 0, 5},                     // e3m2
    {1, 1, 0x7, 0, 0, 3},                      // e2m1
};
constexpr int kTF32Shift = 13;

const Format& format_of(SmallFloat format) { return kFormats[static_cast<int>(format)]; }

/// Bits of randomness that .rs adds at the top of the discarded bits.
int random_bits(SmallFloat format) { return format == SmallFloat::kF16 ? 13 : 16; }

/// Whether the kept magnitude goes up by one, given `drop` (1..63) discarded bits.
bool rounds_up(Rounding rounding, bool negative, std::uint64_t kept, std::uint64_t rest, int drop) {
  const std::uint64_t half = std::uint64_t{1} << (drop - 1);
  switch (rounding) {
    case Rounding::kNearestEven:
      return rest > half || (rest == half && (kept & 1u) != 0);
    case Rounding::kNearestAway:
      return rest >= half;
    case Rounding::kZero:
      return false;
    case Rounding::kDown:
      return negative && rest != 0;
    case Rounding::kUp:
      return !negative && rest != 0;
    case Rounding::kStochastic:
      break;  // decided by the carry before
  }
  return false;
}

/// The magnitude's code, rounded; may exceed max_code.
std::uint32_t round_magnitude(SmallFloat which, std::uint32_t abs, bool negative, Rounding rounding,
                              std::uint32_t random) {
  const Format& format = format_of(which);
  const std::uint32_t field = abs >> 23;
  const std::uint64_t significand = (abs & 0x7FFFFFu) | (field != 0 ? 0x800000u : 0u);
  const int exponent = (field != 0 ? static_cast<int>(field) : 1) - 127;
  const int least = 1 - format.bias;
  // A subnormal code counts steps of 2^(least - mantissa bits).
  const int deeper = exponent < least ? least - exponent : 0;
  int drop = 23 - format.mantissa_bits + deeper;
  if (drop > 60) drop = 60;  // all of 24 bits and every rounding bit are gone
  std::uint64_t kept = significand >> drop;
  const std::uint64_t rest = significand & ((std::uint64_t{1} << drop) - 1);
  if (rounding == Rounding::kStochastic) {
    const int bits = random_bits(which);
    const std::uint64_t noise = random & ((1u << bits) - 1u);
    const std::uint64_t placed = drop >= bits ? noise << (drop - bits) : noise >> (bits - drop);
    kept += (rest + placed) >> drop;
  } else if (drop > 0 && rounds_up(rounding, negative, kept, rest, drop)) {
    ++kept;
  }
  // The implicit bit of `kept` adds one to the exponent field; subnormals lack it.
  const std::int64_t exponent_field = deeper > 0 ? 0 : exponent + format.bias - 1;
  return static_cast<std::uint32_t>(
      (static_cast<std::uint64_t>(exponent_field) << format.mantissa_bits) + kept);
}

bool overflows_to_max(Rounding rounding, bool negative) {
  return rounding == Rounding::kZero || rounding == Rounding::kStochastic ||
         (rounding == Rounding::kDown && !negative) || (rounding == Rounding::kUp && negative);
}

}  // namespace

std::uint32_t encode_small(SmallFloat which, float value, const ConvertFlags& flags,
                           std::uint32_t random) {
  const Format& format = format_of(which);
  const int shift = which == SmallFloat::kTF32 ? kTF32Shift : 0;
  const std::uint32_t bits = mx::float_bits(value);
  std::uint32_t abs = bits & 0x7FFFFFFFu;
  const bool negative = bits >> 31 != 0;
  if (abs > 0x7F800000u) {
    if (which == SmallFloat::kTF32) return 0x7FFFE000u;
    return format.nan != 0 ? format.nan : format.max_code;
  }
  if (negative && flags.relu) return 0;
  if (flags.ftz && abs < 0x00800000u) abs = 0;
  const std::uint32_t sign = negative ? 1u << format.sign_bit : 0u;
  const bool saturates = flags.satfinite || format.infinity == 0;
  std::uint32_t code = 0;
  if (abs == 0x7F800000u) {
    code = saturates ? format.max_code : format.infinity;
  } else {
    code = round_magnitude(which, abs, negative, flags.rounding, random);
    if (code > format.max_code) {
      code = saturates || overflows_to_max(flags.rounding, negative) ? format.max_code
                                                                     : format.infinity;
    }
  }
  return (sign | code) << shift;
}

float decode_small(SmallFloat which, std::uint32_t code) {
  if (which == SmallFloat::kTF32) {
    const std::uint32_t bits = code & 0xFFFFE000u;
    return (bits & 0x7FFFFFFFu) > 0x7F800000u ? mx::bits_float(0x7FFFFFFFu) : mx::bits_float(bits);
  }
  const Format& format = format_of(which);
  const std::uint32_t sign = (code >> format.sign_bit & 1u) << 31;
  const std::uint32_t abs = code & ((1u << format.sign_bit) - 1u);
  if (abs > format.max_code) {
    if (format.infinity != 0 && abs == format.infinity) return mx::bits_float(sign | 0x7F800000u);
    return mx::bits_float(0x7FFFFFFFu);
  }
  const std::uint32_t field = abs >> format.mantissa_bits;
  const std::uint32_t mantissa = abs & ((1u << format.mantissa_bits) - 1u);
  // The step below the exponent, as a power of two of FP32: both factors are exact.
  const int exponent = static_cast<int>(field != 0 ? field : 1u) - format.bias;
  const std::uint32_t significand = mantissa | (field != 0 ? 1u << format.mantissa_bits : 0u);
  const int unit = exponent - format.mantissa_bits;
  const float scale = unit < -126 ? mx::bits_float(1u << (unit + 149))
                                  : mx::bits_float(static_cast<std::uint32_t>(unit + 127) << 23);
  const float magnitude = static_cast<float>(significand) * scale;
  return mx::bits_float(sign | mx::float_bits(magnitude));
}

std::uint16_t small_to_f16(SmallFloat format, std::uint32_t code, bool relu) {
  ConvertFlags flags;
  flags.relu = relu;
  return static_cast<std::uint16_t>(
      encode_small(SmallFloat::kF16, decode_small(format, code), flags));
}

std::uint8_t encode_ue8m0(float value, Rounding rounding, bool satfinite) {
  if (rounding != Rounding::kZero && rounding != Rounding::kUp) {
    fault("cvt.ue8m0x2 rounding", ".rz or .rp", std::to_string(static_cast<int>(rounding)));
  }
  const std::uint32_t abs = mx::float_bits(value) & 0x7FFFFFFFu;
  if (abs > 0x7F800000u) return 0xFF;
  if (abs == 0x7F800000u) return satfinite ? 0xFE : 0xFF;
  std::uint32_t exponent = abs >> 23;
  const std::uint32_t mantissa = abs & 0x7FFFFFu;
  // Code 0 is 2^-127, the subnormal with only the top mantissa bit; zero has no code and takes it.
  const bool above = exponent == 0 ? mantissa > 0x400000u : mantissa != 0;
  if (rounding == Rounding::kUp && above) ++exponent;
  if (exponent == 0xFF && satfinite) exponent = 0xFE;
  return static_cast<std::uint8_t>(exponent);
}

std::uint16_t ue8m0_to_bf16(std::uint8_t code) {
  if (code == 0xFF) return 0x7FFF;
  return code == 0 ? std::uint16_t{0x0040} : static_cast<std::uint16_t>(code << 7);
}

}  // namespace mxfa::emu::model
