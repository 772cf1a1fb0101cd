#pragma once

#include <cstdint>
#include <vector>

#include "reference/cross_attention.h"

/// A synthetic jagged batch for the cross-attention module, of unit variance throughout: seeds, kv
/// and every projection's output are N(0, 1), logits have std 1. Values are BF16; the same options
/// give the same values everywhere.
namespace mxfa::reference {

struct CrossAttentionBatchOptions {
  std::int64_t batch = 1;
  std::int64_t seqlen_q = 1;  ///< seed queries
  std::int64_t dim = 128;
  std::int64_t num_heads = 1;
  std::int64_t num_heads_kv = 0;  ///< 0: num_heads
  std::int64_t head_dim = 0;      ///< 0: dim / num_heads, which must be whole
  std::int64_t max_seqlen_k = 128;
  /// Empty share of the padded [batch, max_seqlen_k] keys, 0 .. 1. A length is the sum of two
  /// uniform draws, max_seqlen_k * (1 - sparsity) * (u1 + u2), cut at max_seqlen_k: with 768
  /// sequences of up to 16384 keys at 0.535 that gives the mean (7625) and the longest (14,980) of
  /// the published production-like run.
  double sparsity = 0.5;
  std::uint64_t seed = 0;
};

/// BF16 codes, row-major; shapes as in CrossAttentionInputs.
struct CrossAttentionBatch {
  CrossAttentionBatchOptions options;  ///< without zeros that stand for something
  std::vector<std::int32_t> cu_seqlens_k;
  std::vector<std::uint16_t> seeds, kv;
  std::vector<std::uint16_t> seed_norm_weight, kv_norm_weight;  ///< 1 + 0.1 n
  std::vector<std::uint16_t> wq, wk, wv, wo;                    ///< n / sqrt(columns)
  std::vector<std::uint16_t> dy;                                ///< n / 1000

  std::int64_t width_q() const { return options.num_heads * options.head_dim; }
  std::int64_t width_kv() const { return options.num_heads_kv * options.head_dim; }
  std::int64_t rows_o() const { return options.batch * options.seqlen_q; }
  std::int64_t total_k() const { return cu_seqlens_k.back(); }
  /// What the oracle reads; its cu_seqlens_k points here.
  CrossAttentionInputs inputs() const;
};

/// The options with what is 0 by default filled in. Throws Error naming an option out of range.
CrossAttentionBatchOptions checked(CrossAttentionBatchOptions options);

/// Of checked() options.
CrossAttentionBatch make_cross_attention_batch(const CrossAttentionBatchOptions& options);

}  // namespace mxfa::reference
