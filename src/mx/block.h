#pragma once

#include <cstdint>
#include <span>

#include "mx/e8m0.h"
#include "mx/fp8.h"
#include "mxfa/types.h"

/// One MX block: the definition that every quantizer of the library is compared with. The forms
/// that take a pointer also compile for the device.
namespace mxfa::mx {

struct Block {
  std::uint8_t scale = 0;                ///< E8M0
  std::uint8_t codes[kScaleBlock] = {};  ///< payload
};

/// Largest magnitude as FP32 bits. As integers the magnitudes order like the floats, with infinity
/// and then NaN on top: NaN where any value is NaN, else infinity where one is infinite.
MXFA_HOST_DEVICE constexpr float block_amax(const float* values, int count) {
  std::uint32_t top = 0;
  for (int i = 0; i < count; ++i) {
    const std::uint32_t bits = float_bits(values[i]) & 0x7FFFFFFFu;
    top = bits > top ? bits : top;
  }
  return bits_float(top);
}
constexpr float block_amax(std::span<const float> values) {
  return block_amax(values.data(), static_cast<int>(values.size()));
}

/// Quantizes `count` <= 32 values; missing ones count as zero and get code 0. A block holding NaN
/// or an infinity gets scale 0xFF and the NaN code for each of its values.
template <class Format = E4M3>
MXFA_HOST_DEVICE constexpr Block quantize_block(const float* values, int count,
                                                ScaleRule rule = ScaleRule::kRoundUp) {
  Block block;
  block.scale = scale_from_amax<Format>(block_amax(values, count), rule);
  for (int i = 0; i < count; ++i) {
    block.codes[i] = encode_scaled<Format>(values[i], block.scale);
  }
  return block;
}
template <class Format = E4M3>
constexpr Block quantize_block(std::span<const float> values,
                               ScaleRule rule = ScaleRule::kRoundUp) {
  return quantize_block<Format>(values.data(), static_cast<int>(values.size()), rule);
}

/// The value of one element: exact, but for a magnitude beyond FP32's range, which is infinite.
template <class Format = E4M3>
MXFA_HOST_DEVICE constexpr float dequantize(std::uint8_t code, std::uint8_t scale) {
  return decode_fp8<Format>(code) * decode_e8m0(scale);
}

}  // namespace mxfa::mx
