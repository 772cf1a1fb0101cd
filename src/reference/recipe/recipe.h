#pragma once

#include <cstdint>
#include <vector>

#include "attention/mask.h"
#include "mx/quantize.h"
#include "mxfa/types.h"
#include "reference/attention.h"
#include "reference/matrix.h"
#include "reference/recipe/exp2.h"

/// Recipes: low-precision attention of one (sequence, head) with the arithmetic of the machine that
/// runs it, down to payload codes and scale bytes. A kernel is compared with this; the oracle
/// (reference/attention.h) says what the recipe costs in dB.
///
/// Everything between two roundings is FP32 as a kernel holds it; scores are in log2 units:
///   c      = float(softmax_scale * log2(e))
///   s_ij   = acc_ij * mult_ij          acc: the GEMM's FP32 result, mult: c * 2^(exponents folded)
/// Forward, for each key tile (m: running maximum of visible s, first -infinity):
///   alpha  = exp2(m_old - m),  base = p_offset - m
///   P'_ij  = exp2(fma(acc_ij, mult_ij, base + v_fold_j))
///   l      = fma(l, alpha, float(sum_j P'_ij * 2^-v_fold_j))             one rounding a tile
///   acc_O  = acc_O * alpha + P' payload * V payload              (from 0 as an interval begins)
///   O      = fma(O, alphas * 2^(old anchor - anchor), acc_O)     (as it ends; its alphas)
///   O      = O * (1 / l) * 2^anchor + shift_v,  LSE = (log2(l) - base) * ln 2
/// v_fold_j = max(v_j - anchor, -32) on Hopper, v_j being the exponent of V's group and anchor the
/// largest from the sequence's first group to the interval's last; 0 where the MMA scales V.
/// Leak-free: z_ij = fma(acc_ij, mult_ij, v_j), m the maximum of z, P' = exp2(z_ij + base),
/// v_fold = v_j for l, anchor = 0.
/// Backward, per key tile, queries in order:
///   bias_i = fold_i - lse_i * log2(e),  fold_i = max(dO_i - B + 8, -32)   (constant scale)
///   B      = max_i(dO_i + ceil(row_max_i - lse_i * log2(e)))     dO_i: 0 where the MMA scales dO
///   P'_ij  = exp2(fma(acc_ij, mult_ij, bias_i)),  P_ij = P'_ij * 2^-fold_i
///   dS_ij  = P_ij * fma(dp_acc_ij, 2^(dO_i + v_j), -delta_i)
///   dQ    += acc * (softmax_scale * 2^exponent), rounded as dq_accum says
/// Masked entries are selected to 0 after exp2; a maximum passes over NaN, l does not.
namespace mxfa::reference::recipe {

enum class Machine : std::uint8_t {
  kBlackwell,     ///< block-scaled MMA: MX scales are operands of the instruction
  kHopper,        ///< FP8 MMA without scales: exponents are folded into the softmax arithmetic
  kBf16,          ///< BF16 FlashAttention: the yardstick
  kF32,           ///< BF16 operands and nothing else rounded: the recipes' own structure
  kFp8PerTensor,  ///< one FP32 scale amax/448 for each tensor
};

enum class PScale : std::uint8_t {
  kConstant,     ///< P' = exp2(s - max + p_offset) is the payload, one scale for all
  kBlockAmax,    ///< E8M0 from the amax of each block of 32 along the GEMM's K
  kBlockRowMax,  ///< forward only: from exp2 of the block's largest score; equals kBlockAmax
};

enum class DsScale : std::uint8_t {
  kSquare32,  ///< 32 x 32 squares: one payload and scale serve dK and dQ (Blackwell)
  kWarp16,    ///< dK: amax of 16 keys x query tile, an exponent that only grows over the query
              ///< tiles; dQ: its own payload with the amax of query tile x 64 keys (Hopper)
  kTensor,    ///< one FP32 scale amax/448 (kFp8PerTensor)
};

enum class DqAccum : std::uint8_t {
  kF32,
  kF16,         ///< FP16 sums of dQ * 2^dq_exponent
  kF16Dynamic,  ///< the same, the exponent from a bound on max |dQ| of the head
  kBf16,
};

enum class OutputFormat : std::uint8_t { kF32, kBf16, kMxfp8 };

enum class Accumulator : std::uint8_t {
  kExact,      ///< a key tile's or promotion interval's exact sum plus C, rounded once to FP32
  kHopper,     ///< 13 fraction bits, truncating, for each K = 32 step (mx/tensor_core.h)
  kBlackwell,  ///< 25 fraction bits, truncating, for each K = 32 step (mx/tensor_core.h)
};

enum class DeltaSource : std::uint8_t {
  kDpOperand,  ///< the dO that the dP GEMM multiplies: dequantized, or BF16 under dp_bf16
  kBf16,       ///< BF16 dO: only to show what it costs
};

/// Everything that defines a recipe. The factories below give consistent defaults; check() names
/// the first field that its machine cannot execute.
struct RecipeConfig {
  Machine machine = Machine::kBlackwell;

