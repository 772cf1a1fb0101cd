#pragma once

#include <cstdint>

#include "mxfa/types.h"

/// Loops over contiguous values that compile to vector code. Each gives bit for bit what the scalar
/// definition beside its name gives; `format` is kE4M3 or kE5M2, anything else throws Error.
namespace mxfa::mx {

/// codes[i] = encode_fp8(values[i] * inverse[i]). A NaN in `inverse` (the inverse of scale 0xFF)
/// gives the NaN code.
void encode_row(DType format, const float* values, const float* inverse, std::uint8_t* codes,
                std::int64_t count);
/// values[i] = decode_fp8(codes[i]) * scales[i].
void decode_row(DType format, const std::uint8_t* codes, const float* scales, float* values,
                std::int64_t count);

/// The largest |values[i]| as FP32 bits (block_amax); 0 for count 0.
std::uint32_t max_magnitude(const float* values, std::int64_t count);
/// top[i] = max(top[i], bits of |values[i]|).
void max_magnitude_columns(const float* values, std::uint32_t* top, std::int64_t count);

/// values[i] = decode_bf16(codes[i]).
void decode_bf16_row(const std::uint16_t* codes, float* values, std::int64_t count);
/// values[i] = decode_f16(codes[i]).
void decode_f16_row(const std::uint16_t* codes, float* values, std::int64_t count);
/// codes[i] = encode_bf16(values[i]).
void encode_bf16_row(const float* values, std::uint16_t* codes, std::int64_t count);
/// codes[i] = encode_f16(values[i]).
void encode_f16_row(const float* values, std::uint16_t* codes, std::int64_t count);

}  // namespace mxfa::mx
