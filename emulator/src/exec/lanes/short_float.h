#pragma once

#include "exec/lanes/float_math.h"
#include "mx/bits.h"
#include "mx/fp8.h"

/// Formats of 8 and 16 bits as vector code: no branches, no loops, no tables.
namespace mxfa::emu::exec::MXEMU_ISA {
namespace {

template <class Format>
struct Fp8Code {
  static constexpr int kBits = 8;
  static constexpr int kMantissaBits = Format::kMantissaBits;
  static constexpr int kMinExponent = 1 - Format::kBias;  ///< of the smallest normal value
  static constexpr U32 kOverflow = Format::kMaxCode;      ///< what is too large becomes this
  static constexpr U32 kNan = Format::kNanCode;
};
struct F16Code {
  static constexpr int kBits = 16;
  static constexpr int kMantissaBits = 10;
  static constexpr int kMinExponent = -14;
  static constexpr U32 kOverflow = 0x7C00u;
  static constexpr U32 kNan = 0x7FFFu;
};

template <class T>
[[gnu::always_inline]] inline T at_least(T value, T least) {
  return value < least ? least : value;
}
template <class T>
[[gnu::always_inline]] inline T at_most(T value, T most) {
  return value > most ? most : value;
}

/// Of a magnitude that the format has, or that is too large for it, or NaN.
template <class Code>
[[gnu::always_inline]] inline U32 exact_code(float magnitude, U32 sign) {
  constexpr int kDropped = 23 - Code::kMantissaBits;
  constexpr U32 kMinNormal = static_cast<U32>(127 + Code::kMinExponent) << 23;
  constexpr U32 kRebias = static_cast<U32>(126 + Code::kMinExponent) << 23;
  const U32 bits = bits_of(magnitude);
  const U32 normal = (bits - kRebias) >> kDropped;
  // Below the smallest normal value: its mantissa counts steps once that value has been added.
  const U32 steps = (bits_of(magnitude + float_of(kMinNormal)) - kMinNormal) >> kDropped;
  const U32 code = at_most(bits < kMinNormal ? steps : normal, Code::kOverflow);
  return bits > 0x7F800000u ? Code::kNan : code | sign << (Code::kBits - 1);
}

/// Rounded to nearest even. To add a number whose last bit is worth what the format's is, and to
/// subtract it, rounds to that bit.
template <class Code>
[[gnu::always_inline]] inline U32 encode_short(float value) {
  constexpr U32 kMinNormal = static_cast<U32>(127 + Code::kMinExponent) << 23;
  constexpr U32 kTooLarge = (127u + 17u) << 23;  // for any of these formats
  const U32 magnitude = bits_of(value) & 0x7FFFFFFFu;
  const U32 exponent = at_most(at_least(magnitude & 0x7F800000u, kMinNormal), kTooLarge);
  const float shift = float_of((exponent + ((23u - Code::kMantissaBits) << 23)) | 0x400000u);
  return exact_code<Code>((float_of(magnitude) + shift) - shift, bits_of(value) >> 31);
}

/// The magnitude rounded to the mantissa bits of a format whose smallest normal value is
/// 2^kMinExponent; what is left is exact in FP32, or infinite.
template <int kMantissaBits, int kMinExponent>
[[gnu::always_inline]] inline float round_magnitude(double value) {
  constexpr I64 kMinNormal = I64{1023 + kMinExponent} << 52;
  constexpr I64 kTooLarge = I64{1023 + 300} << 52;
  const U64 magnitude = bits_of(value) & ~(U64{1} << 63);
  const I64 exponent =
      at_most(at_least(static_cast<I64>(magnitude & (U64{0x7FF} << 52)), kMinNormal), kTooLarge);
  const double shift = double_of(
      (static_cast<U64>(exponent) + (static_cast<U64>(52 - kMantissaBits) << 52)) | U64{1} << 51);
  return static_cast<float>((double_of(magnitude) + shift) - shift);
}

[[gnu::always_inline]] inline U32 sign_of(double value) {
  return static_cast<U32>(bits_of(value) >> 63);
}

/// What arithmetic on 16-bit registers needs of a format.
struct F16Number {
  static constexpr bool kFlushes = true;  ///< has .ftz
  static float decode(U32 code) { return mx::decode_f16(static_cast<std::uint16_t>(code)); }
  static U32 encode(float value) { return encode_short<F16Code>(value); }
  static U32 encode(double value) {
    return exact_code<F16Code>(round_magnitude<10, -14>(value), sign_of(value));
  }
  /// A positive value without the bits that the format does not have.
  static double cut(double value) {
    const double above = value < 0x1p-14 ? 0x1p-14 : 0.0;
    return double_of(bits_of(value + above) & ~U64{0} << 42) - above;
  }
};
struct BF16Number {
  static constexpr bool kFlushes = false;
  static float decode(U32 code) { return float_of(code << 16); }
  static U32 encode(float value) {
    return value != value ? F16Code::kNan : U32{mx::encode_bf16(value)};
  }
  static U32 encode(double value) {
    const U32 bits = bits_of(round_magnitude<7, -126>(value)) >> 16;
    return value != value ? F16Code::kNan : bits | sign_of(value) << 15;
  }
  /// As of FP16; subnormal values become 0.
  static double cut(double value) {
    return value < 0x1p-126 ? 0.0 : double_of(bits_of(value) & ~U64{0} << 45);
  }
};

}  // namespace
}  // namespace mxfa::emu::exec::MXEMU_ISA
