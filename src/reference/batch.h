#pragma once

#include <functional>
#include <span>
#include <vector>

#include "attention/problem.h"
#include "reference/attention.h"

/// From packed tensors of a jagged batch to single heads and back. Memory grows with the batch's
/// rows; the score matrices of a head live only while that head is computed.
namespace mxfa::reference {

/// Packed row-major tensors, shapes as in AttentionProblem. Rows behind a tensor's last sequence
/// are slack and never read.
template <class T>
struct BasicPackedInputs {
  attention::AttentionProblem problem;
  std::span<const T> q;     ///< [total_q, num_heads, head_dim]
  std::span<const T> k;     ///< [total_k, num_heads_kv, head_dim]
  std::span<const T> v;     ///< [total_k, num_heads_kv, head_dim]
  std::span<const T> dout;  ///< [rows_o, num_heads, head_dim]; empty = forward only
};
using PackedInputs = BasicPackedInputs<float>;
using PackedInputsF64 = BasicPackedInputs<double>;

struct HeadIndex {
  std::int64_t sequence = 0;
  std::int64_t head = 0;  ///< query head
};

/// What a head function computes; shapes as in ForwardResult and BackwardResult. The gradients are
/// not read where the call has no dout.
struct HeadOutputs {
  Matrix<double> o;
  std::vector<double> lse;
  std::vector<double> delta;
  Matrix<double> dq;
  Matrix<double> dk;
  Matrix<double> dv;
};

/// Slack rows of every tensor are 0, of lse -infinity. Without dout the gradients are empty.
struct PackedOutputs {
  std::vector<double> o;       ///< [rows_o, num_heads, head_dim]
  std::vector<double> lse;     ///< [num_heads, rows_o]
  std::vector<double> delta;   ///< [num_heads, rows_o]
  std::vector<double> dq;      ///< [total_q, num_heads, head_dim], over the batch if broadcast_q
  std::vector<double> dq_seq;  ///< [rows_o, num_heads, head_dim], before that sum; else empty
  std::vector<double> dk;      ///< [total_k, num_heads_kv, head_dim], over the query heads
  std::vector<double> dv;      ///< [total_k, num_heads_kv, head_dim], over the query heads
};

template <class T>
using HeadFunction = std::function<HeadOutputs(const BasicHeadInputs<T>&, HeadIndex)>;

/// Throws Error where the problem is malformed or a tensor's size does not match it.
void validate(const PackedInputs& inputs);
void validate(const PackedInputsF64& inputs);

/// Copies the rows of one (sequence, head), of a valid problem.
HeadInputs gather_head(const PackedInputs& inputs, HeadIndex index);
HeadInputsF64 gather_head(const PackedInputsF64& inputs, HeadIndex index);

/// Calls `function` once for each (sequence, head), on several threads at a time, and packs what it
/// returns. Sums run over query heads, then sequences, in ascending order whatever the number of
/// threads. Who needs the scores of all heads keeps them in `function`.
PackedOutputs run_heads(const PackedInputs& inputs, const HeadFunction<float>& function);
PackedOutputs run_heads(const PackedInputsF64& inputs, const HeadFunction<double>& function);

/// The oracle over a batch: o and lse only.
PackedOutputs batched_forward(const PackedInputs& inputs);
PackedOutputs batched_forward(const PackedInputsF64& inputs);
/// Forward and gradients; dout is required.
PackedOutputs batched_backward(const PackedInputs& inputs);
PackedOutputs batched_backward(const PackedInputsF64& inputs);

}  // namespace mxfa::reference
