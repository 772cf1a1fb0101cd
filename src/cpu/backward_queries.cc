#include "cpu/backward_queries.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/arena.h"
#include "core/simd_clones.h"
#include "cpu/attention_tiles.h"
#include "cpu/units.h"
#include "mx/row_sum.h"

namespace mxfa::cpu {
namespace {

using attention::KeyRange;

// Its sums are inlined, or they would keep the baseline.
MXFA_SIMD_CLONES __attribute__((flatten)) float delta_of(const float* dout, const float* o,
                                                         std::int64_t dim) {
  return mx::row_sum::row_delta(dout, o, nullptr, dim);
}

struct Layout {
  std::int64_t heads, rows, dim, panel_dim;

  Layout(const attention::AttentionProblem& problem, std::int64_t seqlen_q)
      : heads(problem.heads_per_kv()),
        rows(round_up(seqlen_q, kTileQueries)),
        dim(problem.head_dim),
        panel_dim(round_up(problem.head_dim, kPanel)) {}
};

}  // namespace

std::int64_t BackwardQueries::bytes(const attention::AttentionProblem& problem,
                                    std::int64_t seqlen_q) {
  const Layout layout(problem, seqlen_q);
  const std::int64_t queries = layout.heads * layout.rows;
  core::Arena counter;
  for (int i = 0; i < 2; ++i) counter.take<std::uint16_t>(queries * layout.dim);
  for (int i = 0; i < 2; ++i) counter.take<std::uint16_t>(queries * layout.panel_dim);
  for (int i = 0; i < 4; ++i) counter.take<float>(queries);
  for (int i = 0; i < 2; ++i) counter.take<float>(layout.heads);
  return counter.used();
}

BackwardQueries::BackwardQueries(const BackwardCall& call, std::int64_t sequence,
                                 std::int64_t head_kv, std::span<std::byte> memory)
    : call_(call),
      sequence_index_(sequence),
      head_kv_(head_kv),
      sequence_(call.problem.seqlens().at(sequence)) {
  const Layout layout(call.problem, sequence_.seqlen_q);
  heads_ = layout.heads;
  dim_ = layout.dim;
  panel_dim_ = layout.panel_dim;
  rows_ = layout.rows;
  const std::int64_t queries = heads_ * rows_;
  core::Arena arena(memory);
  for (auto** columns : {&q_columns, &dout_columns}) {
    *columns = arena.take<std::uint16_t>(queries * dim_);
  }
  for (auto** tokens : {&q_rows, &dout_rows}) {
    *tokens = arena.take<std::uint16_t>(queries * panel_dim_);
  }
  for (auto** values : {&bias, &delta, &unfold}) *values = arena.take<float>(queries);
  q_exponent = arena.take<int>(queries);
  for (auto** values : {&s_mult, &dp_mult}) *values = arena.take<float>(heads_);
  for (auto* tiles : {&q_non_finite, &dout_non_finite}) {
    tiles->resize(static_cast<std::size_t>(queries / kTileQueries));
  }
  // The heads of a group add to the same dK and dV, so their payload shares an anchor.
  for (std::int64_t h = 0; h < heads_; ++h) {
    const std::int64_t head = head_kv_ * heads_ + h;
    dout_anchor_ = std::max(dout_anchor_, HeadRows(call_.dout_v, sequence, head).anchor());
    q_anchor_ = std::max(q_anchor_, HeadRows(call_.q_k, sequence, head).anchor());
  }
}

void BackwardQueries::prepare() {
  for (std::int64_t h = 0; h < heads_; ++h) {
    prepare_rows(h, 0, rows_);
    finish_head(h);
  }
}

void BackwardQueries::prepare_rows(std::int64_t h, std::int64_t first, std::int64_t count) {
  const Kernels& kernel = kernels();
  const std::int64_t head = head_kv_ * heads_ + h;
  HeadRows q_s(call_.q_s, sequence_index_, head), q_k(call_.q_k, sequence_index_, head);
  HeadRows dout_p(call_.dout_p, sequence_index_, head), dout_v(call_.dout_v, sequence_index_, head);
  q_k.raise_anchor(q_anchor_);
  dout_v.raise_anchor(dout_anchor_);
  Buffer<std::uint16_t> plain(kTileQueries * panel_dim_);
  /// One tile in both forms, which are two operands where their dtypes or anchors differ.
  const auto pack = [&](const Operand& a, HeadRows& as_columns, const Operand& b, HeadRows& as_rows,
                        std::int64_t row, std::uint16_t* columns, std::uint16_t* panels,
                        NonFinite& non_finite) {
    constexpr std::int64_t kBytes = sizeof(std::uint16_t);
    std::uint16_t* const own_panels = panels + h * rows_ * panel_dim_ + row * kPanel;
    prefetch_to_write(columns, kTileQueries * dim_ * kBytes);
    for (std::int64_t col = 0; col < panel_dim_; col += kPanel) {
      prefetch_to_write(own_panels + col / kPanel * panel_elems(), kTileQueries * kPanel * kBytes);
    }
    as_columns.read(row, kTileQueries, panel_dim_, plain.data(), panel_dim_);
    pack_columns(kernel, plain.data(), panel_dim_, kTileQueries, dim_, columns);
    if (a.data != b.data || as_columns.anchor() != as_rows.anchor()) {
      as_rows.read(row, kTileQueries, panel_dim_, plain.data(), panel_dim_);
    }
    non_finite.clear();
    if (hides_keys(call_.problem.mask)) {
      non_finite.take(plain.data(), kTileQueries, dim_, panel_dim_);
    }
    pack_rows(kernel, plain.data(), panel_dim_, kTileQueries, panel_dim_, own_panels,
              panel_elems());
  };
  for (std::int64_t row = first; row < first + count; row += kTileQueries) {
    const std::int64_t to = at(h, row);
    const auto tile = static_cast<std::size_t>(to / kTileQueries);
    pack(call_.q_s, q_s, call_.q_k, q_k, row, q_columns + to * dim_, q_rows, q_non_finite[tile]);
    pack(call_.dout_p, dout_p, call_.dout_v, dout_v, row, dout_columns + to * dim_, dout_rows,
         dout_non_finite[tile]);
  }
  std::fill_n(bias + at(h, first), count, 0.0f);
  std::fill_n(delta + at(h, first), count, 0.0f);
  std::fill_n(unfold + at(h, first), count, 1.0f);
  std::fill_n(q_exponent + at(h, first), count, 0);
  HeadRows o(call_.o, sequence_index_, head);
  Buffer<float> o_row(dim_), dout_row(dim_);
  for (std::int64_t i = first; i < std::min(first + count, sequence_.seqlen_q); ++i) {
    o.read_float(i, false, o_row.data());
    dout_p.read_float(i, true, dout_row.data());
    const std::int64_t to = at(h, i), row = sequence_.o_begin + i;
    delta[to] = delta_of(dout_row.data(), o_row.data(), dim_);
    if (call_.delta.data != nullptr) call_.delta.at(head, row) = delta[to];
    if (has_keys(head, i)) bias[to] = -(call_.lse.at(head, row) * kLog2e);
    if (folds_ds(call_.arithmetic)) q_exponent[to] = q_k.exponent(i);
  }
}

void BackwardQueries::finish_head(std::int64_t h) {
  const std::int64_t head = head_kv_ * heads_ + h;
  const double scale = call_.problem.scale();
  const int q = HeadRows(call_.q_s, sequence_index_, head).anchor();
  const int k = HeadRows(call_.k_s, sequence_index_, head_kv_).anchor();
  const int dout = HeadRows(call_.dout_p, sequence_index_, head).anchor();
  const int v = HeadRows(call_.v_p, sequence_index_, head_kv_).anchor();
  s_mult[h] = folded(static_cast<float>(scale * kLog2eDouble), q + k);
  dp_mult[h] = folded(1.0f, dout + v);
  if (call_.arithmetic.hopper && !call_.arithmetic.bf16) fold_exponents(h);
}

bool BackwardQueries::has_keys(std::int64_t head, std::int64_t row) const {
  const KeyRange keys =
      visible_keys(call_.problem.mask, sequence_.seqlen_q, sequence_.seqlen_k, row);
  return !keys.empty() &&
         call_.lse.at(head, sequence_.o_begin + row) != -std::numeric_limits<float>::infinity();
}

/// Hopper: P' takes dO's exponent relative to the head's anchor, which counts how large P can be in
/// a row.
void BackwardQueries::fold_exponents(std::int64_t h) {
  const std::int64_t head = head_kv_ * heads_ + h;
  HeadRows dout_v(call_.dout_v, sequence_index_, head);
  constexpr int kNone = -1000;
  int anchor = kNone;
  for (std::int64_t i = 0; i < sequence_.seqlen_q; ++i) {
    if (!has_keys(head, i)) continue;
    const float log2_pmax = call_.row_max.at(head, sequence_.o_begin + i) + bias[at(h, i)];
    const int headroom = std::isfinite(log2_pmax)
                             ? static_cast<int>(std::clamp(std::ceil(log2_pmax), -126.0f, 0.0f))
                             : 0;
    anchor = std::max(anchor, dout_v.exponent(i) + headroom);
  }
  constexpr int kOffset = 8;  // the largest P' is 2^8
  anchor = (anchor == kNone ? 0 : anchor) - kOffset;
  for (std::int64_t i = 0; i < sequence_.seqlen_q; ++i) {
    if (!has_keys(head, i)) continue;
    const int fold = std::max(dout_v.exponent(i) - anchor, kLeastFold);
    bias[at(h, i)] = static_cast<float>(fold) + bias[at(h, i)];
    unfold[at(h, i)] = power_of_two(-fold);
  }
}

}  // namespace mxfa::cpu
