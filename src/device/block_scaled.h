#pragma once

#include <cstdint>

#include "device/operands.h"
#include "mxfa/types.h"

/// The operands of attention for machines whose FP8 MMA takes block scales: the contract between
/// the kernels that make them and the attention kernels.
///
/// A tensor [tokens, heads, head_dim] of packed sequences. Payload stays at its packed rows; scales
/// are scattered to atoms (mx/scale_layout.h), each sequence padded to whole tiles of 128 tokens,
/// which `offsets.tiles` counts:
///
///   rows   codes[(tokens(s) + row) * token_stride + head * head_stride + column]
///   atoms  atoms[head * head_bytes + (tiles(s) + row / 128) * 512 + byte_in_atom(..)]
///          kHeadDim: byte_in_atom(row % 128, column / 32)         Q, K
///          kTokens:  byte_in_atom(column, row % 128 / 32)         V
///
/// Kernels read atoms whole but use no byte of a row, a column or a group of 32 tokens behind the
/// sequence's end; rows of a tile that lie behind it are not read at all.
namespace mxfa::device {

struct BlockScaledOperand {
  const std::uint8_t* rows = nullptr;
  std::int64_t token_stride = 0;        ///< bytes, a multiple of 16
  std::int64_t head_stride = 0;         ///< bytes, a multiple of 16
  const std::uint8_t* atoms = nullptr;  ///< 16-byte aligned
  std::int64_t head_bytes = 0;          ///< from head to head, a multiple of 16
  ScaleAxis axis = ScaleAxis::kHeadDim;
  JaggedOffsetsView offsets = {};
  std::int64_t total = 0;  ///< rows of the allocation, at least tokens(batch)
  std::int32_t num_heads = 1;
  std::int32_t head_dim = 0;  ///< of the payload, 64 or 128: narrower tensors have zero columns
};

/// Q, K and V of a forward.
struct BlockScaledOperands {
  BlockScaledOperand q, k, v;
};

/// Bytes of device memory that the operands of `spec` lie in, from shapes alone. Of the spec's
/// fields those of the backward and half_scores are not used. Blocks are squares of 32 (payload:
/// its scales are copied), or 1xD in leak-free form.
std::int64_t block_scaled_bytes(const OperandsSpec& spec);
/// Launches what makes the operands, in `memory` (256-byte aligned, block_scaled_bytes() of it),
/// which is overwritten. Throws Error that names the field where the specification is malformed.
BlockScaledOperands prepare_block_scaled(const Queue& queue, const OperandsSpec& spec,
                                         void* memory);
/// The operands that prepare_block_scaled() left in `memory`.
BlockScaledOperands block_scaled_in(const OperandsSpec& spec, void* memory);

}  // namespace mxfa::device
