#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "attention/split_tail.h"
#include "attention/tile_scheduler.h"
#include "device/clear_behind.h"
#include "device/mxfp8_rows.h"
#include "device/operands.h"

/// What the host hands to the kernel.
namespace mxfa::sm90::forward {

/// Where one side's scales and sequences lie.
struct SideParams {
  device::OperandScales scales;
  device::JaggedOffsetsView offsets;
};

struct ForwardParams {
  CUtensorMap q_map;  ///< rows (head_dim, heads, tokens), box 64 rows of a part (Config::kQkParts)
  CUtensorMap k_map;  ///< rows, box 128 rows of a part
  CUtensorMap v_map;  ///< value_map(): transposed, box 128 keys of all head_dim
  SideParams q = {}, k = {};
  device::OperandScales v_scales = {};

  /// [rows_o, num_heads, columns], BF16. Strides in elements, even; head_dim is contiguous.
  std::uint16_t* o = nullptr;
  std::int64_t o_token_stride = 0;
  std::int64_t o_head_stride = 0;
  std::int64_t o_batch_stride = 0;  ///< dense
  bool o_aligned = false;           ///< every 8 columns of o lie on 16 bytes
  device::Mxfp8Rows o_mxfp8 = {};   ///< where its codes are not null: in place of o
  float* lse = nullptr;             ///< [num_heads, rows_o], natural log
  float* row_max = nullptr;         ///< [num_heads, rows_o] in log2 units; may be null
  std::int64_t lse_head_stride = 0;
  std::int32_t columns = 0;  ///< head_dim of o, a multiple of 8 up to the kernel's

  attention::TileShape shape = {};
  attention::Seqlens seqlens = {};  ///< jagged
  attention::JaggedPlan plan = {};  ///< null where dense
  std::int32_t* counter = nullptr;
  /// Dense, where the last round is divided: how; parts that came, [slots, kConsumers], 0 before
  /// the launch and after it; and what they hand over, [segments, kConsumers] of kPartBytes. Null:
  /// not divided.
  attention::SplitTail tail = {};
  unsigned* arrivals = nullptr;
  float* partials = nullptr;
  /// Half sums: kMostFolds * kFoldedBytes of each warpgroup of each CTA. Null: no tile needs it.
  std::byte* folded = nullptr;
  std::int32_t batch = 0;
  std::int64_t seqlen_q = 0;  ///< dense
  std::int64_t seqlen_k = 0;
  bool broadcast_q = false;
  float scale_log2 = 0.0f;  ///< softmax_scale * log2(e)
  device::ClearBehindParams behind = {};
};

}  // namespace mxfa::sm90::forward
