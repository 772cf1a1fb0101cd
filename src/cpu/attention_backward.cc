#include "cpu/attention_backward.h"

#include <algorithm>
#include <optional>

#include "core/simd_clones.h"
#include "mx/bits.h"

namespace mxfa::cpu {

using attention::KeyRange;

namespace {

MXFA_SIMD_CLONES void scale_values(float* values, float factor, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) values[i] *= factor;
}

}  // namespace

void BackwardScratch::Keys::reserve(std::int64_t dim, std::int64_t panel_dim) {
  for (auto* buffer : {&k_rows, &v_rows}) buffer->resize(kTileKeys * round_up(dim, kTileDepth));
  for (auto* sums : {&dk, &dv}) sums->resize(kTileKeys * panel_dim);
  exponent.resize(kTileKeys);
}

void BackwardScratch::reserve(std::int64_t dim, std::int64_t panel_dim) {
  rows.resize(kTileKeys * panel_dim);
  k_panels.resize(kBlockKeys * panel_dim);
  for (auto* values : {&p, &ds}) values->resize(kTileKeys * kSpanQueries);
  ds_pairs.resize(kPartKeys * kTileQueries);
  ds_rows.resize(kBlockKeys * kSpanQueries);
  for (auto* values : {&s, &dp}) values->resize(kPartKeys * kTileQueries);
  ones.resize(kTileQueries);
  std::fill_n(ones.data(), kTileQueries, 1.0f);
  gradient.resize(kScaleBlock * panel_dim);
  begin.resize(kTileKeys);
  end.resize(kTileKeys);
  for (Keys& tile : keys) tile.reserve(dim, panel_dim);
}

float dq_factor(const BackwardCall& call, std::int64_t sequence, std::int64_t head_kv) {
  return folded(static_cast<float>(call.problem.scale()),
                HeadRows(call.k_q, sequence, head_kv).anchor());
}

float dk_factor(const BackwardCall& call, const BackwardQueries& queries) {
  return folded(static_cast<float>(call.problem.scale()), queries.q_anchor());
}
float dv_factor(const BackwardQueries& queries) { return folded(1.0f, queries.dout_anchor()); }

float* key_sums_at(const BackwardCall& call, KeyGradient which, std::int64_t group,
                   std::int64_t head_kv, std::int64_t token) {
  const attention::AttentionProblem& problem = call.problem;
  const std::int64_t plane = static_cast<std::int64_t>(which) * key_groups(problem) + group;
  const std::int64_t row = (plane * problem.num_heads_kv + head_kv) * problem.total_k + token;
  return call.key_sums + row * round_up(problem.head_dim, kPanel);
}

BackwardUnit::BackwardUnit(const BackwardCall& call, const KeyPiece& piece,
                           const BackwardQueries& queries, BackwardScratch& scratch)
    : call_(call),
      piece_(piece),
      q_(queries),
      s_(scratch),
      kernel_(kernels()),
      sequence_(call.problem.seqlens().at(piece.sequence)),
      k_s_(call.k_s, piece.sequence, piece.head_kv),
      k_q_(call.k_q, piece.sequence, piece.head_kv),
      v_p_(call.v_p, piece.sequence, piece.head_kv),
      heads_(call.problem.heads_per_kv()),
      dim_(call.problem.head_dim),
      panel_dim_(round_up(dim_, kPanel)) {}

void BackwardUnit::run() {
  s_.reserve(dim_, panel_dim_);
  if (call_.dq_sums == nullptr) {
    dq_.resize((piece_.head_end - piece_.head_begin) * sequence_.seqlen_q * panel_dim_);
  }
  const bool begins_chunk = piece_.turn == 0;
  s_.has_dq.assign(static_cast<std::size_t>(heads_ * q_.rows() / kTileQueries), !begins_chunk);
  {
    const Products products(kernel_);
    for (std::int64_t tile = piece_.tile_begin; tile < piece_.tile_end; tile += kBlockTiles) {
      run_block(tile, std::min(kBlockTiles, piece_.tile_end - tile));
    }
  }
  if (call_.dq.data != nullptr && begins_chunk) write_dq();
}

