#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "reference/matrix.h"

/// The jagged cross-attention module in double precision: forward and every gradient.
///
///   seed_norm = RMSNorm(seeds)          kv_norm = RMSNorm(kv)
///   q = seed_norm Wq^T   k = kv_norm Wk^T   v = kv_norm Wv^T
///   o = softmax(softmax_scale q k^T) v, for each sequence and head
///   y = o Wo^T
///
/// The seed queries are one tensor that every sequence of the batch reads, so q is projected once
/// and the gradients of everything before it are summed over the batch. There is no residual
/// connection, no bias and no dropout.
namespace mxfa::reference {

/// Shapes use batch, seqlen_q (rows of seeds), total_k (rows of kv), dim, num_heads, num_heads_kv
/// and head_dim. A projection's rows are [heads, head_dim].
struct CrossAttentionInputs {
  std::int64_t num_heads = 1;
  std::int64_t num_heads_kv = 1;
  std::int64_t head_dim = 0;
  std::optional<double> softmax_scale = {};         ///< default 1 / sqrt(head_dim)
  double eps = 1e-6;                                ///< of both norms
  std::span<const std::int32_t> cu_seqlens_k = {};  ///< [batch + 1]
  Matrix<double> seeds;                             ///< [seqlen_q, dim]
  Matrix<double> kv;                                ///< [total_k, dim]
  std::vector<double> seed_norm_weight;             ///< [dim]
  std::vector<double> kv_norm_weight;               ///< [dim]
  Matrix<double> wq;                                ///< [num_heads * head_dim, dim]
  Matrix<double> wk;                                ///< [num_heads_kv * head_dim, dim]
  Matrix<double> wv;                                ///< [num_heads_kv * head_dim, dim]
  Matrix<double> wo;                                ///< [dim, num_heads * head_dim]
  Matrix<double> dy;  ///< [batch * seqlen_q, dim]; no columns = forward only
};

/// One member for each row of kCrossAttentionTensors; members 9 to 24 are empty without dy.
struct CrossAttentionResult {
  Matrix<double> seed_norm, kv_norm, q, k, v, o, lse, y;
  Matrix<double> dout, delta, dq_seq, dq, dk, dv, dseed_norm, dkv_norm, dseeds, dkv;
  Matrix<double> dseed_norm_weight, dkv_norm_weight, dwq, dwk, dwv, dwo;
};

struct CrossAttentionTensor {
  std::string_view name;
  Matrix<double> CrossAttentionResult::*member;
};

/// The 24 tensors of one training step, by which an implementation is compared with the oracle.
/// All are 2-D; [rows, heads * head_dim] is [rows, heads, head_dim] packed.
///
/// | # | name | shape | what it is |
/// |---|---|---|---|
/// | 1 | seed_norm | [seqlen_q, dim] | normalized seed queries |
/// | 2 | kv_norm | [total_k, dim] | normalized KV input |
/// | 3 | q | [seqlen_q, num_heads * head_dim] | projected queries, shared by the batch |
/// | 4 | k | [total_k, num_heads_kv * head_dim] | projected keys |
/// | 5 | v | [total_k, num_heads_kv * head_dim] | projected values |
/// | 6 | o | [batch * seqlen_q, num_heads * head_dim] | attention output |
/// | 7 | lse | [num_heads, batch * seqlen_q] | natural log of the softmax denominators |
/// | 8 | y | [batch * seqlen_q, dim] | module output |
/// | 9 | dout | [batch * seqlen_q, num_heads * head_dim] | gradient of o: dy Wo |
/// | 10 | delta | [num_heads, batch * seqlen_q] | rowsum(dout * o) of each head |
/// | 11 | dq_seq | [batch * seqlen_q, num_heads * head_dim] | dq of each sequence |
/// | 12 | dq | [seqlen_q, num_heads * head_dim] | gradient of q: dq_seq summed over the batch |
/// | 13 | dk | [total_k, num_heads_kv * head_dim] | gradient of k |
/// | 14 | dv | [total_k, num_heads_kv * head_dim] | gradient of v |
/// | 15 | dseed_norm | [seqlen_q, dim] | gradient of seed_norm: dq Wq |
/// | 16 | dkv_norm | [total_k, dim] | gradient of kv_norm: dk Wk + dv Wv |
/// | 17 | dseeds | [seqlen_q, dim] | gradient of the seed queries |
/// | 18 | dkv | [total_k, dim] | gradient of the KV input |
/// | 19 | dseed_norm_weight | [1, dim] | gradient of the seed norm's weight |
/// | 20 | dkv_norm_weight | [1, dim] | gradient of the KV norm's weight |
/// | 21 | dwq | [num_heads * head_dim, dim] | gradient of Wq: dq^T seed_norm |
/// | 22 | dwk | [num_heads_kv * head_dim, dim] | gradient of Wk: dk^T kv_norm |
/// | 23 | dwv | [num_heads_kv * head_dim, dim] | gradient of Wv: dv^T kv_norm |
/// | 24 | dwo | [dim, num_heads * head_dim] | gradient of Wo: dy^T o |
inline constexpr std::array<CrossAttentionTensor, 24> kCrossAttentionTensors{{
    {"seed_norm", &CrossAttentionResult::seed_norm},
    {"kv_norm", &CrossAttentionResult::kv_norm},
    {"q", &CrossAttentionResult::q},
    {"k", &CrossAttentionResult::k},
    {"v", &CrossAttentionResult::v},
    {"o", &CrossAttentionResult::o},
    {"lse", &CrossAttentionResult::lse},
    {"y", &CrossAttentionResult::y},
    {"dout", &CrossAttentionResult::dout},
    {"delta", &CrossAttentionResult::delta},
    {"dq_seq", &CrossAttentionResult::dq_seq},
    {"dq", &CrossAttentionResult::dq},
    {"dk", &CrossAttentionResult::dk},
    {"dv", &CrossAttentionResult::dv},
    {"dseed_norm", &CrossAttentionResult::dseed_norm},
    {"dkv_norm", &CrossAttentionResult::dkv_norm},
    {"dseeds", &CrossAttentionResult::dseeds},
    {"dkv", &CrossAttentionResult::dkv},
    {"dseed_norm_weight", &CrossAttentionResult::dseed_norm_weight},
    {"dkv_norm_weight", &CrossAttentionResult::dkv_norm_weight},
    {"dwq", &CrossAttentionResult::dwq},
    {"dwk", &CrossAttentionResult::dwk},
    {"dwv", &CrossAttentionResult::dwv},
    {"dwo", &CrossAttentionResult::dwo},
}};

/// Throws Error naming the argument whose shape does not fit.
void validate(const CrossAttentionInputs& inputs);

/// Validates first. Rows of kv behind the last sequence are slack: they are not read, and their
/// rows of every result are 0.
CrossAttentionResult cross_attention(const CrossAttentionInputs& inputs);

}  // namespace mxfa::reference
