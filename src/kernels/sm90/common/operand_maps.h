#pragma once

#include <cstdint>

#include "device/operands.h"
#include "device/tensor_map.h"

/// Tensor maps over prepared operands (device/operands.h), swizzled as wgmma reads K-major tiles:
/// by as many bytes as a box is wide.
namespace mxfa::sm90 {

/// [tokens, heads, head_dim]: boxes of `tokens` rows of one head.
CUtensorMap rows_map(const driver::Device& device, const device::AttentionOperand& x,
                     std::uint32_t tokens);
/// [heads * head_dim, pitch]: boxes of 64 or 128 `tokens` of all head_dim.
CUtensorMap transposed_map(const driver::Device& device, const device::AttentionOperand& x,
                           std::uint32_t tokens);

}  // namespace mxfa::sm90