/// Zeros where no key was seen. Sums that others add to are theirs to finish.
void BackwardUnit::write_dq() {
  const bool own = call_.dq_sums == nullptr;
  const float factor = own ? dq_factor(call_, piece_.sequence, piece_.head_kv) : 1.0f;
  for (std::int64_t h = piece_.head_begin; h < piece_.head_end; ++h) {
    for (std::int64_t row = 0; row < sequence_.seqlen_q; row += kTileQueries) {
      const std::int64_t count = std::min(kTileQueries, sequence_.seqlen_q - row) * panel_dim_;
      float* const dq = dq_at(h, row);
      if (!s_.has_dq[index_of(h, row)]) {
        std::fill_n(dq, count, 0.0f);
      } else if (own) {
        scale_values(dq, factor, count);
      }
    }
    if (!own) continue;
    write_rows(call_.dq, {piece_.sequence, piece_.head_kv * heads_ + h}, 0, sequence_.seqlen_q,
               dq_at(h, 0), panel_dim_);
  }
}

/// The queries once for all key tiles of the block, so that keys and their sums stay in the cache.
void BackwardUnit::run_block(std::int64_t first_tile, std::int64_t tiles) {
  for (std::int64_t i = 0; i < tiles; ++i) read_keys(i, first_tile + i);
  for (std::int64_t h = piece_.head_begin; h < piece_.head_end; ++h) {
    for (Keys& keys : s_.keys) keys.rounding.begin_keys();
    for (std::int64_t row = 0; row < sequence_.seqlen_q; row += kSpanQueries) {
      run_span(tiles, h, row);
    }
  }
  for (std::int64_t i = 0; i < tiles; ++i) write_keys(s_.keys[i]);
}

void BackwardUnit::run_span(std::int64_t tiles, std::int64_t h, std::int64_t row) {
  const std::int64_t end = std::min(row + kSpanQueries, sequence_.seqlen_q);
  if (call_.dq_sums != nullptr) {
    prefetch_to_write(dq_at(h, row), (end - row) * panel_dim_ * std::int64_t{sizeof(float)});
  }
  for (std::int64_t i = 0; i < tiles; ++i) {
    Keys& keys = s_.keys[i];
    for (std::int64_t at = row; at < end; at += kTileQueries) {
      if (keys.seen_from(at)) run_tile(i, h, at, at - row);
    }
    add_to_keys(keys, h, row);
  }
  if (call_.dq.data == nullptr) return;
  for (std::int64_t at = row; at < end; at += kTileQueries) {
    // Runs of key tiles that the queries see.
    for (std::int64_t i = 0, last = 0; i < tiles; i = last + 1) {
      for (last = i; last < tiles && s_.keys[last].seen_from(at);) ++last;
      if (last > i) add_to_queries(i, last - i, h, at, at - row);
    }
  }
}

bool BackwardUnit::sees(std::int64_t query, std::int64_t key) const {
  const KeyRange keys =
      visible_keys(call_.problem.mask, sequence_.seqlen_q, sequence_.seqlen_k, query);
  return keys.begin <= key && key < keys.end;
}

void BackwardUnit::read_keys(std::int64_t index, std::int64_t tile) {
  Keys& keys = s_.keys[index];
  const std::int64_t key0 = tile * kTileKeys;
  keys.first = key0;
  keys.real = std::min(kTileKeys, sequence_.seqlen_k - key0);
  const std::int64_t count = keys.count = round_up(keys.real, kScaleBlock);
  k_s_.read_pieces(key0, count, keys.k_rows.data());
  v_p_.read_pieces(key0, count, keys.v_rows.data());
  k_q_.read(key0, count, panel_dim_, s_.rows.data(), panel_dim_);
  keys.non_finite.clear();
  if (hides_keys(call_.problem.mask)) {
    keys.non_finite.take(s_.rows.data(), count, dim_, panel_dim_);
  }
  pack_rows(kernel_, s_.rows.data(), panel_dim_, count, panel_dim_,
            s_.k_panels.data() + index * kTileKeys * kPanel, kBlockKeys * kPanel);
  const bool folds = folds_ds(call_.arithmetic);
  for (std::int64_t j = 0; j < count; ++j) {
    keys.exponent[j] = folds && key0 + j < sequence_.seqlen_k ? k_q_.exponent(key0 + j) : 0;
  }
  keys.exponent_top = *std::max_element(keys.exponent.data(), keys.exponent.data() + count);
  std::fill_n(keys.dk.data(), count * panel_dim_, 0.0f);
  std::fill_n(keys.dv.data(), count * panel_dim_, 0.0f);
  const KeyRange rows = seeing_rows(call_.problem.mask, sequence_.seqlen_q, sequence_.seqlen_k,
                                    key0, key0 + keys.real);
  keys.seen_by = {rows.begin / kTileQueries * kTileQueries, rows.end};
}

