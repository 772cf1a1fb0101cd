#pragma once

#include <vector>

#include "attention/mask.h"
#include "reference/matrix.h"

/// The oracle: softmax attention of one (sequence, head) in double precision by plain loops.
/// S = softmax_scale * Q K^T, P = softmax(S), O = P V; dV = P^T dO, dP = dO V^T,
/// dS = P * (dP - delta), delta = rowsum(dO * O), dQ = softmax_scale * dS K,
/// dK = softmax_scale * dS^T Q.
namespace mxfa::reference {

/// Inputs of one (sequence, head). K and V may have any length, zero included.
template <class T>
struct BasicHeadInputs {
  Matrix<T> q;     ///< [seqlen_q, head_dim]
  Matrix<T> k;     ///< [seqlen_k, head_dim]
  Matrix<T> v;     ///< [seqlen_k, head_dim]
  Matrix<T> dout;  ///< [seqlen_q, head_dim]; empty where only the forward is asked for
  attention::Mask mask;
  double softmax_scale = 1.0;
};
/// What backends see.
using HeadInputs = BasicHeadInputs<float>;
/// For an oracle whose q, k and v are themselves results in double, as in the module.
using HeadInputsF64 = BasicHeadInputs<double>;

struct ForwardResult {
  Matrix<double> s;         ///< [seqlen_q, seqlen_k], scaled logits, masked entries included
  Matrix<double> p;         ///< [seqlen_q, seqlen_k], 0 where masked
  Matrix<double> o;         ///< [seqlen_q, head_dim], 0 in rows without a visible key
  std::vector<double> lse;  ///< [seqlen_q], natural log; -infinity in rows without a visible key
};

struct BackwardResult {
  Matrix<double> dp;          ///< [seqlen_q, seqlen_k]
  Matrix<double> ds;          ///< [seqlen_q, seqlen_k], before softmax_scale
  std::vector<double> delta;  ///< [seqlen_q]
  Matrix<double> dq;          ///< [seqlen_q, head_dim]
  Matrix<double> dk;          ///< [seqlen_k, head_dim]
  Matrix<double> dv;          ///< [seqlen_k, head_dim]
};

/// Only visible entries of k, v and dout are read into a result, so a NaN elsewhere stays there.
/// Throws Error naming a matrix whose shape does not fit.
ForwardResult attention_forward(const HeadInputs& inputs);
ForwardResult attention_forward(const HeadInputsF64& inputs);
BackwardResult attention_backward(const HeadInputs& inputs, const ForwardResult& forward);
BackwardResult attention_backward(const HeadInputsF64& inputs, const ForwardResult& forward);

/// 10 log10(sum ref^2 / sum (ref - x)^2) in dB; +infinity where they are equal.
double sqnr_db(const std::vector<double>& reference, const std::vector<double>& value);

}  // namespace mxfa::reference
