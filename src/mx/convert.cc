#include "mx/convert.h"

#include "core/check.h"
#include "core/simd_clones.h"
#include "mx/bits.h"
#include "mx/fp8.h"

namespace mxfa::mx {
namespace {

/// `yes` where `condition` holds, else `no`. Masks rather than ?:, because the compiler sinks a
/// floating-point operand into the branch that needs it and then cannot vectorize.
inline std::uint32_t select(bool condition, std::uint32_t yes, std::uint32_t no) {
  const std::uint32_t mask = 0u - static_cast<std::uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

/// encode_fp8 without branches, so that the loops around it vectorize.
template <class Format>
inline std::uint8_t encode_branchless(float value) {
  constexpr int kDropped = 23 - Format::kMantissaBits;
  constexpr std::uint32_t kMaxBits = float_bits(Format::kMaxValue);
  constexpr std::uint32_t kMinNormalBits = static_cast<std::uint32_t>(128 - Format::kBias) << 23;
  constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - Format::kBias) << 23;
  // Adding 2^23 subnormal steps leaves the step count, rounded to nearest even, in the mantissa.
  constexpr std::uint32_t kMagicBits =
      static_cast<std::uint32_t>(128 - Format::kBias - Format::kMantissaBits + 23) << 23;
  const std::uint32_t bits = float_bits(value);
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  const std::uint32_t abs = bits & 0x7FFFFFFFu;
  const std::uint32_t capped = abs < kMaxBits ? abs : kMaxBits;
  const std::uint32_t steps = float_bits(bits_float(capped) + bits_float(kMagicBits)) - kMagicBits;
  const std::uint32_t half = (1u << (kDropped - 1)) - 1u;
  const std::uint32_t normal = (capped + half + ((capped >> kDropped) & 1u) - kRebias) >> kDropped;
  const std::uint32_t code = sign | select(capped < kMinNormalBits, steps, normal);
  return static_cast<std::uint8_t>(select(abs > 0x7F800000u, Format::kNanCode, code));
}

/// decode_fp8 without branches.
template <class Format>
inline float decode_branchless(std::uint8_t code) {
  constexpr std::uint32_t kMinNormal = 1u << Format::kMantissaBits;
  constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - Format::kBias) << 23;
  constexpr std::uint32_t kStepBits =
      static_cast<std::uint32_t>(128 - Format::kBias - Format::kMantissaBits) << 23;
  constexpr bool kHasInfinity = Format::kMaxCode + 1u != Format::kNanCode;
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80u) << 24;
  const std::uint32_t abs = code & 0x7Fu;
  const float steps = static_cast<float>(static_cast<std::int32_t>(abs)) * bits_float(kStepBits);
  const std::uint32_t normal = (abs << (23 - Format::kMantissaBits)) + kRebias;
  const std::uint32_t finite = select(abs < kMinNormal, float_bits(steps), normal);
  const bool infinite = kHasInfinity && abs == Format::kMaxCode + 1u;
  const std::uint32_t special = select(infinite, 0x7F800000u, 0x7FC00000u);
  return bits_float(sign | select(abs > Format::kMaxCode, special, finite));
}

// Plain functions, since clones of a template cannot be made. No other names may alias the output:
// __restrict lets the loops vectorize without run-time overlap checks.
MXFA_SIMD_CLONES void encode_e4m3_row(const float* __restrict values,
                                      const float* __restrict inverse,
                                      std::uint8_t* __restrict codes, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    codes[i] = encode_branchless<E4M3>(values[i] * inverse[i]);
}
MXFA_SIMD_CLONES void encode_e5m2_row(const float* __restrict values,
                                      const float* __restrict inverse,
                                      std::uint8_t* __restrict codes, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    codes[i] = encode_branchless<E5M2>(values[i] * inverse[i]);
}
MXFA_SIMD_CLONES void decode_e4m3_row(const std::uint8_t* __restrict codes,
                                      const float* __restrict scales, float* __restrict values,
                                      std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    values[i] = decode_branchless<E4M3>(codes[i]) * scales[i];
}
MXFA_SIMD_CLONES void decode_e5m2_row(const std::uint8_t* __restrict codes,
                                      const float* __restrict scales, float* __restrict values,
                                      std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    values[i] = decode_branchless<E5M2>(codes[i]) * scales[i];
}

