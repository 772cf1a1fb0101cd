#pragma once

#include <cstdint>
#include <span>

#include "attention/mask.h"
#include "device/block_scaled.h"
#include "device/ops.h"
#include "driver/kernel.h"
#include "kernels/sm100/forward/config.h"
#include "kernels/sm100/forward/params.h"

namespace mxfa::sm100 {

/// The images of this architecture's kernels, for a KernelCache.
std::span<const driver::KernelImage> kernel_images();

}  // namespace mxfa::sm100

namespace mxfa::sm100::forward {

/// Softmax attention on Blackwell: O = softmax(softmax_scale * Q K^T) V, every product in MXFP8.
/// All pointers are device addresses. Sequences as the operands' offsets say; rows behind the last
/// one are not written.
struct ForwardCall {
  device::BlockScaledOperand q;  ///< axis kHeadDim
  device::BlockScaledOperand k;  ///< axis kHeadDim
  device::BlockScaledOperand v;  ///< axis kTokens; k's offsets
  /// No scale is shared by two tokens: v has axis kHeadDim and one scale a token (1xD blocks), at
  /// least 2^-64 (device::kLeakFreeMinScale); q and k 1xD or 1x32.
  bool leak_free = false;
  bool broadcast_q = false;  ///< q is one sequence that every sequence of k's batch reads
  attention::Mask mask = {};
  double softmax_scale = 0.0;          ///< of the unpadded head_dim
  PScale p_scale = PScale::kConstant;  ///< kConstant where leak_free

  std::uint16_t* o = nullptr;       ///< out: BF16 [rows_o, num_heads, columns], 16-byte aligned
  std::int64_t o_token_stride = 0;  ///< elements, a multiple of 8
  std::int64_t o_head_stride = 0;
  /// Out, where its codes are given in place of o: address and strides on 8 bytes.
  device::Mxfp8Rows o_mxfp8 = {};
  std::int32_t columns = 0;  ///< head_dim of o, a multiple of 8; 0: q.head_dim
  float* lse = nullptr;      ///< out: [num_heads, rows_o], natural log; -infinity: no visible key
  float* row_max = nullptr;  ///< out, may be null: largest visible score in log2 units
  std::int64_t lse_head_stride = 0;

  void* workspace = nullptr;  ///< forward_workspace_bytes(), 16-byte aligned; for jagged batches
  device::Phase phase = device::Phase::kAll;
};

/// From shapes alone, 8 bytes a sequence.
std::int64_t forward_workspace_bytes(std::int32_t batch);

/// Throws Error(kInvalidArgument) that names the field, what was expected and what came, and
/// Error(kUnsupported) for what the kernel does not have.
void attention_forward(const device::Queue& queue, const ForwardCall& call);

/// The same by the entries of a test program's own image, "attention_forward_probe", which also
/// write what `probe` asks for.
void attention_forward_probed(const device::Queue& queue, const ForwardCall& call,
                              const Probe& probe);

}  // namespace mxfa::sm100::forward
