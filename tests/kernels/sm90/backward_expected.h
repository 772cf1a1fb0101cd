#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/sm90/backward_support.h"
#include "reference/attention.h"
#include "support/compare.h"

namespace mxfa::testing {

/// Gradients of all heads, [total, heads, head_dim], by the recipe and exact on its operands.
struct Wanted {
  std::vector<double> recipe_dq, recipe_dk, recipe_dv;
  std::vector<double> oracle_dq, oracle_dk, oracle_dv;
  std::int64_t overflows = 0;
};

template <class T>
void add_head(const Matrix<T>& matrix, std::int64_t first, std::int64_t heads, std::int64_t head,
              std::vector<double>& sums) {
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    for (std::int64_t d = 0; d < matrix.cols; ++d) {
      sums[((first + row) * heads + head) * matrix.cols + d] += static_cast<double>(matrix(row, d));
    }
  }
}

inline Wanted expected(const BackwardBatch& batch, const BackwardCase& test) {
  const std::int64_t q_count = batch.q().total() * test.num_heads * test.head_dim;
  const std::int64_t k_count = batch.k().total() * test.num_heads_kv * test.head_dim;
  Wanted want;
  for (auto* x : {&want.recipe_dq, &want.oracle_dq}) x->resize(q_count);
  for (auto* x : {&want.recipe_dk, &want.recipe_dv, &want.oracle_dk, &want.oracle_dv}) {
    x->resize(k_count);
  }
  for (std::int64_t s = 0; s < test.batch(); ++s) {
    for (std::int64_t head = 0; head < test.num_heads; ++head) {
      const auto config = batch.config();
      const auto& operands = batch.operands(s, head);
      const auto got =
          recipe::recipe_backward(operands, batch.problem(), batch.saved(s, head), config);
      auto dk = got.dk;
      if (!config.half_sums && batch.seqlen_q(s) > config.promote_queries) {
        dk = recipe::recipe_backward(operands, batch.problem(), batch.saved(s, head),
                                     batch.config(sm90::backward::kPromoteDkTiles))
                 .dk;
      }
      const HeadInputs kern = recipe::kern_inputs(operands, batch.problem(), config);
      const auto oracle = reference::attention_backward(kern, reference::attention_forward(kern));
      const std::int64_t q0 = batch.q().cu[batch.q_sequence(s)], k0 = batch.k().cu[s];
      const std::int64_t kv = batch.head_kv(head);
      want.overflows += got.dq_overflows;
      add_head(got.dq, q0, test.num_heads, head, want.recipe_dq);
      add_head(dk, k0, test.num_heads_kv, kv, want.recipe_dk);
      add_head(got.dv, k0, test.num_heads_kv, kv, want.recipe_dv);
      add_head(oracle.dq, q0, test.num_heads, head, want.oracle_dq);
      add_head(oracle.dk, k0, test.num_heads_kv, kv, want.oracle_dk);
      add_head(oracle.dv, k0, test.num_heads_kv, kv, want.oracle_dv);
    }
  }
  return want;
}

/// Rows of the sequences without the slack between heads; what lies in that slack stays poison.
inline std::vector<double> gradient(const std::vector<std::uint16_t>& codes, const PackedRows& rows,
                                    std::int64_t pitch) {
  std::vector<double> result;
  for (std::int64_t i = 0; i < std::ssize(codes); ++i) {
    const bool exists = i / pitch < rows.total() * rows.heads && i % pitch < rows.dim;
    if (exists) result.push_back(mx::bits_float(std::uint32_t{codes[i]} << 16));
    if (!exists && codes[i] != 0xFFFF) ADD_FAILURE() << "slack written at " << i;
  }
  return result;
}

inline void expect_gradient(const std::vector<double>& got, const std::vector<double>& recipe,
                            const std::vector<double>& oracle, const std::string& label,
                            const BackwardCase& test) {
  const std::int64_t cols = test.head_dim;
  // The payloads are the recipe's but for rare exponentials that round the other way, so what is
  // left is the rounding to BF16: 55.6 dB where mantissas are spread. Another 1.6 dB are 59 dB of
  // anything else. Half scores move a few percent of all codes by a step.
  constexpr double kBf16Db = 54;
  const auto count = static_cast<double>(got.size());
  const double spread = test.drawn ? 10 * std::log10(1 + 6 / std::sqrt(count)) : 0;
  double rounding = std::pow(10, -(kBf16Db - spread) / 10);
  // An exponential that a GPU rounds the other way: a code of P is up to an eighth off, and with it
  // a row.
  const bool gpu = machine().options().kind == driver::DriverKind::kCuda;
  if (test.drawn && gpu) rounding += static_cast<double>(cols) / count / 64;
  const double noise = std::pow(10, -reference::sqnr_db(oracle, recipe) / 10);
  if (test.scores == Scores::kF16) {
    if (!test.drawn) {
      EXPECT_TRUE(expect_close(got, recipe,
                               {.metric = Metric::kSqnrDb, .limit = test.half_recipe_db},
                               {.label = label + " against the recipe", .cols = cols}));
    }
    EXPECT_GE(reference::sqnr_db(oracle, got),
              -10 * std::log10(noise + (test.drawn ? rounding : 0)) - test.half_oracle_db)
        << label;
    return;
  }
  EXPECT_TRUE(expect_close(got, recipe,
                           {.metric = Metric::kSqnrDb, .limit = -10 * std::log10(rounding)},
                           {.label = label + " against the recipe", .cols = cols}));
  const double limit = -10 * std::log10(noise + rounding) - 0.1;
  EXPECT_TRUE(expect_close(got, oracle, {.metric = Metric::kSqnrDb, .limit = limit},
                           {.label = label + " against the oracle", .cols = cols}));
}

/// Returns how many sums of dQ overflowed.
inline std::uint64_t expect_as_recipe(const BackwardCase& test) {
  const BackwardBatch batch(test);
  const BackwardBatch::Results got = batch.run();
  EXPECT_TRUE(got.guards_intact) << test.name;
  const Wanted want = expected(batch, test);
  const std::int64_t pitch = batch.pitch();
  expect_gradient(gradient(got.dq, batch.q(), pitch), want.recipe_dq, want.oracle_dq, "dq", test);
  expect_gradient(gradient(got.dk, batch.k(), pitch), want.recipe_dk, want.oracle_dk, "dk", test);
  expect_gradient(gradient(got.dv, batch.k(), pitch), want.recipe_dv, want.oracle_dv, "dv", test);
  // The order of the sums decides about a sum near the end of the range, not about a single one.
  if (test.cu_seqlens_k.back() <= 128) {
    EXPECT_EQ(static_cast<std::int64_t>(got.overflows), want.overflows) << test.name;
  }
  return got.overflows;
}

}  // namespace mxfa::testing
