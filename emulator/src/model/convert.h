#pragma once

#include <cstdint>

/// The cvt instructions between FP32 and the short formats, one element at a time. Sources: PTX ISA
/// 9.0, section 9.7.9.21; table of ue8m0 results from the CUDA 13.0 headers' host definition.
/// Packing: the first source operand goes to the upper half (pack_* below).
/// NaN results are positive and canonical: all ones, for TF32 0x7FFFE000.
/// Compared with an H200 over 80,000 inputs a form, bit for bit: f16, bf16, tf32, e4m3 and e5m2
/// with .rn, .rz, .rm, .rp, .relu and .satfinite. Only .rna to TF32 differs, in the payloads of
/// NaNs. Unconfirmed: the forms that need Blackwell, above all which random bits .rs takes for the
/// 8-bit types (here the 16 bits of the pair stand at the top of the discarded bits, the same for
/// both).
namespace mxfa::emu::model {

enum class SmallFloat : std::uint8_t { kF16, kBF16, kTF32, kE4M3, kE5M2, kE2M3, kE3M2, kE2M1 };

enum class Rounding : std::uint8_t {
  kNearestEven,  ///< .rn
  kNearestAway,  ///< .rna
  kZero,         ///< .rz
  kDown,         ///< .rm
  kUp,           ///< .rp
  kStochastic,   ///< .rs
};

struct ConvertFlags {
  Rounding rounding = Rounding::kNearestEven;
  bool satfinite = false;  ///< beyond the largest value (infinity too): the largest value
  bool relu = false;       ///< negative results become +0
  bool ftz = false;        ///< subnormal FP32 inputs become zeros of the same sign
};

/// FP32 to a short format. Codes lie in the low bits; TF32 is the 32-bit pattern. `random` serves
/// .rs: 13 bits for f16, 16 for the others. Formats without infinity always saturate, formats
/// without NaN turn NaN into the largest positive value.
std::uint32_t encode_small(SmallFloat format, float value, const ConvertFlags& flags = {},
                           std::uint32_t random = 0);
/// Exact. NaN codes give the canonical 0x7FFFFFFF.
float decode_small(SmallFloat format, std::uint32_t code);

/// cvt.rn{.relu}.f16x2.{e4m3x2, e5m2x2, e2m3x2, e3m2x2, e2m1x2}, one element: exact.
std::uint16_t small_to_f16(SmallFloat format, std::uint32_t code, bool relu = false);

/// cvt.{rz,rp}{.satfinite}.ue8m0x2.{f32, bf16x2}, one element; the sign is ignored.
std::uint8_t encode_ue8m0(float value, Rounding rounding, bool satfinite);
/// cvt.rn.bf16x2.ue8m0x2, one element: exact.
std::uint16_t ue8m0_to_bf16(std::uint8_t code);

/// The first operand in the upper half.
constexpr std::uint32_t pack_16(std::uint32_t first, std::uint32_t second) {
  return (first & 0xFFFFu) << 16 | (second & 0xFFFFu);
}
constexpr std::uint16_t pack_8(std::uint32_t first, std::uint32_t second) {
  return static_cast<std::uint16_t>((first & 0xFFu) << 8 | (second & 0xFFu));
}
constexpr std::uint8_t pack_4(std::uint32_t first, std::uint32_t second) {
  return static_cast<std::uint8_t>((first & 0xFu) << 4 | (second & 0xFu));
}

}  // namespace mxfa::emu::model
