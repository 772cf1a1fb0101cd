#pragma once

#include <cuda.h>

#include <cstdint>

#include "attention/tile_scheduler.h"
#include "device/mxfp8_rows.h"
#include "device/quantize.h"

/// What the host hands to the kernel.
namespace mxfa::sm100::forward {

/// Scale atoms of one tensor, [num_heads][tiles][512], and where its sequences lie.
struct SideParams {
  const std::uint8_t* atoms = nullptr;
  std::int64_t head_bytes = 0;
  device::JaggedOffsetsView offsets;
};

/// What the kernel has on the way, for tests. P as it multiplies V: codes [num_heads, rows_o,
/// pitch] and scales [num_heads, rows_o, pitch / 32], key n of its sequence in column n.
struct Probe {
  std::uint8_t* codes = nullptr;
  std::uint8_t* scales = nullptr;
  std::int64_t rows = 0;
  std::int64_t pitch = 0;  ///< a multiple of 128
  /// [rows_o, num_heads, columns] before it becomes MXFP8; may be null where o is BF16.
  float* o = nullptr;
};

struct ForwardParams {
  CUtensorMap q_map;  ///< device/ragged_map.h, tiles of 128 rows
  CUtensorMap k_map;
  CUtensorMap v_map;
  CUtensorMap o_map = {};  ///< boxes of 64 columns
  SideParams q, k, v;
  std::int32_t columns = 0;        ///< head_dim of o
  device::Mxfp8Rows o_mxfp8 = {};  ///< where its codes are not null: in place of o_map's tensor

  float* lse = nullptr;      ///< [num_heads, rows_o], natural log
  float* row_max = nullptr;  ///< [num_heads, rows_o] in log2 units; may be null
  std::int64_t lse_head_stride = 0;

  attention::TileShape shape;
  attention::Seqlens seqlens;  ///< jagged
  attention::JaggedPlan plan;  ///< null where dense
  std::int32_t* counter = nullptr;
  std::int32_t batch = 0;
  std::int64_t seqlen_q = 0;  ///< dense
  std::int64_t seqlen_k = 0;
  bool broadcast_q = false;
  float scale_log2 = 0.0f;  ///< softmax_scale * log2(e)
  Probe probe = {};
};

}  // namespace mxfa::sm100::forward
