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

/// Where sequences lie, on the device: arrays written by jagged_offsets() without a host round
/// trip, or closed forms where all sequences have one length.
struct JaggedOffsetsView {
  const std::int32_t* cu_seqlens = nullptr;   ///< [batch + 1]
  const std::int64_t* group_begin = nullptr;  ///< [batch + 1] prefix sums of ceil(seqlen / 32)
  const std::int64_t* tile_begin = nullptr;   ///< [batch + 1] prefix sums of ceil(seqlen / 128)
  std::int32_t batch = 0;
  std::int64_t seqlen = -1;  ///< >= 0: the length of every sequence; the arrays are not read

  MXFA_HOST_DEVICE constexpr std::int64_t tokens(std::int64_t sequence) const {
    return seqlen >= 0 ? sequence * seqlen : std::int64_t{cu_seqlens[sequence]};
  }
  MXFA_HOST_DEVICE constexpr std::int64_t groups(std::int64_t sequence) const {
    return seqlen >= 0 ? sequence * mx::ceil_div(seqlen, kScaleBlock) : group_begin[sequence];
  }
  MXFA_HOST_DEVICE constexpr std::int64_t tiles(std::int64_t sequence) const {
    return seqlen >= 0 ? sequence * mx::ceil_div(seqlen, mx::kAtomRows) : tile_begin[sequence];
  }
};

/// Bytes between heads and between tiles of 128 tokens in a tensor of 512-byte scale atoms.
struct AtomStrides {
  std::int64_t head_bytes = 0;
  std::int64_t tile_bytes = 512;
};

/// E4M3, scales rounded up. Outputs whose pointer is null are not written. Rows behind a sequence's
/// end are never read; every byte of its scale atoms and transposed copies is written.
struct QuantizeParams {
  const std::uint16_t* x = nullptr;  ///< BF16 [total, num_heads, head_dim], 16-byte aligned rows
  std::int64_t row_stride = 0;       ///< elements, a multiple of 8
  std::int64_t head_stride = 0;
  std::int64_t total = 0;               ///< packed rows of x
  const float* shift = nullptr;         ///< subtracted first: [batch or 1, num_heads, head_dim]
  std::int64_t shift_batch_stride = 0;  ///< 0: one vector a head for all sequences
  std::uint8_t* codes = nullptr;        ///< [total, num_heads, head_dim]
  std::uint8_t* compact = nullptr;      ///< as mxfa::scale_shape, kRowMajor
  std::uint8_t* tiled_dim = nullptr;    ///< atoms along head_dim (rows are tokens)
  AtomStrides dim_strides;
  std::uint8_t* tiled_tokens = nullptr;  ///< atoms along tokens (rows are head_dim)
  AtomStrides token_strides;
  std::uint8_t* transposed = nullptr;  ///< codes [num_heads, head_dim, 128 * tiles], K-major
  std::int64_t transposed_pitch = 0;   ///< 128 * tiles of the allocation
  JaggedOffsetsView offsets;
  std::int32_t num_heads = 1;
  std::int32_t head_dim = 0;  ///< 32, 64, 96 or 128
  BlockShape block_shape = BlockShape::k32x32;
  TokenOrder order = TokenOrder::kPlain;
};

inline constexpr int kQuantizeThreads = 17 * 32;  ///< 16 consumer warps and a producer
inline constexpr int kQuantizeSmemBytes = 206 * 1024;

}  // namespace mxfa::device
