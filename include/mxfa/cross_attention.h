#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "mxfa/attention.h"
#include "mxfa/tensor.h"
#include "mxfa/types.h"

/// The jagged cross-attention module, forward and backward, in MXFP8 or BF16:
///
///   seed_norm = RMSNorm(seeds)          kv_norm = RMSNorm(kv)
///   q = seed_norm Wq^T   k = kv_norm Wk^T   v = kv_norm Wv^T
///   o = softmax(softmax_scale q k^T) v, for each sequence and head
///   y = o Wo^T
///
/// The seed queries are one tensor that every sequence of the batch reads. No residual connection,
/// no bias, no dropout. Everything between y and the inputs is stored in MXFP8 (or in BF16): blocks
/// of 32 x 32 for operands of the projections, those of attention::operand_shape() and dout_shape()
/// for attention's; sums are FP32. o is left in BF16, which the backward's delta needs, and its
/// products read an MXFP8 copy. Memory grows with the rows of the batch. Results do not depend on
/// the number of threads.
namespace mxfa::cross_attention {

struct Options {
  Backend backend = Backend::kCpu;
  attention::Precision precision = attention::Precision::kMxfp8;
  attention::Recipe recipe = attention::Recipe::kBlackwell;
  std::int64_t num_heads = 1;     ///< of q and o; head_dim is wq's rows / num_heads
  std::int64_t num_heads_kv = 0;  ///< of k and v; 0: num_heads
  std::optional<double> softmax_scale = std::nullopt;  ///< default 1 / sqrt(head_dim)
  double eps = 1e-6;                                   ///< of both norms
  std::int64_t max_seqlen_k = -1;                      ///< >= 0: longer sequences are refused
  ScaleRule scale_rule = ScaleRule::kRoundUp;          ///< of everything that is quantized
  /// Without effect in kBf16: BF16 for the operands of the products with few rows, those of the
  /// seed queries and of the output (seed_norm, Wq, dq; o, Wo, dy).
  bool queries_bf16 = false;
};

/// kBF16, kF16 or kF32, any strides. The norms take FP32 values as they are; the projections are
/// rounded to what their products read.
struct Inputs {
  TensorView seeds = {};             ///< [seqlen_q, dim]
  TensorView kv = {};                ///< [total_k, dim]
  TensorView cu_seqlens_k = {};      ///< kI32 or kI64 [batch + 1]
  TensorView seed_norm_weight = {};  ///< [dim]
  TensorView kv_norm_weight = {};    ///< [dim]
  TensorView wq = {};                ///< [num_heads * head_dim, dim]
  TensorView wk = {};                ///< [num_heads_kv * head_dim, dim]
  TensorView wv = {};                ///< [num_heads_kv * head_dim, dim]
  TensorView wo = {};                ///< [dim, num_heads * head_dim]
};

/// What the forward leaves for the backward. Rows of seeds and of o are grouped by 32 from each
/// sequence's first row, as those of kv are.
struct Activations {
  Tensor seed_norm = {};      ///< [seqlen_q, dim]
  Tensor kv_norm = {};        ///< [total_k, dim]
  Tensor q = {};              ///< [seqlen_q, num_heads, head_dim]
  Tensor k = {};              ///< [total_k, num_heads_kv, head_dim]
  Tensor v = {};              ///< [total_k, num_heads_kv, head_dim]
  Tensor o = {};              ///< BF16 [batch * seqlen_q, num_heads, head_dim]
  TensorView seed_rstd = {};  ///< kF32 [seqlen_q]
  TensorView kv_rstd = {};    ///< kF32 [total_k]
  TensorView lse = {};        ///< kF32 [num_heads, batch * seqlen_q], natural log
  TensorView row_max = {};    ///< kF32 likewise, Recipe::kHopper in kMxfp8 only
};

/// The backward's own tensors, for who wants to look at them.
struct Intermediates {
  Tensor dout = {};        ///< [batch * seqlen_q, num_heads, head_dim], dy Wo
  TensorView delta = {};   ///< kF32 [num_heads, batch * seqlen_q]
  TensorView dq_seq = {};  ///< kF32 [batch * seqlen_q, num_heads, head_dim], dq of each sequence
  Tensor dq = {};          ///< [seqlen_q, num_heads, head_dim]
  Tensor dk = {};          ///< [total_k, num_heads_kv, head_dim]
  Tensor dv = {};          ///< [total_k, num_heads_kv, head_dim]
  TensorView dseed_norm = {};  ///< kF32 [seqlen_q, dim]
  TensorView dkv_norm = {};    ///< kF32 [total_k, dim]
};

/// Gradients of Inputs, of their shapes: kF32 or kBF16, any strides; those not given are not
/// computed. Rows of kv behind the last sequence get 0.
struct Gradients {
  TensorView seeds = {}, kv = {};
  TensorView seed_norm_weight = {}, kv_norm_weight = {};
  TensorView wq = {}, wk = {}, wv = {}, wo = {};
};

/// Lays the tensors out in caller memory, 64-byte aligned, at least the bytes below. Shapes and
/// dtypes follow from inputs and options; no tensor is read but cu_seqlens_k.
Activations make_activations(const Inputs& inputs, const Options& options,
                             std::span<std::byte> memory);
std::int64_t activation_bytes(const Inputs& inputs, const Options& options);
Intermediates make_intermediates(const Inputs& inputs, const Options& options,
                                 std::span<std::byte> memory);
std::int64_t intermediate_bytes(const Inputs& inputs, const Options& options);

/// Bytes of scratch that a call uses beside its arguments. Each thread has up to 8 MB more and 12
/// bytes for each element of one head's queries; a weight's gradient takes up to 64 times its size
/// in FP32 (256 MB at most) while it is summed over the batch.
std::int64_t forward_workspace_bytes(const Inputs& inputs, const Options& options);
std::int64_t backward_workspace_bytes(const Inputs& inputs, const Options& options);

/// y: kF32 or kBF16 [batch * seqlen_q, dim], any strides; 0 for a sequence without keys. Rows of kv
/// behind the last sequence are not read. A NaN or infinity in a row of kv makes what its block
/// reaches NaN, and nothing of other sequences but the weights' gradients.
/// `workspace`: at least the bytes above, 64-byte aligned; empty: the call allocates.
/// Throws Error(kInvalidArgument) that names the argument, what was expected and what came, before
/// anything is written; Error(kUnsupported) for a valid request that the library does not have.
void forward(const Inputs& inputs, const Activations& activations, const TensorView& y,
             const Options& options, std::span<std::byte> workspace = {});

/// `activations`: the forward's, on the same inputs and options. dy: kBF16, kF16 or kF32
/// [batch * seqlen_q, dim]. Where `intermediates` are given they are written too, and not taken
/// from the workspace.
void backward(const Inputs& inputs, const Activations& activations, const TensorView& dy,
              const Gradients& gradients, const Options& options,
              std::span<std::byte> workspace = {}, const Intermediates* intermediates = nullptr);

}  // namespace mxfa::cross_attention
