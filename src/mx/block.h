#pragma once

#include <cstdint>
#include <span>

#include "mx/e8m0.h"
#include "mx/fp8.h"
#include "mxfa/types.h"

/// One MX block: the definition that every quantizer of the library is compared with.
namespace mxfa::mx {

struct Block {
  std::uint8_t scale = 0;                   ///< E8M0
  std::uint8_t codes[kScaleBlock] = {};     ///< payload
};

/// Largest magnitude; NaN where any value is NaN, +infinity where one is infinite and none is NaN.
constexpr float block_amax(std::span<const float> values) {
  // As integers the magnitudes order like the floats, with infinity and then NaN on top.
  std::uint32_t top = 0;
  for (const float value : values) {
    const std::uint32_t bits = float_bits(value) & 0x7FFFFFFFu;
    top = bits > top ? bits : top;
  }
  return bits_float(top);
}

/// Quantizes up to 32 values; missing ones count as zero.
template <class Format = E4M3>
constexpr Block quantize_block(std::span<const float> values,
                               ScaleRule rule = ScaleRule::kRoundUp) {
  Block block;
  block.scale = scale_from_amax<Format>(block_amax(values), rule);
  for (std::size_t i = 0; i < values.size(); ++i) {
    block.codes[i] = encode_scaled<Format>(values[i], block.scale);
  }
  return block;
}

/// The value of one element.
template <class Format = E4M3>
constexpr float dequantize(std::uint8_t code, std::uint8_t scale) {
  return decode_fp8<Format>(code) * decode_e8m0(scale);
}

}  // namespace mxfa::mx
