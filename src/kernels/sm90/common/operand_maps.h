#pragma once

#include <cstdint>
#include <string_view>

#include "device/operands.h"
#include "device/transposed_map.h"

/// Tensor maps over prepared operands (device/operands.h), swizzled as wgmma reads K-major tiles:
/// by as many bytes as a box is wide.
namespace mxfa::sm90 {

/// An operand of a product in BF16: column c of a row at data[row * token_stride + head *
/// head_stride + c], 16-byte aligned; strides in elements, in bytes as tensor maps take them.
struct Bf16Rows {
  const std::uint16_t* data = nullptr;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
};
void check_bf16_rows(const Bf16Rows& x, std::string_view name);

/// [tokens, heads, head_dim]: boxes of `tokens` rows of one head.
CUtensorMap rows_map(const driver::Device& device, const device::AttentionOperand& x,
                     std::uint32_t tokens);
/// BF16 of the heads and tokens of `shape`: boxes of 64 columns and `tokens` rows of one head.
/// Columns that the tensor lacks read as zeros.
CUtensorMap bf16_rows_map(const driver::Device& device, const Bf16Rows& x,
                          const device::AttentionOperand& shape, std::int32_t columns,
                          std::uint32_t tokens);
/// V^T, [tiles, heads * head_dim / 32, 128] as (token, i, q, b, a): boxes of 128 tokens of one
/// head. Row 32 a + 8 b + 2 q + i of a box is column 32 a + 8 q + 2 b + i of V, so that thread q of
/// four has eight neighbouring columns of what wgmma accumulates, which it stores without an
/// exchange.
CUtensorMap value_map(const driver::Device& device, const device::AttentionOperand& x);
/// [tiles, heads * head_dim, 128]: boxes of 64 or 128 `tokens` of all head_dim.
CUtensorMap transposed_map(const driver::Device& device, const device::AttentionOperand& x,
                           std::uint32_t tokens);

}  // namespace mxfa::sm90
