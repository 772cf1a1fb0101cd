#pragma once

#include <cstdint>

#include "device/quantize.h"
#include "device/tensor_map.h"

namespace mxfa::device {

/// A transposed copy (TransposedTiles) of so many tiles as (128, num_heads * head_dim, tiles),
/// innermost first: boxes of 64 or 128 `tokens` of all head_dim, swizzled by as many bytes.
CUtensorMap make_transposed_map(const driver::Device& device, const std::uint8_t* codes,
                                const TransposedTiles& layout, std::int64_t tiles,
                                std::uint32_t tokens);

}  // namespace mxfa::device