void BackwardUnit::write_keys(Keys& keys) {
  const SumLayout layout = SumLayout::pieces(panel_dim_);
  const auto write = [&](const Target& target, const float* sums, KeyGradient which, float factor) {
    if (target.data == nullptr) return;
    const bool shared = call_.key_sums != nullptr;
    for (std::int64_t first = 0; first < keys.real; first += kScaleBlock) {
      const std::int64_t row = keys.first + first;
      const std::int64_t rows = std::min<std::int64_t>(kScaleBlock, keys.real - first);
      float* const out =
          shared ? key_sums_at(call_, which, piece_.group, piece_.head_kv, sequence_.k_begin + row)
                 : s_.gradient.data();
      for (std::int64_t i = 0; i < rows; ++i) {
        scale_row(sums + layout.at(first + i), layout, shared ? 1.0f : factor, 1.0f, panel_dim_,
                  out + i * panel_dim_);
      }
      if (shared) continue;
      write_rows(target, {piece_.sequence, piece_.head_kv}, row, rows, out, panel_dim_);
    }
  };
  write(call_.dk, keys.dk.data(), KeyGradient::kDk, dk_factor(call_, q_));
  write(call_.dv, keys.dv.data(), KeyGradient::kDv, dv_factor(q_));
}

/// Visible queries of each key in the tile of kTileQueries rows from `row`.
void BackwardUnit::mask_keys(std::int64_t row, std::int64_t key0, std::int64_t keys) {
  if (!hides_keys(call_.problem.mask)) {
    const std::int64_t real = std::min(keys, sequence_.seqlen_k - key0);
    const auto queries =
        static_cast<std::int32_t>(std::min(kTileQueries, sequence_.seqlen_q - row));
    std::fill_n(s_.begin.data(), keys, 0);
    std::fill_n(s_.end.data(), real, queries);
    std::fill_n(s_.end.data() + real, keys - real, 0);
    return;
  }
  for (std::int64_t j = 0; j < keys; ++j) {
    const KeyRange rows = seeing_rows(call_.problem.mask, sequence_.seqlen_q, sequence_.seqlen_k,
                                      key0 + j, key0 + j + 1);
    const KeyRange local = within(rows, row, kTileQueries);
    s_.begin[j] = static_cast<std::int32_t>(local.begin);
    s_.end[j] = static_cast<std::int32_t>(local.end);
  }
}

/// P^T and dS^T of one key tile and 64 queries, rounded.
void BackwardUnit::run_tile(std::int64_t index, std::int64_t h, std::int64_t row,
                            std::int64_t span_row) {
  Keys& keys = s_.keys[index];
  mask_keys(row, keys.first, keys.count);
  const std::int64_t at = q_.at(h, row);
  for (std::int64_t first = 0; first < keys.count; first += kPartKeys) {
    const std::int64_t count = std::min(kPartKeys, keys.count - first);
    make_scores(keys, first, count, h, row);
    const std::int64_t to = kWeightsLayout.at(first, span_row);
    if (call_.dv.data != nullptr) round_p(count, at, s_.p.data() + to);
    if (call_.dk.data == nullptr && call_.dq.data == nullptr) continue;
    round_ds(keys, first, count, at, s_.ds.data() + to);
    if (call_.dq.data != nullptr) transpose_ds(count, span_row, index * kTileKeys + first);
  }
}

