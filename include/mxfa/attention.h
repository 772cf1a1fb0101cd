#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "mxfa/device.h"
#include "mxfa/quantize.h"
#include "mxfa/tensor.h"
#include "mxfa/types.h"

/// Softmax attention over a jagged batch, forward and backward, in MXFP8 or BF16:
/// S = softmax_scale * Q K^T, P = softmax(S), O = P V; dV = P^T dO, dP = dO V^T,
/// dS = P * (dP - delta), delta = rowsum(dO * O), dQ = softmax_scale * dS K,
/// dK = softmax_scale * dS^T Q.
namespace mxfa::attention {

enum class Precision : std::uint8_t {
  kMxfp8,
  kBf16,  ///< all operands, P and dS in BF16, sums in FP32
};

/// Whose MXFP8 arithmetic is followed; the default block shape of operands differs.
enum class Recipe : std::uint8_t {
  kBlackwell,  ///< operands and dS in 32x32 squares; P 2^8 forward, blocks of 32 queries backward
  kHopper,     ///< operands 32xD; dS by 16 keys x 64 queries (dK) and 64 x 64 (dQ); P 2^8
};

/// What half_scores may move lse by, relative to max(1, |lse|): a score of 128 columns passes four
/// steps of a half accumulator, each of which cuts off up to 2^-10 of it.
inline constexpr double kHalfScoresLse = 0x1p-8;

/// Scales of P in the forward's O = P V.
enum class PScale : std::uint8_t {
  kConstant,     ///< 2^-8 for all
  kBlockAmax,    ///< of each 32 keys of a query, from their largest P
  kBlockRowMax,  ///< the same from their largest score: one more exp2 in place of a second maximum
};

/// What a pair of calls computes. The backward recomputes S, so it wants the forward's options.
struct Options {
  /// Where the call runs and whose memory its tensors and workspace are in. Null: the CPU.
  const Device* device = nullptr;
  void* stream = nullptr;  ///< of the device, a CUstream or cudaStream_t; null: the default stream

  Precision precision = Precision::kMxfp8;
  Recipe recipe = Recipe::kBlackwell;

  bool causal = false;
  CausalAlignment causal_alignment = CausalAlignment::kBottomRight;
  int window_left = -1;   ///< keys further left of the diagonal are hidden; -1 = unbounded
  int window_right = -1;  ///< likewise to the right
  /// 2^-120 to 2^120; default 1 / sqrt(head_dim).
  std::optional<double> softmax_scale = std::nullopt;
  /// q is one sequence of total_q rows that every sequence of the batch reads; dq is summed over
  /// the batch, in ascending order (on a device: with `deterministic` only).
  bool broadcast_q = false;
  /// CPU only (on a device lengths are not read by the host). >= 0: longer sequences are refused.
  std::int64_t max_seqlen_q = -1;
  std::int64_t max_seqlen_k = -1;

  /// kMxfp8 only: refused in kBf16. The dials need BF16, F16 or F32 tensors where they skip
  /// quantization.
  bool qk_bf16 = false;  ///< S from BF16 q and k; on Hopper GPUs o sums in half, as half_scores
  /// dP from BF16 dout and v. A forward computes no dP: it takes the option, so that a pair of
  /// calls may share theirs, but `exact` and Blackwell GPUs, which have no backward, refuse it.
  bool dp_bf16 = false;
  /// No scale is shared by two tokens (q, k and v in 1xD blocks), so a future token cannot change
  /// an earlier output of a causal call, bit for bit. On Hopper GPUs o sums in half, from v
  /// quantized 8 binades lower. With half_scores, key blocks with tokens of v whose largest
  /// magnitude is not between 2^-6 and 2^8, or of k not between 2^-13 and 2^10, are slow.
  bool leak_free = false;
  /// Hopper GPUs only. S accumulates in half, from q and k quantized 5 and 4 binades lower: faster,
  /// at up to 1 dB of o where scores are large; lse within kHalfScoresLse * max(1, |lse|). P V and
  /// o do too, from v with scales so large that a column's payload of 32 tokens sums up to 64 (or,
  /// with leak_free, as said there). In a backward dP does, from v and dout 5 and 4 binades lower.
  /// Not with payload as input.
  bool half_scores = false;
  PScale p_scale = PScale::kConstant;  ///< others: Blackwell GPUs only, not with leak_free
  /// Devices only. The same operands (Recipe::kHopper's), then attention in FP32 by a plain kernel
  /// that any architecture runs: slow, for checking. o: kBF16 or kF32, side by side; no dials.
  bool exact = false;
  ScaleRule scale_rule = ScaleRule::kRoundUp;    ///< of everything that is quantized in the call
  BlockShape output_shape = BlockShape::k32x32;  ///< of outputs in MXFP8

