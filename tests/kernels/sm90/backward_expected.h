#pragma once

#include <cstdint>
#include <vector>

#include "kernels/sm90/backward_support.h"
#include "reference/attention.h"

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

}  // namespace mxfa::testing
