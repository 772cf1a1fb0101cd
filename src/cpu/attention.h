#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/problem.h"
#include "cpu/operand.h"

/// Attention on the CPU, tile by tile with the arithmetic of the recipes: scores of 128 keys at a
/// time, FP8 payload multiplied as BF16, sums in FP32. All arguments are checked by the caller.
namespace mxfa::cpu {

/// FP32 [num_heads, rows_o].
struct RowValues {
  float* data = nullptr;
  std::int64_t head_stride = 0;
  std::int64_t row_stride = 1;

  float& at(std::int64_t head, std::int64_t row) const {
    return data[head * head_stride + row * row_stride];
  }
};

struct Arithmetic {
  bool bf16 = false;       ///< P and dS in BF16; every operand BF16
  bool hopper = false;     ///< V's and dO's exponents are folded into P, K's and Q's into dS
  bool leak_free = false;  ///< V's exponents join the row maximum
  ScaleRule rule = ScaleRule::kRoundUp;
};

struct ForwardCall {
  attention::AttentionProblem problem;
  Arithmetic arithmetic = {};
  Operand q = {}, k = {};  ///< of S
  Operand v = {};
  Target o = {};
  RowValues lse = {};
  RowValues row_max = {};                ///< data null: not wanted
  std::uint16_t* shared_keys = nullptr;  ///< shared_key_bytes() of them, 64-byte aligned
};
/// Scratch for keys that many queries read: 0 where they pack their own. Of the shape alone.
std::int64_t shared_key_bytes(const attention::AttentionProblem& problem);
/// Rows of sequences only; slack is the caller's.
void attention_forward(const ForwardCall& call);

struct BackwardCall {
  attention::AttentionProblem problem;
  Arithmetic arithmetic = {};
  Operand q_s = {}, k_s = {};     ///< of S
  Operand dout_p = {}, v_p = {};  ///< of dP; dout_p is delta's, too
  Operand dout_v = {};            ///< of dV
  Operand q_k = {};               ///< of dK
  Operand k_q = {};               ///< of dQ
  Operand o = {};
  RowValues lse = {};
  RowValues row_max = {};  ///< Hopper only
  Target dq = {}, dk = {}, dv = {};
  RowValues delta = {};                 ///< out; data null: not wanted
  Target dq_seq = {};                   ///< out, where q is broadcast: dq of each sequence
  float* dq_sums = nullptr;             ///< dq_sums_elems() of them
  float* key_sums = nullptr;            ///< key_sums_elems() of them
  std::byte* shared_queries = nullptr;  ///< shared_query_bytes() of them, 64-byte aligned
};
/// Key chunks that a sequence's keys are cut into, each with dQ sums of its own, worked on by one
/// thread at a time. A function of the shape alone, since the order of dQ's sum depends on it.
std::int64_t key_chunks(const attention::AttentionProblem& problem);
/// Groups that the query heads of a kv head are cut into, likewise.
std::int64_t key_groups(const attention::AttentionProblem& problem);
/// FP32 elements of scratch for dQ: 0 where one thread makes the whole of a row.
std::int64_t dq_sums_elems(const attention::AttentionProblem& problem);
/// Likewise for dK and dV of each group.
std::int64_t key_sums_elems(const attention::AttentionProblem& problem);
/// Scratch for queries that several chunks of keys read: 0 where one does.
std::int64_t shared_query_bytes(const attention::AttentionProblem& problem);
void attention_backward(const BackwardCall& call);

}  // namespace mxfa::cpu