  /// Operands. With k1x32 the copy whose GEMM runs along tokens is 32x1 (two payloads); the other
  /// shapes serve both orientations. Hopper wants k32xD or k1xD.
  BlockShape qk_shape = BlockShape::k32x32;
  BlockShape v_shape = BlockShape::k32x32;
  BlockShape dout_shape = BlockShape::k32x32;
  ScaleRule scale_rule = ScaleRule::kRoundUp;

  /// P.
  PScale p_scale = PScale::kConstant;
  /// log2 of what the row maximum becomes: 8 (256, an exact code), 0, 6, or log2(448). With block
  /// scales 0 is plain and log2(448) the two-level scheme.
  double p_offset = 8.0;
  /// Forward: a maximum that grows by no more than this (log2 units) stays as it is, so that O is
  /// rescaled rarely. Block scales only; p_offset + it is at most log2(448).
  double rescale_threshold = 0.0;
  PScale p_scale_backward = PScale::kBlockAmax;  ///< kConstant: one anchor for the head
  bool fold_row_max = true;  ///< kConstant, backward: fold ceil(log2 Pmax) of the row

  /// dS, gradients and outputs.
  DsScale ds_scale = DsScale::kSquare32;
  bool stochastic_ds = false;  ///< round dS stochastically, from `seed`
  std::uint64_t seed = 0;
  DqAccum dq_accum = DqAccum::kF32;
  int dq_exponent = 9;
  OutputFormat o_out = OutputFormat::kBf16;
  OutputFormat dq_out = OutputFormat::kBf16;
  OutputFormat dkv_out = OutputFormat::kBf16;
  BlockShape output_shape = BlockShape::k32x32;  ///< of MXFP8 outputs
  DeltaSource delta_source = DeltaSource::kDpOperand;

  /// Accumulation and tiles. 0 = never promoted.
  Accumulator accumulator = Accumulator::kExact;
  int promote_keys = 0;     ///< forward: a fresh accumulator every so many keys (x tile_n)
  int promote_queries = 0;  ///< dV and dK: likewise (a multiple of backward_tile_m)
  /// Hopper's backward: dV, dK and dQ of a key tile are summed in half (kHalfSums* below). Wants
  /// operands lowered for it (device/operands.h); dK is promoted at promote_dk_queries.
  bool half_sums = false;
  int promote_dk_queries = 0;
  int tile_n = 128;  ///< key tile, forward and backward
  int backward_tile_m = 128;
  bool last_keys_first = false;  ///< dQ is summed from the last key tile to the first

  /// Dials and stabilizers.
  bool qk_bf16 = false;        ///< S from BF16 Q and K
  bool dp_bf16 = false;        ///< dP from BF16 dO and V
  bool dkq_bf16 = false;       ///< dS in BF16; dK and dQ are BF16 GEMMs on the S GEMM's operands
  bool smooth_k = false;       ///< quantize K - shift_k
  bool smooth_v = false;       ///< quantize V - shift_v, and O += shift_v
  std::vector<float> shift_k;  ///< [head_dim]; empty: the mean over the sequence
  std::vector<float> shift_v;  ///< [head_dim]; empty: the mean over the sequence
  /// kBf16 only (Qiu and Yao): where a tile's row maximum repeats, exponentiate against the
  /// maximum plus this many nats, so that no P is 1. 0 = off.
  double tie_shift = 0.0;
  /// No scale is shared by two tokens: V is 1xD and its exponent joins the row maximum.
  bool leak_free = false;

