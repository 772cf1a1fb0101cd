#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "mxfa/tensor.h"
#include "mxfa/types.h"

/// MXFP8 (OCP Microscaling Formats v1.0): 8-bit payload and one E8M0 power-of-two scale for each
/// block. Tensors are packed, [tokens, num_heads, head_dim] or [rows, cols] (one head), in host
/// memory. `cu_seqlens` cuts the tokens into sequences: blocks of 32 tokens start at each
/// sequence's first row and never cross its end. Every function throws Error(kInvalidArgument) that
/// names the argument, what was expected and what came, before it writes anything.
namespace mxfa {

struct QuantizeOptions {
  BlockShape block_shape = BlockShape::k32x32;
  ScaleRule rule = ScaleRule::kRoundUp;
  DType format = DType::kE4M3;  ///< payload: kE4M3 or kE5M2
  ScaleLayout layout = ScaleLayout::kRowMajor;
  /// kTiled128x4 only. 1x32 and 1xD scales can be tiled along head_dim only, 32x1 along tokens
  /// only; squares and 32xD expand to either.
  ScaleAxis scale_axis = ScaleAxis::kHeadDim;
  /// Offsets of the sequences, kI32 or kI64 [batch + 1] in host memory: first 0, never decreasing,
  /// last at most the number of tokens. Absent: all tokens are one sequence.
  std::optional<TensorView> cu_seqlens = std::nullopt;
  std::int64_t max_seqlen = -1;  ///< >= 0: longer sequences are refused
};

/// Shape of the scales of a tensor of shape `shape`, dtype kE8M0. kRowMajor, for H heads and G
/// groups of 32 tokens (G = sum of ceil(seqlen / 32)):
///   1x32 [tokens, H, ceil(D/32)]   32x1 [G, H, D]   32x32 [G, H, ceil(D/32)]   32xD [G, H]
///   1xD [tokens, H]; without H for [rows, cols].
/// kTiled128x4, for T tiles of 128 tokens (T = sum of ceil(seqlen / 128)):
///   [H, T, ceil(D/128), 512], without H for [rows, cols].
std::vector<std::int64_t> scale_shape(std::span<const std::int64_t> shape,
                                      const QuantizeOptions& options);
/// An upper bound of scale_shape() over all cu_seqlens of `batch` sequences: what to allocate where
/// the lengths are not known on the host. options.cu_seqlens is ignored.
std::vector<std::int64_t> max_scale_shape(std::span<const std::int64_t> shape, std::int64_t batch,
                                          const QuantizeOptions& options);

/// Quantizes `input` (kF32, kF16 or kBF16, any strides).
/// `payload`: kE4M3, kE5M2 (as options.format) or kU8, the shape of `input`, any strides.
/// `scales`: kE8M0 or kU8, scale_shape(), any strides (kTiled128x4: atoms without gaps). The extent
/// that counts groups, tokens or tiles may be larger: what lies behind the last sequence is written
/// with 0x00, as is all padding.
/// Payload is rounded to nearest even and saturates; values missing from a short block at the end
/// of a sequence or of head_dim count as 0. A block that holds NaN or an infinity gets scale 0xFF
/// and payload 0x7F, so overflow stays loud. Tokens behind the last sequence get payload 0.
/// Results do not depend on the number of threads. Outputs have memory of their own (tensor.h).
void quantize(const TensorView& input, const TensorView& payload, const TensorView& scales,
              const QuantizeOptions& options);

/// The inverse: output (kF32 exactly; kF16, kBF16 rounded to nearest even), any strides, the shape
/// of `payload`. Tokens behind the last sequence become 0. `options.rule` is ignored.
void dequantize(const TensorView& payload, const TensorView& scales, const TensorView& output,
                const QuantizeOptions& options);

/// Row-major scales to tiled scales along options.scale_axis, for a tensor of shape `shape`: byte
/// moves only, padding written with 0x00. options.layout is ignored.
void tile_scales(std::span<const std::int64_t> shape, const TensorView& scales,
                 const TensorView& tiled, const QuantizeOptions& options);
/// The inverse. Padding is not read; what lies behind the last sequence is written with 0x00.
void untile_scales(std::span<const std::int64_t> shape, const TensorView& tiled,
                   const TensorView& scales, const QuantizeOptions& options);

/// What realign() changed. A block is one of the source tensor; blocks of zeros are not counted.
struct RealignSummary {
  std::int64_t blocks = 0;
  std::int64_t blocks_shifted = 0;   ///< whose scale was smaller than its group's
  std::int64_t blocks_far = 0;       ///< shifted by more than 12 binades: > 1 dB of the block
  std::int64_t values_flushed = 0;   ///< non-zero values that became 0
  std::int64_t groups_poisoned = 0;  ///< groups that held a NaN, hence are all NaN now
  int max_shift = 0;                 ///< largest exponent spread within a group, in binades
};

/// Re-aligns a tensor of any block shape (options.block_shape, kRowMajor) to 32xD, whose scales are
/// uniform along head_dim, as machines without a block-scaled MMA need. `payload_out` has the shape
/// of `payload`, `scales_out` the 32xD scale_shape(). Producers should emit 32xD directly; where
/// blocks_far exceeds 0.1 % of the blocks, prefer BF16 for this tensor.
RealignSummary realign(const TensorView& payload, const TensorView& scales,
                       const TensorView& payload_out, const TensorView& scales_out,
                       const QuantizeOptions& options);

}  // namespace mxfa