[[noreturn]] void refuse_format(DType format) {
  throw Error(ErrorKind::kInvalidArgument,
              fmt::format("format: expected e4m3 or e5m2, got {}", dtype_name(format)));
}

}  // namespace

void encode_row(DType format, const float* values, const float* inverse, std::uint8_t* codes,
                std::int64_t count) {
  if (format == DType::kE4M3) return encode_e4m3_row(values, inverse, codes, count);
  if (format == DType::kE5M2) return encode_e5m2_row(values, inverse, codes, count);
  refuse_format(format);
}

void decode_row(DType format, const std::uint8_t* codes, const float* scales, float* values,
                std::int64_t count) {
  if (format == DType::kE4M3) return decode_e4m3_row(codes, scales, values, count);
  if (format == DType::kE5M2) return decode_e5m2_row(codes, scales, values, count);
  refuse_format(format);
}

MXFA_SIMD_CLONES std::uint32_t max_magnitude(const float* values, std::int64_t count) {
  // Signed compares: magnitudes fit in 31 bits, and SSE2 has no unsigned maximum.
  std::int32_t top = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = static_cast<std::int32_t>(float_bits(values[i]) & 0x7FFFFFFFu);
    top = bits > top ? bits : top;
  }
  return static_cast<std::uint32_t>(top);
}

MXFA_SIMD_CLONES void max_magnitude_columns(const float* __restrict values,
                                            std::uint32_t* __restrict top, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = static_cast<std::int32_t>(float_bits(values[i]) & 0x7FFFFFFFu);
    const auto old = static_cast<std::int32_t>(top[i]);
    top[i] = static_cast<std::uint32_t>(bits > old ? bits : old);
  }
}

MXFA_SIMD_CLONES void decode_bf16_row(const std::uint16_t* __restrict codes,
                                      float* __restrict values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) values[i] = decode_bf16(codes[i]);
}

MXFA_SIMD_CLONES void decode_f16_row(const std::uint16_t* __restrict codes,
                                     float* __restrict values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t sign = static_cast<std::uint32_t>(codes[i] & 0x8000u) << 16;
    const std::uint32_t abs = codes[i] & 0x7FFFu;
    const float steps =
        static_cast<float>(static_cast<std::int32_t>(abs)) * bits_float(0x33800000u);
    const std::uint32_t normal = (abs << 13) + (112u << 23);
    const std::uint32_t finite = select(abs < 0x400u, float_bits(steps), normal);
    // Infinity and NaN: the exponent field goes from 31 to 255, the payload stays.
    const std::uint32_t special = (abs << 13) | 0x7F800000u;
    values[i] = bits_float(sign | select(abs >= 0x7C00u, special, finite));
  }
}

MXFA_SIMD_CLONES void encode_bf16_row(const float* __restrict values,
                                      std::uint16_t* __restrict codes, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t bits = float_bits(values[i]);
    const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    const std::uint32_t quiet = (bits >> 16) | 0x0040u;
    codes[i] =
        static_cast<std::uint16_t>(select((bits & 0x7FFFFFFFu) > 0x7F800000u, quiet, rounded));
  }
}

MXFA_SIMD_CLONES void encode_f16_row(const float* __restrict values,
                                     std::uint16_t* __restrict codes, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t bits = float_bits(values[i]);
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    const std::uint32_t abs = bits & 0x7FFFFFFFu;
    const std::uint32_t capped = abs < 0x477FF000u ? abs : 0x47800000u;  // 65520 and up: infinity
    // 0.5 is 2^23 steps of 2^-24.
    const std::uint32_t steps = float_bits(bits_float(capped) + 0.5f) - 0x3F000000u;
    const std::uint32_t normal = (capped + 0x0FFFu + ((capped >> 13) & 1u) - 0x38000000u) >> 13;
    const std::uint32_t code = sign | select(capped < 0x38800000u, steps, normal);
    codes[i] = static_cast<std::uint16_t>(select(abs > 0x7F800000u, sign | 0x7E00u, code));
  }
}

}  // namespace mxfa::mx
