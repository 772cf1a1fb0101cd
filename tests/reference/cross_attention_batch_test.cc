#include "reference/cross_attention_batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/check.h"
#include "mx/bits.h"
#include "support/compare.h"

namespace mxfa::reference {
namespace {

struct Moments {
  double mean = 0;
  double variance = 0;
};
Moments moments(const std::vector<std::uint16_t>& codes) {
  Moments m;
  for (const std::uint16_t code : codes) m.mean += mx::decode_bf16(code);
  m.mean /= double(codes.size());
  for (const std::uint16_t code : codes) {
    const double d = mx::decode_bf16(code) - m.mean;
    m.variance += d * d / double(codes.size());
  }
  return m;
}

TEST(CrossAttentionBatch, HasUnitVarianceThroughout) {
  const CrossAttentionBatch batch = make_cross_attention_batch(
      {.batch = 4, .seqlen_q = 64, .dim = 256, .num_heads = 2, .max_seqlen_k = 300});
  EXPECT_NEAR(moments(batch.kv).variance, 1, 0.02);
  EXPECT_NEAR(moments(batch.kv).mean, 0, 0.01);
  EXPECT_NEAR(moments(batch.seeds).variance, 1, 0.05);
  EXPECT_NEAR(moments(batch.wk).variance, 1.0 / 256, 0.0001);
  EXPECT_NEAR(moments(batch.kv_norm_weight).mean, 1, 0.03);
  EXPECT_NEAR(moments(batch.dy).variance, 1e-6, 5e-8);
  const CrossAttentionResult r = cross_attention(batch.inputs());
  for (const Matrix<double>* tensor : {&r.q, &r.k, &r.v}) {
    double sum = 0;
    for (const double value : tensor->data) sum += value * value;
    EXPECT_NEAR(sum / double(tensor->data.size()), 1, 0.1);
  }
}

/// The published run: 768 sequences, 5,856,019 keys, longest 14,980.
TEST(CrossAttentionBatch, LengthsAreAsUnevenAsInTheProductionLikeRun) {
  const CrossAttentionBatch batch = make_cross_attention_batch(
      {.batch = 768, .dim = 1, .max_seqlen_k = 16384, .sparsity = 0.535});
  std::int32_t longest = 0;
  for (std::size_t s = 1; s < batch.cu_seqlens_k.size(); ++s) {
    longest = std::max(longest, batch.cu_seqlens_k[s] - batch.cu_seqlens_k[s - 1]);
  }
  EXPECT_NEAR(double(batch.total_k()), 5'856'019, 0.04 * 5'856'019);
  EXPECT_NEAR(longest, 14'980, 0.03 * 14'980);
}

TEST(CrossAttentionBatch, SparsityBoundsTheLengths) {
  const auto total = [](double sparsity) {
    return make_cross_attention_batch(
               {.batch = 50, .dim = 1, .max_seqlen_k = 1000, .sparsity = sparsity})
        .total_k();
  };
  EXPECT_EQ(total(1), 0);
  EXPECT_NEAR(double(total(0.75)), 50 * 250, 50 * 250 * 0.2);
  EXPECT_GT(total(0), 50 * 700);
  EXPECT_LE(total(0), 50 * 1000);
}

TEST(CrossAttentionBatch, TheSameOptionsGiveTheSameValues) {
  const CrossAttentionBatchOptions options{
      .batch = 3, .seqlen_q = 5, .dim = 24, .num_heads = 2, .max_seqlen_k = 9000, .seed = 4};
  const CrossAttentionBatch a = make_cross_attention_batch(options);
  const CrossAttentionBatch b = make_cross_attention_batch(options);
  EXPECT_EQ(a.kv, b.kv);
  CrossAttentionBatchOptions other = options;
  other.seed = 5;
  EXPECT_NE(a.kv, make_cross_attention_batch(other).kv);
  // Rows are drawn in blocks; none repeats another.
  ASSERT_GT(a.total_k(), 4096);
  EXPECT_FALSE(std::equal(a.kv.begin(), a.kv.begin() + 24, a.kv.begin() + 4096 * 24));
}

TEST(CrossAttentionBatch, RefusesOptionsByName) {
  const auto message = [](CrossAttentionBatchOptions options) {
    try {
      make_cross_attention_batch(options);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message({.dim = 100, .num_heads = 3}),
            "dim: expected a multiple of the 3 heads, got 100");
  EXPECT_EQ(message({.sparsity = 1.5}), "sparsity: expected 0 .. 1, got 1.5");
  EXPECT_EQ(message({.sparsity = std::nan("")}), "sparsity: expected 0 .. 1, got nan");
  EXPECT_EQ(message({.batch = -1}), "batch: expected at least 0, got -1");
  EXPECT_EQ(message({.batch = 1 << 30, .max_seqlen_k = 1 << 30}).substr(0, 50),
            "max-kv: expected fewer than 2^31 keys in the batch");
}

}  // namespace
}  // namespace mxfa::reference
