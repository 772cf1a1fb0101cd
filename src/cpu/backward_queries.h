#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/seqlen.h"
#include "cpu/attention.h"
#include "cpu/non_finite.h"

/// What the backward reads of the queries of one (sequence, kv head): made once, then read by every
/// chunk of its keys.
namespace mxfa::cpu {

inline constexpr std::int64_t kTileQueries = 64;

class BackwardQueries {
 public:
  /// `memory`: bytes() of it, 64-byte aligned.
  BackwardQueries(const BackwardCall& call, std::int64_t sequence, std::int64_t head_kv,
                  std::span<std::byte> memory);
  static std::int64_t bytes(const attention::AttentionProblem& problem, std::int64_t seqlen_q);

  /// Operands, delta and LSE of rows [row, row + rows) of query head h of the group; both are
  /// multiples of kTileQueries. Ranges may be prepared beside each other.
  void prepare_rows(std::int64_t h, std::int64_t row, std::int64_t rows);
  /// After all rows of the head.
  void finish_head(std::int64_t h);
  /// Both, of all heads.
  void prepare();

  std::int64_t rows() const { return rows_; }  ///< padded to whole tiles
  /// Where row `row` of head h lies in what follows.
  std::int64_t at(std::int64_t h, std::int64_t row) const { return h * rows_ + row; }
  int q_anchor() const { return q_anchor_; }        ///< of the group's q_k
  int dout_anchor() const { return dout_anchor_; }  ///< of the group's dout_v

  /// The operand of a product over queries [row, ...) of head h, of q_rows or dout_rows.
  const std::uint16_t* over_rows(const std::uint16_t* panels, std::int64_t h,
                                 std::int64_t row) const {
    return panels + h * rows_ * panel_dim_ + row * kPanel;
  }
  std::int64_t panel_elems() const { return rows_ * kPanel; }  ///< from panel to panel of it

  // [heads, rows]: of panels of 64 queries with k = head_dim, of panels with k = all rows.
  std::uint16_t *q_columns, *dout_columns;
  std::uint16_t *q_rows, *dout_rows;
  float *bias, *delta, *unfold;                          ///< x = s + bias; P = P' * unfold
  int* q_exponent;                                       ///< of dS's folds
  float *s_mult, *dp_mult;                               ///< [heads]
  std::vector<NonFinite> q_non_finite, dout_non_finite;  ///< of each tile of queries

 private:
  bool has_keys(std::int64_t head, std::int64_t row) const;
  void fold_exponents(std::int64_t h);

  const BackwardCall& call_;
  std::int64_t sequence_index_;
  std::int64_t head_kv_;
  attention::Sequence sequence_;
  std::int64_t heads_;  ///< query heads of the kv head
  std::int64_t dim_;
  std::int64_t panel_dim_;
  std::int64_t rows_;
  int q_anchor_ = -127;
  int dout_anchor_ = -127;
};

/// Whether dS takes the exponents of q and k, and they must be known.
constexpr bool folds_ds(const Arithmetic& arithmetic) {
  return !arithmetic.bf16 && (arithmetic.hopper || arithmetic.leak_free);
}

}  // namespace mxfa::cpu