  /// exp2 of whole rows: a kernel's approximation can take the place of the exact one.
  Exp2Row exp2 = exp2_f32_row;

  /// Keep S, P, dP, dS and the payloads (memory: several bytes for each score).
  bool keep_intermediates = false;

  static RecipeConfig blackwell();  ///< 32x32 squares, P 2^8, dS squares, exact accumulator
  static RecipeConfig hopper();     ///< 32xD, folds, bwr, 13-bit accumulator, promotion 128/512
  static RecipeConfig bf16();       ///< P, dS in BF16; delta from BF16 dO
  static RecipeConfig f32();        ///< kF32
  static RecipeConfig fp8_per_tensor();  ///< FP32 scales; delta from BF16 dO
  /// `base` (blackwell() or hopper()) in leak-free form: Q, K and V 1xD.
  static RecipeConfig leak_free_of(RecipeConfig base);

  /// Throws Error naming the field where the combination cannot be executed.
  void check() const;
};

/// One tensor as its GEMMs read it: [tokens, head_dim].
struct Operand {
  mx::QuantizedMatrix along_d;  ///< for the GEMM whose K is head_dim
  /// For the GEMM whose K are tokens; the same payload and scales unless the shape is k1x32.
  mx::QuantizedMatrix along_tokens;
  Matrix<float> bf16;         ///< BF16 values, shifted where smoothed: for BF16 GEMMs only
  float tensor_scale = 1.0f;  ///< kFp8PerTensor: value = code * tensor_scale; scales are all 127

  std::int64_t rows() const { return codes_only() ? along_d.rows : bf16.rows; }
  std::int64_t cols() const { return codes_only() ? along_d.cols : bf16.cols; }

 private:
  bool codes_only() const { return bf16.cols == 0; }
};

struct Operands {
  Operand q, k, v;
  Operand dout;                ///< empty where only the forward is asked for
  std::vector<float> shift_k;  ///< [head_dim], what was subtracted; empty without smoothing
  std::vector<float> shift_v;  ///< [head_dim]
};

/// Half sums: binades that dS stays below 448, in dK's payload (at most 56) and dQ's (112).
inline constexpr int kHalfSumsDkRoom = 3;
inline constexpr int kHalfSumsDqRoom = 2;
/// As often as dV is promoted, a warp whose dK has a larger magnitude loses 3 binades.
inline constexpr float kHalfSumsMostDk = 8192.0f;
inline constexpr int kHalfSumsShrink = 3;

struct HeadProblem {
  attention::Mask mask;
  double softmax_scale = 1.0;
};

/// What the forward saves for the backward; a kernel's own may be given instead.
struct SavedForward {
  Matrix<float> o;             ///< [seqlen_q, head_dim], after the output's rounding
  std::vector<float> lse;      ///< [seqlen_q], natural log; -infinity in rows without a visible key
  std::vector<float> row_max;  ///< [seqlen_q], largest visible s (log2 units); -infinity likewise
};

struct RecipeForward {
  SavedForward saved;
  std::vector<float> row_sum;  ///< [seqlen_q], l: sum of un-quantized, un-folded P' = exp2(s - max
                               ///< + p_offset), max in leak-free form with V's exponent

  /// Below: only under keep_intermediates.
  Matrix<float> s;  ///< [seqlen_q, seqlen_k], log2 units, masked entries included
  Matrix<float> p;  ///< [seqlen_q, seqlen_k], un-quantized P' of its key tile
  /// Of P', 1x32. A constant 2^p_offset has the scale 127 - p_offset, or 127 if that is no integer.
  mx::QuantizedMatrix p_payload;
  Matrix<float> tile_max;  ///< [seqlen_q, key tiles], the running maximum (with V's exponent in
                           ///< leak-free form) that P' of the tile was taken against
  /// [key tiles]: V's anchor exponent of the tile (Hopper), 0 elsewhere.
  std::vector<int> v_anchor;
  Matrix<float> p_normalized;  ///< [seqlen_q, seqlen_k], what P' payloads mean: sum is about 1
};

struct RecipeBackward {
  Matrix<float> dq, dk, dv;       ///< after the output's rounding
  std::vector<float> delta;       ///< [seqlen_q]
  std::vector<float> p_bias;      ///< [seqlen_q], fold - lse * log2(e): the bias of x
  std::vector<int> p_fold;        ///< [seqlen_q], log2 of P' / P
  int p_anchor = 0;               ///< dV = 2^p_anchor * payload^T * dO's payload (B - 8)
  int dq_exponent = 0;            ///< kF16, kF16Dynamic: the one that was used
  std::int64_t dq_overflows = 0;  ///< FP16 sums that were infinite or NaN and became +-65504
  std::int64_t ds_rescales = 0;   ///< kWarp16: how often an exponent grew after its first tile