  /// Ask for a dq that is the same bits each time. All other results always are, and on the CPU,
  /// for any number of threads, dq as well; on a device its sums are then made in a fixed order,
  /// from the last keys of a sequence to its first, which is slower.
  bool deterministic = false;
  /// Devices only. What dq's sums are kept in: kF32, or kF16, half as many bytes of the sums that
  /// bind where queries are short. Those are of dq * 2^dq_exponent; one that overflows half becomes
  /// +-65504 * 2^-dq_exponent and is counted (BackwardArgs::dq_overflows).
  DType dq_accum = DType::kF32;
  int dq_exponent = 9;  ///< -64 to 64
  bool operator==(const Options&) const = default;
};

// What a device refuses, each by name with Error(kUnsupported), beside what is said of an option:
//   all                precision bf16, the floor rule, max_seqlen_q and max_seqlen_k,
//                      output_shape other than 1x32 and 32x32, offsets whose stride is not 1,
//                      leak-free payload, payload of other head_dim than 64 and 128 or lying apart
//   sm_90a   forward   qk_bf16 with leak_free or half_scores; o in F32; o in MXFP8 lying apart;
//                      qk_bf16 unless q and k are BF16, side by side, on 16 bytes; exact with
//                      qk_bf16 or dp_bf16
//            backward  exact; leak_free, qk_bf16 and dp_bf16 with half_scores or dq_accum kF16;
//                      leak_free with either; these two unless q and k, or v and dout, are BF16,
//                      side by side, on 16 bytes; o but in BF16; gradients in F32; dk and dv in
//                      MXFP8 of head_dim but 32, 64, 96, 128; these lying apart; delta; dq_seq;
//                      deterministic with a mask where q is broadcast
//   sm_100a  forward   qk_bf16; dp_bf16; half_scores; p_scale but kConstant with leak_free;
//   sm_103a            o in F32 or lying apart
//            backward  all of it
// (Lying apart: dense, and the stride of the batch is not seqlen * the stride of a token.)

/// The recipe of a device's kernels: what Options::recipe must be on it, except with `exact`.
/// Throws Error(kUnsupported) naming an architecture without any.
Recipe native_recipe(const Device& device);

/// Block shape of q, k and v, and of dout (never 1xD), in row-major scales.
BlockShape operand_shape(const Options& options);
BlockShape dout_shape(const Options& options);

/// values: kBF16, kF16 or kF32 (inputs are rounded to BF16 first), or kE4M3 payload; any strides.
/// scales, for kE4M3 only: kE8M0 or kU8, scale_shape() of operand_shape(), dout_shape() or
/// (outputs) options.output_shape, ScaleLayout::kRowMajor; groups are counted from each sequence's
/// first row.
using mxfa::Tensor;

/// The scales of payload once more, as block-scaled tensor cores read them: kE8M0 or kU8
/// scale_shape() in ScaleLayout::kTiled128x4, for products that sum over head_dim and for those
/// that sum over tokens. What is not given is not written; 1x32 and 1xD scales have no second,
/// 32x1 scales no first. On a device: on 16 bytes.
struct TiledScales {
  TensorView head_dim = {};  ///< ScaleAxis::kHeadDim: [heads, tiles, ceil(head_dim / 128), 512]
  TensorView tokens = {};    ///< ScaleAxis::kTokens, likewise
  bool operator==(const TiledScales&) const = default;
};

/// rows_o = total_q, or batch * total_q where q is broadcast. Query head h reads the kv head
/// h / (num_heads / num_heads_kv). head_dim: a multiple of 8 up to 128.
struct ForwardArgs {
  Tensor q = {};                 ///< [total_q, num_heads, head_dim]
  Tensor k = {};                 ///< [total_k, num_heads_kv, head_dim]
  Tensor v = {};                 ///< [total_k, num_heads_kv, head_dim]
  TensorView cu_seqlens_q = {};  ///< kI32 or kI64 [batch + 1]; not given where q is broadcast
  TensorView cu_seqlens_k = {};  ///< kI32 or kI64 [batch + 1]
  Tensor o = {};        ///< out: [rows_o, num_heads, head_dim], kF32, kBF16, or kE4M3 + scales
  TensorView lse = {};  ///< out: kF32 [num_heads, rows_o], natural log
  /// out, optional: kF32 [num_heads, rows_o], the largest visible score in log2 units. The Hopper
  /// recipe's backward needs it.
  TensorView row_max = {};
  bool operator==(const ForwardArgs&) const = default;
};

struct BackwardArgs {
  Tensor q = {}, k = {}, v = {};  ///< as the forward's
  TensorView cu_seqlens_q = {};   ///< as the forward's
  TensorView cu_seqlens_k = {};
  Tensor o = {};            ///< the forward's output in kBF16 or kF32; MXFP8 is refused
  TensorView lse = {};      ///< the forward's
  TensorView row_max = {};  ///< the forward's; Recipe::kHopper only
  Tensor dout = {};         ///< [rows_o, num_heads, head_dim]
  /// Outputs; those not given are not computed. kF32, kBF16, or kE4M3 + scales.
  Tensor dq = {};  ///< [total_q, num_heads, head_dim]
  Tensor dk = {};  ///< [total_k, num_heads_kv, head_dim], summed over the query heads that read it
  Tensor dv = {};  ///< [total_k, num_heads_kv, head_dim], likewise
  TiledScales dk_tiled = {};  ///< out, optional, where dk is kE4M3: dk.scales tiled
  TiledScales dv_tiled = {};  ///< of dv, likewise
  /// out, optional: kF32 [num_heads, rows_o], rowsum(dout * o) as dS takes it; 0 behind the last
  /// sequence.
  TensorView delta = {};
  /// out, optional, only where q is broadcast and dq is given: kF32 or kBF16 [rows_o, num_heads,
  /// head_dim], dq of each sequence before it is summed over the batch.
  TensorView dq_seq = {};
  /// Optional, devices only: kI64 [1], to which the number of dq's sums that overflowed is added.
  TensorView dq_overflows = {};
  bool operator==(const BackwardArgs&) const = default;
};

/// What a backward takes of a forward's arguments, and of what that call has written there. Which
/// gradients are wanted is left to the caller.
BackwardArgs backward_args(const ForwardArgs& forward, const Tensor& dout);

/// Bytes of scratch that a call uses beside its arguments: copies of operands that kernels read
/// in another form, dq sums in FP32 or FP16. It grows with rows * heads * head_dim, never
/// with seqlen_q * seqlen_k. On the CPU each thread keeps about 4 MB more, plus in the backward 12
/// bytes for each element of one kv head's queries. On a device it follows from shapes alone.
std::int64_t forward_workspace_bytes(const ForwardArgs& args, const Options& options);
std::int64_t backward_workspace_bytes(const BackwardArgs& args, const Options& options);

/// Rows without a visible key get o = 0 and lse = -infinity, as do rows behind the last sequence
/// (which are never read). A NaN or infinity in an MXFP8 operand makes its block NaN, and with it
/// every result that reads the block (dS is such an operand); keys that are hidden from a query are
/// not read by it. Scores (softmax_scale q.k) have FP32's range on the CPU. On a device o is right
/// for scores up to 2^21 in magnitude; from there on P loses bits, from about 2^24 o is wrong, and
/// 0, infinite or NaN from 2^30 on; with half_scores lse ends near 46070. A backward takes P from
/// lse, whose rounding changes P by up to |lse| * 2^-24 of it, wherever it runs: gradients where
/// scores are 2^20 and more are of little use. Outputs have memory of their own (tensor.h).
/// `workspace`: at least the bytes above, 64-byte aligned; empty: the call allocates.
/// Throws Error(kInvalidArgument) that names the argument, what was expected and what came, before
/// anything is written; Error(kUnsupported) for a valid request that the library or the device's
/// architecture does not have; Error(kDevice) where a call of the driver fails.
///
/// On a device (options.device) q, k and v are kBF16 or kF32 and are quantized by the call, or
/// kE4M3 payload; head_dim is contiguous. All pointers are device addresses, workspace is on 256
/// bytes and never empty. The call returns once its kernels are in options.stream: it waits for
/// nothing, allocates nothing and may be captured in a CUDA graph, but a kernel's first launch,
/// which loads it. cu_seqlens lie on the device and are not checked: ascending from 0, at
/// most the tensor's rows. Where none is given, the batch is dense: q, o [batch, seqlen_q,
/// num_heads, head_dim], k, v [batch, seqlen_k, num_heads_kv, head_dim] (a broadcast q keeps its
/// three dimensions). Scales of jagged payload have the extent of max_scale_shape(); those of
/// outputs behind the last sequence are 0.
void forward(const ForwardArgs& args, const Options& options, std::span<std::byte> workspace = {});
/// The halves of a forward on a device, for callers that keep operands: the first makes them in the
/// workspace, the second runs on what the first left there, as often as it is called, one call at a
/// time. Both take what forward() takes, of the same lengths. The second takes the host least time
/// where it comes again with equal arguments: the Device keeps some host memory of up to 128 such.
void prepare_forward(const ForwardArgs& args, const Options& options,
                     std::span<std::byte> workspace);
void forward_prepared(const ForwardArgs& args, const Options& options,
                      std::span<std::byte> workspace);
/// Rows behind the last sequence get gradient 0. Errors, and calls on a device, as forward()'s.
void backward(const BackwardArgs& args, const Options& options,
              std::span<std::byte> workspace = {});
/// Its halves, likewise: the first quantizes q, k, v and dout.
void prepare_backward(const BackwardArgs& args, const Options& options,
                      std::span<std::byte> workspace);
void backward_prepared(const BackwardArgs& args, const Options& options,
                       std::span<std::byte> workspace);

}  // namespace mxfa::attention
