#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "mx/scale_grid.h"
#include "mx/scale_layout.h"
#include "mxfa/types.h"

/// MX quantization of packed sequences: parameters that host and kernel share.
namespace mxfa::device {

/// Which token of a group of 16 lies where in a transposed copy (mx/permutation.h).
enum class TokenOrder : std::uint8_t { kPlain, kPi, kSigma };

/// Transposed copies, [tiles, num_heads, head_dim, 128 tokens], K-major: what a tile holds of a
/// head is one piece of memory. (As columns of all tokens, a tile's would lie as far from each
/// other as a batch is long, each in a page of its own.)
struct TransposedTiles {
  std::int32_t num_heads = 1;
  std::int32_t head_dim = 0;

  MXFA_HOST_DEVICE constexpr std::int64_t tile_bytes() const {
    return std::int64_t{num_heads} * head_dim * mx::kAtomRows;
  }
  /// Where the 128 tokens of tile `tile` begin, of one column.
  MXFA_HOST_DEVICE constexpr std::int64_t at(std::int64_t tile, std::int64_t head,
                                             std::int64_t column) const {
    return tile * tile_bytes() + (head * head_dim + column) * mx::kAtomRows;
  }
};

/// Where sequences lie, on the device: arrays written by jagged_offsets() without a host round
/// trip, or closed forms where all sequences have one length.
struct JaggedOffsetsView {
  const std::int32_t* cu_seqlens = nullptr;   ///< [batch + 1]
  const std::int64_t* group_begin = nullptr;  ///< [batch + 1] prefix sums of ceil(seqlen / 32)
  const std::int64_t* tile_begin = nullptr;   ///< [batch + 1] prefix sums of ceil(seqlen / 128)
  std::int32_t batch = 0;
  std::int64_t seqlen = -1;  ///< >= 0: the length of every sequence; the arrays are not read

  MXFA_HOST_DEVICE constexpr bool dense() const { return seqlen >= 0; }
  MXFA_HOST_DEVICE constexpr std::int64_t tokens(std::int64_t sequence) const {
    return dense() ? sequence * seqlen : std::int64_t{cu_seqlens[sequence]};
  }
  MXFA_HOST_DEVICE constexpr std::int64_t groups(std::int64_t sequence) const {
    return dense() ? sequence * mx::ceil_div(seqlen, kScaleBlock) : group_begin[sequence];
  }
  MXFA_HOST_DEVICE constexpr std::int64_t tiles(std::int64_t sequence) const {
    return dense() ? sequence * mx::ceil_div(seqlen, mx::kAtomRows) : tile_begin[sequence];
  }
};

/// Bytes between heads and between tiles of 128 tokens in a tensor of 512-byte scale atoms.
struct AtomStrides {
  std::int64_t head_bytes = 0;
  std::int64_t tile_bytes = 512;
};

/// Bytes between the scale rows (groups of 32 tokens, or tokens) and between the heads of compact
/// scales. The scales of one row and head lie side by side.
struct CompactStrides {
  std::int64_t row = 0;
  std::int64_t head = 0;
};

/// Sums as accumulated by reductions that overflow to infinity: FP16, of values times 2^exponent,
/// or FP32. A sum that is infinite or NaN is counted, unless the NaN of `lse` or `delta` in its row
/// explains it; in FP16 it becomes +-65504 * 2^-exponent, in FP32 it stays.
struct ScaledSums {
  std::int32_t exponent = 0;                ///< FP16 only; at most 64 in magnitude
  const std::int32_t* exponents = nullptr;  ///< [batch, num_heads]; takes the place of `exponent`
  const float* lse = nullptr;               ///< [num_heads, rows], rows head_stride apart, or null
  const float* delta = nullptr;             ///< likewise
  std::int64_t head_stride = 0;
  unsigned long long* overflows = nullptr;  ///< added to
};

/// Packed rows [total, num_heads, head_dim], or [batch, seqlen, num_heads, head_dim] where the
/// offsets are dense. Strides count elements.
struct QuantizeInput {
  const void* data = nullptr;
  DType dtype = DType::kBF16;     ///< kBF16, or kF32 or kF16, to which `sums` applies
  std::int64_t row_stride = 0;    ///< from token to token
  std::int64_t head_stride = 0;   ///< from head to head
  std::int64_t batch_stride = 0;  ///< from sequence to sequence; dense offsets only
  std::int64_t rows = 0;          ///< of the allocation; dense offsets: of one sequence
  std::int32_t head_dim = 0;      ///< a multiple of 8, at most the outputs'
  /// Sequence s begins at row 128 * tiles(s), not at tokens(s): accumulators.
  bool padded_rows = false;
  bool round_bf16 = false;              ///< kF32: rounded to BF16 before anything else
  const float* shift = nullptr;         ///< subtracted: [batch or 1, num_heads, head_dim]; not kF16
  std::int64_t shift_batch_stride = 0;  ///< 0: one vector a head for all sequences
  ScaledSums sums = {};
};

/// E4M3, scales rounded up. Outputs whose pointer is null are not written. Rows behind a sequence's
/// end are never used; every byte of its scale atoms and transposed copies is written.
struct QuantizeParams {
  QuantizeInput input = {};
  std::uint8_t* codes = nullptr;      ///< [total, num_heads, head_dim]
  std::int64_t codes_row_stride = 0;  ///< multiples of 8
  std::int64_t codes_head_stride = 0;
  std::uint8_t* compact = nullptr;  ///< rows of mxfa::scale_shape, kRowMajor
  CompactStrides compact_strides = {};
  std::uint8_t* tiled_dim = nullptr;  ///< atoms along head_dim (rows are tokens)
  AtomStrides dim_strides = {};
  std::uint8_t* tiled_tokens = nullptr;  ///< atoms along tokens (rows are head_dim)
  AtomStrides token_strides = {};
  std::uint8_t* transposed = nullptr;  ///< codes, TransposedTiles of num_heads and head_dim
  JaggedOffsetsView offsets = {};
  std::int32_t num_heads = 1;
  std::int32_t head_dim = 0;  ///< of the outputs: 32, 64, 96 or 128; missing columns count as 0
  BlockShape block_shape = BlockShape::k32x32;
  TokenOrder order = TokenOrder::kPlain;
  std::uint8_t min_scale = 0;  ///< smaller scales are raised to it, payload accordingly
  /// Binades that payload stays below what the format holds; scales are as much larger.
  std::uint8_t lowered = 0;
  bool coarse = false;  ///< scales, whatever raised them, go in steps of 4 binades
  /// k32xD, if not 0: scales, lowered, are also at least mx::half_sums_scale() of it.
  float half_sums = 0.0f;
  /// May run beside the kernels before it in its stream that were launched with this or ended
  /// theirs: none of them reads or writes what this call writes, or writes what it reads.
  bool overlap = false;
  bool bulk = true;  ///< the copy engine takes the input's addresses; set by quantize()
};

inline constexpr int kQuantizeTeamWarps = 4;  ///< each on 32 tokens of a tile of 128
inline constexpr int kQuantizeSmemBytes = 206 * 1024;

/// Teams of warps of a CTA, and tiles in its shared memory.
MXFA_HOST_DEVICE constexpr int quantize_teams(DType input) { return input == DType::kF32 ? 2 : 4; }
MXFA_HOST_DEVICE constexpr int quantize_stages(DType input) { return input == DType::kF32 ? 3 : 6; }
/// Consumer warps and a producer.
MXFA_HOST_DEVICE constexpr int quantize_threads(DType input) {
  return (quantize_teams(input) * kQuantizeTeamWarps + 1) * 32;
}

}  // namespace mxfa::device
