#pragma once

#include <cstdint>
#include <span>

#include "attention/mask.h"
#include "device/clear_behind.h"
#include "device/mxfp8_rows.h"
#include "device/operands.h"
#include "device/ops.h"
#include "driver/kernel.h"
#include "kernels/sm90/common/operand_maps.h"
#include "kernels/sm90/forward/config.h"

namespace mxfa::sm90 {

/// The images of this architecture's kernels, for a KernelCache.
std::span<const driver::KernelImage> kernel_images();

}  // namespace mxfa::sm90

namespace mxfa::sm90::forward {

/// Softmax attention on Hopper: O = softmax(softmax_scale * Q K^T) V. All pointers are device
/// addresses. Sequences as the operands' offsets say; rows behind the last one are not written.
/// Leak-free (no scale is shared by two tokens) where q, k and v have 1xD blocks.
struct ForwardCall {
  device::AttentionOperand q;  ///< rows; 32xD, or 1xD
  device::AttentionOperand k;  ///< rows; q's block shape
  device::AttentionOperand v;  ///< transposed in pi order; q's block shape, k's offsets
  /// Both given: Q K^T in BF16 from them; q and k then only say heads, head_dim and sequences.
  Bf16Rows q_bf16 = {}, k_bf16 = {};
  bool broadcast_q = false;  ///< q is one sequence that every sequence of k's batch reads
  attention::Mask mask = {};
  double softmax_scale = 0.0;  ///< of the unpadded head_dim
  Scores scores = Scores::kF32;

  std::uint16_t* o = nullptr;       ///< out: BF16 [rows_o, num_heads, columns], 4-byte aligned
  std::int64_t o_token_stride = 0;  ///< elements, even
  std::int64_t o_head_stride = 0;
  /// Elements from a dense sequence to the next, even; 0: packed, seqlen_q * o_token_stride.
  std::int64_t o_batch_stride = 0;
  /// Out, where its codes are given in place of o: 2-byte aligned, even strides.
  device::Mxfp8Rows o_mxfp8 = {};
  std::int32_t columns = 0;  ///< head_dim of o, a multiple of 8; 0: q.head_dim
  float* lse = nullptr;      ///< out: [num_heads, rows_o], natural log; -infinity: no visible key
  float* row_max = nullptr;  ///< out, may be null: largest visible score in log2 units
  std::int64_t lse_head_stride = 0;

  /// forward_workspace_bytes() of memory, 16-byte aligned. Needed by jagged batches, and with more
  /// than 4096 keys where P V is summed in half (all but FP32 scores of 32xD blocks); without it
  /// the last round of dense ones is not divided among the multiprocessors. What Phase::kPlan
  /// leaves there serves calls of Phase::kAttend of the same shapes, one at a time.
  void* workspace = nullptr;
  device::Phase phase = device::Phase::kAll;
  device::ClearBehindParams behind = {};  ///< rows that no sequence has
};

/// From shapes alone. With 132 multiprocessors 37 MB for parts of divided tiles, or 8 bytes a
/// sequence if that is more, and 40 MB for segments of half sums.
std::int64_t forward_workspace_bytes(const driver::Device& device, std::int32_t batch);

/// Throws Error(kInvalidArgument) that names the field, what was expected and what came, and
/// Error(kUnsupported) for what the kernel does not have.
void attention_forward(const device::Queue& queue, const ForwardCall& call);

}  // namespace mxfa::sm90::forward
