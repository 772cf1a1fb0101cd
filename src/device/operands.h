#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "device/quantize.h"
#include "mx/jagged_scale.h"
#include "mxfa/types.h"

/// The operands of attention for machines whose FP8 MMA takes K-major operands and no scales: the
/// contract between the kernels that make them and the attention kernels.
///
/// A tensor [tokens, heads, head_dim] of packed sequences is quantized once, with scales that are
/// uniform along head_dim (32xD, or 1xD where no two tokens may share one). Its payload may then
/// lie in memory twice, the same codes under the same scales:
///
///   rows        K = head_dim: Q, K of S = Q K^T; dO, V of dP = dO V^T
///   transposed  K = tokens:   V^T (pi) of O = P V; dO^T (pi), Q^T (pi), K^T (sigma) of dV, dK, dQ
///
/// `offsets` counts rows before sequence s: tokens; groups, the prefix sum of ceil(seqlen / 32);
/// tiles, the prefix sum of ceil(seqlen / 128). With `row` counted from the sequence's first token:
///
///   rows        codes[(tokens(s) + row) * token_stride + head * head_stride + column]
///   transposed  codes[((tiles(s) + row / 128) * num_heads + head) * 128 * head_dim +
///                     128 * column + p]
///               where p = row % 128 with its lowest four bits permuted: pi_position or
///               sigma_position (mx/permutation.h) of row % 16; p = row % 128 where the order is
///               plain
///   scales      32xD: scales[(groups(s) + row / 32) * row_stride + head * head_stride]
///               1xD:  scales[(tokens(s) + row) * row_stride + head * head_stride]
///
/// So a sequence's transposed columns fill whole tiles of 128 tokens (device/quantize.h).
/// What is written: every row of every sequence; every column of every sequence's tiles, zeros
/// (code 0x00) past its end; the scales of groups or tokens that exist. What is not: rows behind
/// the last sequence, columns behind the last tile, scales there. Hence a box of rows that crosses
/// a sequence's end holds other tokens or unwritten memory, so scores there must be *selected*
/// away, while transposed columns are finite zeros up to the next multiple of 128 and not beyond.
///
/// For the copy engine: base addresses, token_stride and head_stride (rows) are multiples of 16;
/// rows are a tensor (head_dim, heads, tokens), transposed copies (128, heads * head_dim, tiles),
/// innermost first.
///
/// Where scores are half or the form is leak-free, scales of K, and in leak-free form of V, go in
/// steps of 4 binades (mx::coarse_scale), so that all 128 keys of most blocks have one.
///
/// A group (or token) that holds a NaN or an infinity has scale 0xFF and the code 0x7F in each
/// element that exists. A group of zeros has scale 0, or the least of these. Scales of V in
/// leak-free form are at least kLeakFreeMinScale, also those of zero rows.
namespace mxfa::device {

struct Queue;

/// One byte for each group or token of each head.
struct OperandScales {
  const std::uint8_t* data = nullptr;
  std::int64_t row_stride = 1;   ///< bytes from a group (or token) to the next; prepared: 1
  std::int64_t head_stride = 0;  ///< bytes; prepared: scale_pitch()
};

struct AttentionOperand {
  const std::uint8_t* rows = nullptr;        ///< [tokens, num_heads, head_dim]; null: not made
  std::int64_t token_stride = 0;             ///< bytes
  std::int64_t head_stride = 0;              ///< bytes
  const std::uint8_t* transposed = nullptr;  ///< [tiles, num_heads, head_dim, 128]; null: not made
  std::int64_t tiles = 0;                    ///< of the transposed copy, at least tiles(batch)
  TokenOrder order = TokenOrder::kPlain;     ///< of the transposed copy
  OperandScales scales = {};
  BlockShape block_shape = BlockShape::k32xD;  ///< k32xD or k1xD
  JaggedOffsetsView offsets = {};
  std::int64_t total = 0;  ///< rows of the allocation, at least tokens(batch)
  std::int32_t num_heads = 1;
  std::int32_t head_dim = 0;  ///< of the payload, 64 or 128: narrower tensors have zero columns
  std::uint8_t lowered = 0;   ///< binades that payload stays below 448, at least
  bool half_sums = false;     ///< payload fits sums over tokens in half (mx/half_sums.h)
};

/// Payload of Q and K lowered by so many binades: |q . k| of 128 columns is at most 50176, so that
/// scores fit half. Their full precision then ends 10 binades below a group's maximum, not 15.
inline constexpr std::uint8_t kLoweredQ = 5;
inline constexpr std::uint8_t kLoweredK = 4;
/// Of V and dO, for dP in half: likewise.
inline constexpr std::uint8_t kLoweredV = 5;
inline constexpr std::uint8_t kLoweredDout = 4;
/// Payload of V in 1xD blocks, for sums in half: 128 keys times P, at most 256, make up to 57344.
inline constexpr std::uint8_t kLoweredTokenV = 8;

/// 2^-64: the row sum of a leak-free forward takes P' * 2^-v, which must not overflow.
inline constexpr std::uint8_t kLeakFreeMinScale = 127 - 64;

/// Bytes from head to head of prepared scales: rows of the block shape, padded to 16.
MXFA_HOST_DEVICE constexpr std::int64_t scale_pitch(BlockShape shape, std::int64_t total,
                                                    std::int64_t batch) {
  const std::int64_t rows = mx::block_rows(shape) == 1 ? total : mx::max_groups(total, batch);
  return mx::ceil_div(rows, 16) * 16;
}

/// Sequences of one side of attention.
struct Sequences {
  const std::int32_t* cu_seqlens = nullptr;  ///< on the device, [batch + 1]; null: dense
  std::int64_t seqlen = 0;                   ///< of every sequence, where dense
  std::int32_t batch = 0;
  std::int64_t total = 0;  ///< packed rows of the allocation; dense: batch * seqlen
};

/// A tensor to quantize: kBF16, or kF32 (rounded to BF16 first). Strides count elements and are
/// arbitrary; head_dim is contiguous. Or payload, kE4M3 with `scales`, in the blocks of what the
/// call prepares (here 32xD): its rows are read where they lie (head_dim 64 or 128; sequences side
/// by side; address and strides multiples of 16), a transposed copy is made, nothing is lowered.
struct OperandInput {
  const void* data = nullptr;
  DType dtype = DType::kBF16;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t batch_stride = 0;  ///< where its sequences are dense
  /// Subtracted before quantization, [batch or 1, num_heads, head_dim]: smoothing of K and V.
  const float* shift = nullptr;
  std::int64_t shift_batch_stride = 0;
  const std::uint8_t* scales = nullptr;  ///< kE4M3: of each group and head, columns side by side
  CompactStrides scale_strides = {};
};

/// What one call prepares: for a forward Q, K (rows) and V^T; for a backward Q, Q^T, K, K^T, V, dO
/// and dO^T; for both at once everything.
struct OperandsSpec {
  OperandInput q =
      {};  ///< [total_q, num_heads, head_dim], or [batch, seqlen_q, num_heads, head_dim]
  OperandInput k = {}, v = {};  ///< likewise with total_k, num_heads_kv
  OperandInput dout =
      {};  ///< backward only; the shape of q, or of [batch] such q where it is broadcast
  Sequences q_sequences = {};
  Sequences k_sequences = {};
  bool broadcast_q = false;  ///< q is one dense sequence that every sequence of k's batch reads
  std::int32_t num_heads = 1;
  std::int32_t num_heads_kv = 1;
  std::int32_t head_dim = 0;  ///< a multiple of 8 up to 128
  bool forward = true;
  bool backward = false;
  bool leak_free = false;  ///< Q, K and V in 1xD blocks
  /// Q and K are lowered, for kernels that keep scores in half; in a backward also V and dO.
  /// Payload of Q, K and dO then fits sums of gradients in half, but in leak-free form.
  bool half_scores = false;
  bool bf16_scores = false;  ///< Q K^T is in BF16: of Q and K no rows are made
  bool bf16_dp = false;      ///< dO V^T is: of dO no rows are made, of V neither
  /// With any of the three V's payload fits a forward's sums of P V in half.
  bool half_sums() const { return forward && (leak_free || half_scores || bf16_scores); }
};

struct AttentionOperands {
  AttentionOperand q, k, v, dout;
  std::int64_t bytes = 0;  ///< operands_bytes(): of what they lie in
};

/// Bytes of device memory that the prepared operands lie in, from shapes alone.
std::int64_t operands_bytes(const OperandsSpec& spec);
/// Launches what makes the operands, in `memory` (256-byte aligned, operands_bytes() of it), which
/// is overwritten. Throws Error that names the field where the specification is malformed.
AttentionOperands prepare_operands(const Queue& queue, const OperandsSpec& spec, void* memory);
/// Where prepare_operands() of the same specification left them; launches nothing.
AttentionOperands operands_in(const OperandsSpec& spec, void* memory);

}  // namespace mxfa::device