/// Pairs of `count` keys to rows of queries, from key `key` of the block on.
void BackwardUnit::transpose_ds(std::int64_t count, std::int64_t span_row, std::int64_t key) {
  for (std::int64_t pair = 0; pair < count / 2; pair += kTile) {
    for (std::int64_t query = 0; query < kTileQueries; query += kTile) {
      kernel_.transpose_pairs(s_.ds_pairs.data() + (pair * kTileQueries + query) * 2,
                              2 * kTileQueries,
                              s_.ds_rows.data() + kDsLayout.at(span_row + query, key + 2 * pair),
                              kTileDepth, kTile, kTile);
    }
  }
}

/// s_.s: P'^T, s_.dp: dS^T of `count` keys from key `first` of the tile on.
void BackwardUnit::make_scores(Keys& keys, std::int64_t first, std::int64_t count, std::int64_t h,
                               std::int64_t row) {
  const std::int64_t at = q_.at(h, row);
  const LeftLayout layout = LeftLayout::pieces(round_up(dim_, kTileDepth));
  const auto transposed = [&](Buffer<std::uint16_t>& a, const std::uint16_t* columns, float* c) {
    kernel_.product({.m = count,
                     .n = kTileQueries,
                     .k = dim_,
                     .a = a.data() + layout.at(first),
                     .a_layout = layout,
                     .b = columns + at * dim_,
                     .b_panel = dim_ * kPanel,
                     .c = c,
                     .c_layout = SumLayout::rows(kTileQueries)});
  };
  transposed(keys.k_rows, q_.q_columns, s_.s.data());
  transposed(keys.v_rows, q_.dout_columns, s_.dp.data());
  const bool folds = call_.arithmetic.hopper && !call_.arithmetic.bf16;
  kernel_.scores({.rows = count,
                  .cols = kTileQueries,
                  .s = s_.s.data(),
                  .dp = s_.dp.data(),
                  .begin = s_.begin.data() + first,
                  .end = s_.end.data() + first,
                  .s_mult = q_.s_mult[h],
                  .dp_mult = q_.dp_mult[h],
                  .bias = q_.bias + at,
                  .delta = q_.delta + at,
                  .unfold = folds ? q_.unfold + at : nullptr});
}

/// dV and dK of a key tile take the span's queries that see it.
void BackwardUnit::add_to_keys(Keys& keys, std::int64_t h, std::int64_t row) {
  const KeyRange span = within(keys.seen_by, row, kSpanQueries);
  if (span.empty()) return;
  const SumLayout layout = SumLayout::pieces(panel_dim_);
  const auto add = [&](std::uint16_t* weights, const std::uint16_t* operand,
                       const std::vector<NonFinite>& non_finite, float* sums) {
    kernel_.product({.m = keys.count,
                     .n = panel_dim_,
                     .k = round_up(span.end, kTileQueries) - span.begin,
                     .a = weights + kWeightsLayout.at(0, span.begin),
                     .a_layout = kWeightsLayout,
                     .b = q_.over_rows(operand, h, row + span.begin),
                     .b_panel = q_.panel_elems(),
                     .c = sums,
                     .c_layout = layout,
                     .accumulate = true});
    for (std::int64_t at = span.begin; at < span.end; at += kTileQueries) {
      non_finite[index_of(h, row + at)].add(
          sums, layout, keys.count,
          [&](std::int64_t key, std::int64_t query) {
            return sees(row + at + query, keys.first + key);
          },
          [&](std::int64_t key, std::int64_t query) {
            return mx::decode_bf16(weights[kWeightsLayout.at(key, at + query)]);
          });
    }
  };
  if (call_.dv.data != nullptr) {
    add(s_.p.data(), q_.dout_rows, q_.dout_non_finite, keys.dv.data());
  }
  if (call_.dk.data != nullptr) add(s_.ds.data(), q_.q_rows, q_.q_non_finite, keys.dk.data());
}