  /// Below: only under keep_intermediates. All [seqlen_q, seqlen_k] (not transposed).
  Matrix<float> p;                ///< P' = P * 2^p_fold, un-quantized
  Matrix<float> dp;               ///< un-folded
  Matrix<float> ds;               ///< P * (dP - delta), un-quantized
  mx::QuantizedMatrix p_payload;  ///< of P'; blocks 32x1 (kBlockAmax); scale 127 where constant
  /// dS payloads. kSquare32: one, dS = code * 2^(exponent - row_fold - col_fold), exponents of
  /// [32 queries, 32 keys]. kWarp16: dK's dS = code * 2^(exponent - row_fold), exponents of
  /// [query tile, 16 keys] as they were when the tile was quantized (-1000: all zero so far); dQ's
  /// dS = code * 2^(exponent - col_fold), exponents of [query tile, 64 keys] (-1000: all zero).
  Matrix<std::uint8_t> ds_dk_codes;
  Matrix<std::uint8_t> ds_dq_codes;
  Matrix<std::int16_t> ds_dk_exponent;
  Matrix<std::int16_t> ds_dq_exponent;
  std::vector<int> ds_row_fold;  ///< [seqlen_q], Q's exponents; kSquare32: less their maximum, and
                                 ///< empty where the MMA applies them
  std::vector<int> ds_col_fold;  ///< [seqlen_k], K's, likewise
  Matrix<float> ds_dequantized;  ///< what dK's payload means
};

/// Rounds inputs to BF16, smooths, quantizes. Throws Error on shapes that do not fit.
Operands quantize_operands(const HeadInputs& inputs, const RecipeConfig& config);
/// The operand's payload made again from its values, `binades` lower, `coarse` with scales in steps
/// of 4 binades; columns of 32 tokens then add up to `half_sums` at most, if that is not 0
/// (mx/lower.h). Of blocks that serve both orientations.
void requantize(const Matrix<float>& values, int binades, Operand& operand, bool coarse = false,
                float half_sums = 0);
/// The dequantized operands, the "kern" inputs of the oracle: what is left is the kernel's error.
/// Under qk_bf16 Q and K are the BF16 values; V and dO are always dequantized.
HeadInputs kern_inputs(const Operands& operands, const HeadProblem& problem,
                       const RecipeConfig& config);

/// Operands may come from quantize_operands() or from a kernel's producers. Throws Error naming an
/// operand whose shape or data do not fit `config`.
RecipeForward recipe_forward(const Operands& operands, const HeadProblem& problem,
                             const RecipeConfig& config);
/// `forward` may come from recipe_forward() or from a kernel.
RecipeBackward recipe_backward(const Operands& operands, const HeadProblem& problem,
                               const SavedForward& forward, const RecipeConfig& config);

/// One forward and backward step for SQNR, everything in natural units and un-folded.
struct StepTensors {
  Matrix<float> s;   ///< [seqlen_q, seqlen_k], softmax_scale * Q K^T, masked entries included
  Matrix<float> p;   ///< quantized and normalized, as it multiplies V
  Matrix<float> dp;  ///< dO V^T
  Matrix<float> ds;  ///< quantized, as it multiplies Q
  Matrix<float> o, dq, dk, dv;
  std::vector<float> lse;
  std::int64_t dq_overflows = 0;
  HeadInputs kern;             ///< for the kern reference; K and V shifted where smoothed
  std::vector<float> shift_v;  ///< add to the kern oracle's O; empty without smoothing
};
/// Under smoothing S, LSE and dP belong to the shifted K and V (softmax and gradients do not
/// depend on the shift); O has shift_v added back. The backward runs where inputs.dout is given.
StepTensors run_step(const HeadInputs& inputs, const RecipeConfig& config);

}  // namespace mxfa::reference::recipe
