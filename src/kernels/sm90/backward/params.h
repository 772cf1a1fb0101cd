#pragma once

#include <cuda.h>

#include <cstdint>

#include "attention/mask.h"
#include "device/clear_behind.h"
#include "device/mxfp8_rows.h"
#include "device/operands.h"
#include "device/rowwise.h"
#include "kernels/sm90/backward/config.h"

/// What the host hands to the kernels.
namespace mxfa::sm90::backward {

/// A gradient in BF16, [tokens, heads, columns]; strides in elements, even; columns contiguous.
struct GradientOut {
  std::uint16_t* data = nullptr;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
};

/// The sides of a call: sequences of q, of o (q's, or k's batch of q where it is broadcast), of k.
struct Sides {
  device::JaggedOffsetsView q, o, k;
  std::int32_t num_heads = 1;
  std::int32_t num_heads_kv = 1;
  bool broadcast_q = false;
};

/// The pre-pass: anchors, then records, each [num_heads, 2 * tiles of o].
struct RowsParams {
  Sides sides;
  device::OperandScales q_scales, dout_scales;
  const float* lse = nullptr;        ///< [num_heads, rows_o]
  const float* row_max = nullptr;    ///< likewise, log2 units; null: P is taken to reach 1
  const float* delta = nullptr;      ///< likewise
  const float* dout_sums = nullptr;  ///< likewise, sums of |dO|; half scores
  std::int64_t lse_head_stride = 0;
  std::int64_t delta_head_stride = 0;
  std::int32_t* anchors = nullptr;  ///< largest exponents; kNoExponent: of no row
  void* records = nullptr;          ///< RowRecord, HalfRowRecord or TokenRowRecord
  std::int64_t records_head_stride = 0;
  float scale_log2 = 0.0f;  ///< softmax_scale * log2(e)
  /// Operands of S^T, of dP^T are BF16, which have no exponents.
  bool bf16_s = false, bf16_dp = false;
  device::ClearBehindParams behind = {};
};

/// In order, streams of neighbouring sequences are walked side by side, their key tiles taken by
/// turns: so fewer CTAs are at the same queries, where they wait for each other.
struct StreamTable {
  static constexpr std::int32_t kMost = 31;
  std::int32_t count;
  std::int32_t most_tiles;        ///< of a stream
  std::int32_t begin[kMost + 1];  ///< their first tiles; behind them, how many tiles there are
};

/// The pre-pass's first launch.
struct PrepareParams {
  RowsParams rows;
  device::DeltaParams delta;
  void* zeros = nullptr;  ///< what is to be 0 before the kernel begins, on 16 bytes
  std::int64_t zero_bytes = 0;
  StreamTable* streams = nullptr;  ///< to be made where it is not null
  std::int32_t stream_count = 1;
};

struct BackwardParams {
  CUtensorMap q_map;       ///< rows, box 64; BF16: of 64 columns
  CUtensorMap dout_map;    ///< likewise
  CUtensorMap qt_map;      ///< transposed, box 64
  CUtensorMap dout_t_map;  ///< transposed, box 64
  CUtensorMap k_map;       ///< rows, box 128; BF16: of 64 columns
  CUtensorMap v_map;       ///< likewise
  CUtensorMap kt_map;      ///< transposed, box 128
  Sides sides;
  attention::Mask mask;
  device::OperandScales k_scales, v_scales;
  const void* records = nullptr;  ///< of the kernel's Config::Record
  std::int64_t records_head_stride = 0;
  GradientOut dk, dv;
  std::int32_t columns = 0;  ///< of the gradients, a multiple of 8 up to the kernel's head_dim
  std::uint8_t* dq_sums = nullptr;  ///< [num_heads, 2 * tiles of q] of dq_tile_bytes()
  std::int64_t dq_head_stride = 0;  ///< in tiles
  /// Where sums are made from the last keys to the first: how many adds each tile has seen, 0
  /// before. Null: in any order.
  std::int32_t* dq_turns = nullptr;
  std::int32_t heads_at_once = 1;        ///< of K, whose tiles are taken by turns
  const StreamTable* streams = nullptr;  ///< null: a single one
  float* scratch = nullptr;              ///< [CTAs] of kScratchFloats
  std::int32_t* counter = nullptr;       ///< 0 before
  std::int32_t dq_exponent = 0;          ///< kF16: sums are of dQ * 2^dq_exponent; else 0
  float softmax_scale = 0.0f;
};

/// dQ sums to BF16 or MXFP8.
struct DqParams {
  device::JaggedOffsetsView q;
  std::int32_t num_heads = 1;
  std::int32_t head_dim = 0;
  const std::uint8_t* sums = nullptr;
  DqSums kind = DqSums::kF32;
  device::ScaledSums scaled = {};  ///< kF16
  std::int64_t head_stride = 0;    ///< in tiles
  GradientOut dq;
  device::Mxfp8Rows dq_mxfp8 = {};  ///< where its codes are not null: in place of dq
  std::int32_t columns = 0;
};

}  // namespace mxfa::sm90::backward
