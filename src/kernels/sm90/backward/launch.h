#pragma once

#include <cstdint>

#include "attention/mask.h"
#include "device/operands.h"
#include "device/ops.h"
#include "kernels/sm90/backward/params.h"
#include "kernels/sm90/common/operand_maps.h"

namespace mxfa::sm90::backward {

/// Gradients of softmax attention on Hopper. All pointers are device addresses. Operands as
/// prepare_operands() makes them for a backward; sequences as their offsets say; rows behind the
/// last sequence are not written. Nothing waits for the device.
struct BackwardCall {
  device::AttentionOperand q;     ///< rows, and transposed in pi order; 32xD, as all of these, or
                                  ///< 1xD as k and v, where `product` is kTokenScales
  device::AttentionOperand k;     ///< rows, and transposed in sigma order
  device::AttentionOperand v;     ///< rows; k's offsets
  device::AttentionOperand dout;  ///< rows, and transposed in pi order; o's sequences
  /// In BF16: S from q_bf16 and k_bf16 (of q and k then the transposed copies alone are read), dP
  /// from dout_bf16 (likewise) and v_bf16 (v only says heads, head_dim and sequences).
  Product product = Product::kGroupScales;
  Bf16Rows q_bf16 = {}, k_bf16 = {}, v_bf16 = {}, dout_bf16 = {};
  bool broadcast_q = false;  ///< q is one sequence that every sequence of k's batch reads
  attention::Mask mask = {};
  double softmax_scale = 0.0;  ///< the forward's

  const std::uint16_t* o = nullptr;  ///< BF16 [rows_o, num_heads, columns], 8-byte aligned
  std::int64_t o_token_stride = 0;   ///< elements, multiples of 4
  std::int64_t o_head_stride = 0;
  const float* lse = nullptr;      ///< [num_heads, rows_o], of the forward
  const float* row_max = nullptr;  ///< likewise; null costs precision of dV over many keys
  std::int64_t lse_head_stride = 0;
  std::int32_t columns = 0;  ///< head_dim of o and the gradients, a multiple of 8; 0: q.head_dim

  GradientOut dq;  ///< [total_q, num_heads, columns], summed over the batch where q is broadcast
  device::Mxfp8Rows dq_mxfp8 = {};  ///< in place of dq; 4-byte aligned, k1x32 or k32x32
  GradientOut dk, dv;               ///< [total_k, num_heads_kv, columns]; null: not wanted, as dq
  device::ClearBehindParams behind = {};  ///< rows of gradients that no sequence has
  Scores scores = Scores::kF32;           ///< kF16: of operands that are lowered for it
  DqSums dq_sums = DqSums::kF32;
  /// kF16: sums are of dQ * 2^dq_exponent, attention::is_dq_exponent(). One that overflows becomes
  /// +-65504 * 2^-dq_exponent.
  std::int32_t dq_exponent = 9;
  /// dQ's sums are made from the last keys to the first: bit-equal from run to run, slower. (dK and
  /// dV always are.)
  bool deterministic = false;
  unsigned long long* dq_overflows = nullptr;  ///< added to: how many did; may be null

  void* workspace = nullptr;  ///< backward_workspace_bytes() of memory, 256-byte aligned
};

/// Whether `deterministic` can be had: key tiles of several sequences that add to one tile of dQ
/// are counted, and a mask would leave some of them out.
constexpr bool dq_has_order(bool broadcast_q, const attention::Mask& mask) {
  return !broadcast_q || !(mask.causal || mask.window_left >= 0 || mask.window_right >= 0);
}

/// From shapes alone.
std::int64_t backward_workspace_bytes(const driver::Device& device, const BackwardCall& call);

/// Throws Error(kInvalidArgument) that names the field, what was expected and what came, and
/// Error(kUnsupported) for what the kernel does not have.
void attention_backward(const device::Queue& queue, const BackwardCall& call);

/// Its last step: dQ's sums to rows. `params.head_stride` tiles of 64 queries at most.
void finish_dq(const device::Queue& queue, const DqParams& params);

}  // namespace mxfa::sm90::backward
