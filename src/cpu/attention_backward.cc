#include "cpu/attention_backward.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "mx/bits.h"
#include "mx/row_sum.h"

namespace mxfa::cpu {

using attention::KeyRange;

void BackwardScratch::reserve(std::int64_t query_rows, std::int64_t heads, std::int64_t dim,
                              std::int64_t panel_dim) {
  const std::int64_t queries = query_rows * heads;
  q_columns.resize(queries * dim);
  dout_columns.resize(queries * dim);
  q_rows.resize(queries * panel_dim);
  dout_rows.resize(queries * panel_dim);
  k_rows.resize(kTileKeys * dim);
  v_rows.resize(kTileKeys * dim);
  for (auto* values : {&k_panels, &rows}) values->resize(kTileKeys * panel_dim);
  for (auto* values : {&p, &ds, &ds_pairs}) values->resize(kTileKeys * kTileQueries);
  for (auto* values : {&s, &dp}) values->resize(kTileKeys * kTileQueries);
  for (auto* values : {&dk, &dv}) values->resize(kTileKeys * panel_dim);
  dq.resize(queries * panel_dim);
  for (auto* values : {&bias, &delta, &unfold}) values->resize(queries);
  ones.resize(kTileQueries);
  for (auto* values : {&o_row, &dout_row}) values->resize(dim);
  for (auto* values : {&s_mult, &dp_mult}) values->resize(heads);
  q_exponent.resize(queries);
  k_exponent.resize(kTileKeys);
  begin.resize(kTileKeys);
  end.resize(kTileKeys);
  for (auto* tiles : {&q_non_finite, &dout_non_finite}) {
    tiles->assign(static_cast<std::size_t>(queries / kTileQueries), {});
  }
}

BackwardUnit::BackwardUnit(const BackwardCall& call, const KeyChunk& chunk,
                           BackwardScratch& scratch)
    : call_(call),
      chunk_(chunk),
      s_(scratch),
      kernel_(kernels()),
      sequence_(call.problem.seqlens().at(chunk.sequence)),
      k_s_(call.k_s, chunk.sequence, chunk.head_kv),
      k_q_(call.k_q, chunk.sequence, chunk.head_kv),
      v_p_(call.v_p, chunk.sequence, chunk.head_kv),
      heads_(call.problem.heads_per_kv()),
      dim_(call.problem.head_dim),
      panel_dim_(round_up(dim_, kPanel)),
      rows_(round_up(sequence_.seqlen_q, kTileQueries)) {}

void BackwardUnit::run() {
  s_.reserve(rows_, heads_, dim_, panel_dim_);
  // The heads of a group add to the same dK and dV, so their payload shares an anchor.
  for (std::int64_t h = 0; h < heads_; ++h) {
    const std::int64_t head = chunk_.head_kv * heads_ + h;
    dout_anchor_ = std::max(dout_anchor_, HeadRows(call_.dout_v, chunk_.sequence, head).anchor());
    q_anchor_ = std::max(q_anchor_, HeadRows(call_.q_k, chunk_.sequence, head).anchor());
  }
  for (std::int64_t h = 0; h < heads_; ++h) prepare_head(h);
  for (std::int64_t tile = chunk_.tile_begin; tile < chunk_.tile_end; ++tile) run_keys(tile);
  write_dq();
}

/// Query operands of one head as the products read them, and the constants of its rows.
void BackwardUnit::prepare_head(std::int64_t h) {
  const std::int64_t head = chunk_.head_kv * heads_ + h;
  HeadRows q_s(call_.q_s, chunk_.sequence, head);
  HeadRows dout_p(call_.dout_p, chunk_.sequence, head);
  HeadRows q_k(call_.q_k, chunk_.sequence, head);
  HeadRows dout_v(call_.dout_v, chunk_.sequence, head);
  q_k.raise_anchor(q_anchor_);
  dout_v.raise_anchor(dout_anchor_);
  for (std::int64_t row = 0; row < rows_; row += kTileQueries) {
    std::uint16_t* const rows = s_.rows.data();
    const auto columns = [&](HeadRows& source, Buffer<std::uint16_t>& panels) {
      source.read(row, kTileQueries, dim_, rows, dim_);
      pack_columns(kernel_, rows, dim_, kTileQueries, dim_,
                   panels.data() + (h * rows_ + row) * dim_);
    };
    const auto tokens = [&](HeadRows& source, Buffer<std::uint16_t>& panels,
                            std::vector<NonFinite>& non_finite) {
      source.read(row, kTileQueries, panel_dim_, rows, panel_dim_);
      if (hides_keys(call_.problem.mask)) {
        non_finite[static_cast<std::size_t>((h * rows_ + row) / kTileQueries)].take(
            rows, kTileQueries, dim_, panel_dim_);
      }
      pack_rows(kernel_, rows, panel_dim_, kTileQueries, panel_dim_,
                panels.data() + (h * rows_ + row) * panel_dim_);
    };
    columns(q_s, s_.q_columns);
    columns(dout_p, s_.dout_columns);
    tokens(q_k, s_.q_rows, s_.q_non_finite);
    tokens(dout_v, s_.dout_rows, s_.dout_non_finite);
  }
  const double scale = call_.problem.scale();
  s_.s_mult[h] = folded(static_cast<float>(scale * kLog2eDouble), q_s.anchor() + k_s_.anchor());
  s_.dp_mult[h] = folded(1.0f, dout_p.anchor() + v_p_.anchor());
  std::fill_n(s_.dq.data() + h * rows_ * panel_dim_, rows_ * panel_dim_, 0.0f);
  row_constants(h, dout_p, dout_v);
  for (std::int64_t i = 0; i < rows_; ++i) {
    s_.q_exponent[h * rows_ + i] = i < sequence_.seqlen_q && folds_ds() ? q_k.exponent(i) : 0;
  }
}

bool BackwardUnit::folds_ds() const {
  return !call_.arithmetic.bf16 && (call_.arithmetic.hopper || call_.arithmetic.leak_free);
}

bool BackwardUnit::has_keys(std::int64_t head, std::int64_t row) const {
  const KeyRange keys =
      visible_keys(call_.problem.mask, sequence_.seqlen_q, sequence_.seqlen_k, row);
  return !keys.empty() &&
         call_.lse.at(head, sequence_.o_begin + row) != -std::numeric_limits<float>::infinity();
}

/// delta, and the bias of x: -lse log2(e), on Hopper with dO's exponent relative to the head's
/// anchor, which counts how large P can be in a row.
void BackwardUnit::row_constants(std::int64_t h, HeadRows& dout_p, HeadRows& dout_v) {
  const std::int64_t head = chunk_.head_kv * heads_ + h;
  float* const bias = s_.bias.data() + h * rows_;
  float* const delta = s_.delta.data() + h * rows_;
  float* const unfold = s_.unfold.data() + h * rows_;
  std::fill_n(bias, rows_, 0.0f);
  std::fill_n(delta, rows_, 0.0f);
  std::fill_n(unfold, rows_, 1.0f);
  HeadRows o(call_.o, chunk_.sequence, head);
  const bool folds = call_.arithmetic.hopper && !call_.arithmetic.bf16;
  // One of the sequence's chunks writes it: the one with the first keys.
  const bool writes_delta = call_.delta.data != nullptr && chunk_.tile_begin == 0;
  constexpr int kNone = -1000;
  int anchor = kNone;
  for (std::int64_t i = 0; i < sequence_.seqlen_q; ++i) {
    o.read_float(i, false, s_.o_row.data());
    dout_p.read_float(i, true, s_.dout_row.data());
    delta[i] = mx::row_sum::row_delta(s_.dout_row.data(), s_.o_row.data(), nullptr, dim_);
    if (writes_delta) call_.delta.at(head, sequence_.o_begin + i) = delta[i];
    if (!has_keys(head, i)) continue;
    const std::int64_t row = sequence_.o_begin + i;
    bias[i] = -(call_.lse.at(head, row) * kLog2e);
    if (!folds) continue;
    const float log2_pmax = call_.row_max.at(head, row) + bias[i];
    const int headroom = std::isfinite(log2_pmax)
                             ? static_cast<int>(std::clamp(std::ceil(log2_pmax), -126.0f, 0.0f))
                             : 0;
    anchor = std::max(anchor, dout_v.exponent(i) + headroom);
  }
  if (!folds) return;
  constexpr int kOffset = 8;  // the largest P' is 2^8
  anchor = (anchor == kNone ? 0 : anchor) - kOffset;
  for (std::int64_t i = 0; i < sequence_.seqlen_q; ++i) {
    if (!has_keys(head, i)) continue;
    const int fold = std::max(dout_v.exponent(i) - anchor, kLeastFold);
    bias[i] = static_cast<float>(fold) + bias[i];
    unfold[i] = power_of_two(-fold);
  }
}

void BackwardUnit::read_keys(std::int64_t key0, std::int64_t keys) {
  k_s_.read(key0, keys, dim_, s_.k_rows.data(), dim_);
  v_p_.read(key0, keys, dim_, s_.v_rows.data(), dim_);
  k_q_.read(key0, keys, panel_dim_, s_.rows.data(), panel_dim_);
  s_.k_non_finite.clear();
  if (hides_keys(call_.problem.mask)) {
    s_.k_non_finite.take(s_.rows.data(), keys, dim_, panel_dim_);
  }
  pack_rows(kernel_, s_.rows.data(), panel_dim_, keys, panel_dim_, s_.k_panels.data());
  for (std::int64_t j = 0; j < keys; ++j) {
    s_.k_exponent[j] = folds_ds() && key0 + j < sequence_.seqlen_k ? k_q_.exponent(key0 + j) : 0;
  }
}

void BackwardUnit::run_keys(std::int64_t tile) {
  const std::int64_t key0 = tile * kTileKeys;
  const std::int64_t real = std::min(kTileKeys, sequence_.seqlen_k - key0);
  const std::int64_t keys = round_up(real, kScaleBlock);
  read_keys(key0, keys);
  std::fill_n(s_.dk.data(), keys * panel_dim_, 0.0f);
  std::fill_n(s_.dv.data(), keys * panel_dim_, 0.0f);
  const attention::Mask& mask = call_.problem.mask;
  const KeyRange rows =
      seeing_rows(mask, sequence_.seqlen_q, sequence_.seqlen_k, key0, key0 + real);
  for (std::int64_t h = 0; h < heads_; ++h) {
    ds_.begin_keys();
    for (std::int64_t row = rows.begin / kTileQueries * kTileQueries; row < rows.end;
         row += kTileQueries) {
      run_tile(h, row, key0, keys);
    }
  }
  const auto scale_and_write = [&](const Target& target, float* sums, float factor, int exponent) {
    if (target.data == nullptr) return;
    const float scale = folded(factor, exponent);
    for (std::int64_t i = 0; i < real * panel_dim_; ++i) sums[i] *= scale;
    write_rows(target, {chunk_.sequence, chunk_.head_kv}, key0, real, sums, panel_dim_);
  };
  scale_and_write(call_.dk, s_.dk.data(), static_cast<float>(call_.problem.scale()), q_anchor_);
  scale_and_write(call_.dv, s_.dv.data(), 1.0f, dout_anchor_);
}

/// Visible queries of each key in the tile of kTileQueries rows from `row`.
void BackwardUnit::mask_keys(std::int64_t row, std::int64_t key0, std::int64_t keys) {
  for (std::int64_t j = 0; j < keys; ++j) {
    const KeyRange rows = seeing_rows(call_.problem.mask, sequence_.seqlen_q, sequence_.seqlen_k,
                                      key0 + j, key0 + j + 1);
    const KeyRange local = within(rows, row, kTileQueries);
    s_.begin[j] = static_cast<std::int32_t>(local.begin);
    s_.end[j] = static_cast<std::int32_t>(local.end);
  }
}

void BackwardUnit::run_tile(std::int64_t h, std::int64_t row, std::int64_t key0,
                            std::int64_t keys) {
  mask_keys(row, key0, keys);
  const std::int64_t at = h * rows_ + row;
  const auto transposed_scores = [&](Buffer<std::uint16_t>& a, Buffer<std::uint16_t>& b,
                                     Buffer<float>& c) {
    kernel_.product({.m = keys,
                     .n = kTileQueries,
                     .k = dim_,
                     .a = a.data(),
                     .a_row = dim_,
                     .b = b.data() + at * dim_,
                     .b_panel = dim_ * kPanel,
                     .c = c.data(),
                     .ldc = kTileQueries});
  };
  transposed_scores(s_.k_rows, s_.q_columns, s_.s);
  transposed_scores(s_.v_rows, s_.dout_columns, s_.dp);
  const bool folds = call_.arithmetic.hopper && !call_.arithmetic.bf16;
  kernel_.scores({.rows = keys,
                  .cols = kTileQueries,
                  .s = s_.s.data(),
                  .dp = s_.dp.data(),
                  .begin = s_.begin.data(),
                  .end = s_.end.data(),
                  .s_mult = s_.s_mult[h],
                  .dp_mult = s_.dp_mult[h],
                  .bias = s_.bias.data() + at,
                  .delta = s_.delta.data() + at,
                  .unfold = folds ? s_.unfold.data() + at : nullptr});
  const auto sees = [&](std::int64_t query, std::int64_t key) {
    return s_.begin[key] <= query && query < s_.end[key];
  };
  const auto add_to_keys = [&](Buffer<std::uint16_t>& a, Buffer<std::uint16_t>& b,
                               const std::vector<NonFinite>& non_finite, Buffer<float>& c) {
    kernel_.product({.m = keys,
                     .n = panel_dim_,
                     .k = kTileQueries,
                     .a = a.data(),
                     .a_row = kTileQueries,
                     .b = b.data() + at * panel_dim_,
                     .b_panel = kTileQueries * kPanel,
                     .c = c.data(),
                     .ldc = panel_dim_,
                     .accumulate = true});
    non_finite[static_cast<std::size_t>(at / kTileQueries)].add(
        c.data(), panel_dim_, keys,
        [&](std::int64_t key, std::int64_t query) { return sees(query, key); },
        [&](std::int64_t key, std::int64_t query) {
          return mx::decode_bf16(a[key * kTileQueries + query]);
        });
  };
  if (call_.dv.data != nullptr) {
    round_p(at, keys);
    add_to_keys(s_.p, s_.dout_rows, s_.dout_non_finite, s_.dv);
  }
  if (call_.dk.data == nullptr && call_.dq.data == nullptr) return;
  round_ds(at, keys);
  if (call_.dk.data != nullptr) add_to_keys(s_.ds, s_.q_rows, s_.q_non_finite, s_.dk);
  if (call_.dq.data == nullptr) return;
  const std::int64_t queries = std::min(kTileQueries, sequence_.seqlen_q - row);
  kernel_.product({.m = queries,
                   .n = panel_dim_,
                   .k = keys,
                   .a = s_.ds_pairs.data(),
                   .a_row = 2,
                   .a_pair = 2 * kTileQueries,
                   .b = s_.k_panels.data(),
                   .b_panel = keys * kPanel,
                   .c = s_.dq.data() + at * panel_dim_,
                   .ldc = panel_dim_,
                   .accumulate = true});
  s_.k_non_finite.add(s_.dq.data() + at * panel_dim_, panel_dim_, queries, sees,
                      [&](std::int64_t query, std::int64_t key) {
                        const std::int64_t pair = key / 2 * kTileQueries + query;
                        return mx::decode_bf16(s_.ds_pairs[2 * pair + key % 2]);
                      });
}

void BackwardUnit::round_p(std::int64_t at, std::int64_t keys) {
  RoundTile tile{.rows = keys,
                 .cols = kTileQueries,
                 .values = s_.s.data(),
                 .ld = kTileQueries,
                 .rounding = call_.arithmetic.bf16 ? Rounding::kBf16 : Rounding::kE4M3,
                 .out = s_.p.data()};
  if (call_.arithmetic.bf16) {
    kernel_.round(tile);
  } else if (call_.arithmetic.hopper) {
    std::fill_n(s_.ones.data(), kTileQueries, 1.0f);
    tile.col_fold = s_.ones.data();  // P' holds dO's exponent already
    tile.col_unfold = s_.unfold.data() + at;
    kernel_.round(tile);
  } else {
    kernel_.round_blocks(tile, call_.arithmetic.rule == ScaleRule::kFloor);
  }
}

void BackwardUnit::round_ds(std::int64_t at, std::int64_t keys) {
  const RoundTile tile{.rows = keys,
                       .cols = kTileQueries,
                       .values = s_.dp.data(),
                       .ld = kTileQueries,
                       .out = s_.ds.data(),
                       .pairs = s_.ds_pairs.data(),
                       .pair_ld = kTileQueries};
  if (call_.arithmetic.bf16) {
    RoundTile whole = tile;
    whole.rounding = Rounding::kBf16;
    return kernel_.round(whole);
  }
  const TokenExponents exponents{s_.q_exponent.data() + at, s_.k_exponent.data()};
  if (call_.arithmetic.hopper) {
    ds_.round_warps(kernel_, tile, exponents, call_.arithmetic.rule);
  } else {
    ds_.round_squares(kernel_, tile, exponents,
                      call_.arithmetic.leak_free
                          ? std::optional(DsAnchors{q_anchor_, k_q_.anchor()})
                          : std::nullopt,
                      call_.arithmetic.rule);
  }
}

/// The unit's dQ: to its destination where no other unit adds to these rows, else to the sums.
void BackwardUnit::write_dq() {
  if (call_.dq.data == nullptr) return;
  const float factor = folded(static_cast<float>(call_.problem.scale()), k_q_.anchor());
  const attention::AttentionProblem& problem = call_.problem;
  for (std::int64_t h = 0; h < heads_; ++h) {
    const std::int64_t head = chunk_.head_kv * heads_ + h;
    float* const dq = s_.dq.data() + h * rows_ * panel_dim_;
    for (std::int64_t i = 0; i < sequence_.seqlen_q * panel_dim_; ++i) dq[i] *= factor;
    if (call_.dq_sums == nullptr) {
      write_rows(call_.dq, {chunk_.sequence, head}, 0, sequence_.seqlen_q, dq, panel_dim_);
      continue;
    }
    for (std::int64_t i = 0; i < sequence_.seqlen_q; ++i) {
      const std::int64_t row = chunk_.index * problem.rows_o() + sequence_.o_begin + i;
      std::copy_n(dq + i * panel_dim_, dim_,
                  call_.dq_sums + (row * problem.num_heads + head) * dim_);
    }
  }
}

}  // namespace mxfa::cpu
