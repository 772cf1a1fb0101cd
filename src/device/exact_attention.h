#pragma once

#include <cstdint>

#include "attention/mask.h"
#include "device/operands.h"

/// Attention on prepared operands with everything but them in FP32, by a plain kernel: what a fast
/// kernel is checked against on its own machine. Parameters that host and kernel share.
namespace mxfa::device {

struct ExactAttentionParams {
  AttentionOperand q;  ///< rows
  AttentionOperand k;  ///< rows
  AttentionOperand v;  ///< transposed in pi order; k's offsets
  bool broadcast_q = false;
  attention::Mask mask = {};
  float scale_log2 = 0.0f;  ///< softmax_scale * log2(e)
  std::int64_t rows = 0;    ///< of o

  void* o = nullptr;  ///< out: [rows, num_heads, columns], kBF16 or kF32, strides in elements
  bool o_f32 = false;
  std::int64_t o_token_stride = 0;
  std::int64_t o_head_stride = 0;
  std::int32_t columns = 0;  ///< a multiple of 4 up to the operands' head_dim
  float* lse = nullptr;      ///< out: [num_heads, rows], natural log
  std::int64_t lse_head_stride = 0;
  float* row_max = nullptr;  ///< out, or null: largest visible score in log2 units
  std::int64_t row_max_head_stride = 0;
};

}  // namespace mxfa::device