float* BackwardUnit::dq_at(std::int64_t h, std::int64_t row) {
  if (call_.dq_sums == nullptr) {
    return dq_.data() + ((h - piece_.head_begin) * sequence_.seqlen_q + row) * panel_dim_;
  }
  const std::int64_t head = piece_.index * call_.problem.num_heads + piece_.head_kv * heads_ + h;
  const std::int64_t first = head * call_.problem.rows_o() + sequence_.o_begin;
  return call_.dq_sums + (first + row) * panel_dim_;
}

/// dQ of a tile of queries takes key tiles [first, first + tiles) of the block.
void BackwardUnit::add_to_queries(std::int64_t first, std::int64_t tiles, std::int64_t h,
                                  std::int64_t row, std::int64_t span_row) {
  const std::int64_t queries = std::min(kTileQueries, sequence_.seqlen_q - row);
  float* const dq = dq_at(h, row);
  const std::uint16_t* const weights = s_.ds_rows.data() + kDsLayout.at(span_row);
  const std::int64_t keys = (tiles - 1) * kTileKeys + s_.keys[first + tiles - 1].count;
  kernel_.product({.m = queries,
                   .n = panel_dim_,
                   .k = keys,
                   .a = weights + kDsLayout.at(0, first * kTileKeys),
                   .a_layout = kDsLayout,
                   .b = s_.k_panels.data() + first * kTileKeys * kPanel,
                   .b_panel = kBlockKeys * kPanel,
                   .c = dq,
                   .c_layout = SumLayout::rows(panel_dim_),
                   .accumulate = s_.has_dq[index_of(h, row)]});
  s_.has_dq[index_of(h, row)] = true;
  for (std::int64_t i = first; i < first + tiles; ++i) {
    const Keys& tile = s_.keys[i];
    tile.non_finite.add(
        dq, SumLayout::rows(panel_dim_), queries,
        [&](std::int64_t query, std::int64_t key) { return sees(row + query, tile.first + key); },
        [&](std::int64_t query, std::int64_t key) {
          return mx::decode_bf16(weights[kDsLayout.at(query, i * kTileKeys + key)]);
        });
  }
}

void BackwardUnit::round_p(std::int64_t count, std::int64_t at, std::uint16_t* out) {
  RoundTile tile{.rows = count,
                 .cols = kTileQueries,
                 .values = s_.s.data(),
                 .ld = kTileQueries,
                 .rounding = call_.arithmetic.bf16 ? Rounding::kBf16 : Rounding::kE4M3,
                 .out = out,
                 .out_layout = kWeightsLayout};
  if (call_.arithmetic.bf16) {
    kernel_.round(tile);
  } else if (call_.arithmetic.hopper) {
    tile.col_fold = s_.ones.data();  // P' holds dO's exponent already
    tile.col_unfold = q_.unfold + at;
    kernel_.round(tile);
  } else {
    kernel_.round_blocks(tile, call_.arithmetic.rule == ScaleRule::kFloor);
  }
}

void BackwardUnit::round_ds(Keys& keys, std::int64_t first, std::int64_t count, std::int64_t at,
                            std::uint16_t* out) {
  const RoundTile tile{.rows = count,
                       .cols = kTileQueries,
                       .values = s_.dp.data(),
                       .ld = kTileQueries,
                       .out = out,
                       .out_layout = kWeightsLayout,
                       .pairs = s_.ds_pairs.data(),
                       .pair_ld = kTileQueries};
  if (call_.arithmetic.bf16) {
    RoundTile whole = tile;
    whole.rounding = Rounding::kBf16;
    return kernel_.round(whole);
  }
  const TokenExponents exponents{
      .q = q_.q_exponent + at, .k = keys.exponent.data() + first, .k_top = keys.exponent_top};
  if (call_.arithmetic.hopper) {
    keys.rounding.round_warps(kernel_, tile, first, exponents, call_.arithmetic.rule);
  } else {
    keys.rounding.round_squares(kernel_, tile, exponents,
                                call_.arithmetic.leak_free
                                    ? std::optional(DsAnchors{q_.q_anchor(), k_q_.anchor()})
                                    : std::nullopt,
                                call_.arithmetic.rule);
  }
}

}  // namespace mxfa::cpu
