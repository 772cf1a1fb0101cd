#include "cpu/attention_backward.h"

#include <algorithm>
#include <optional>

#include "mx/bits.h"

namespace mxfa::cpu {

using attention::KeyRange;

void BackwardScratch::Keys::reserve(std::int64_t dim, std::int64_t panel_dim) {
  k_rows.resize(kTileKeys * dim);
  v_rows.resize(kTileKeys * dim);
  k_panels.resize(kTileKeys * panel_dim);
  for (auto* sums : {&dk, &dv}) sums->resize(kTileKeys * panel_dim);
  exponent.resize(kTileKeys);
}

void BackwardScratch::reserve(std::int64_t dim, std::int64_t panel_dim) {
  rows.resize(kTileKeys * panel_dim);
  for (auto* values : {&p, &ds, &ds_pairs}) values->resize(kTileKeys * kTileQueries);
  for (auto* values : {&s, &dp}) values->resize(kTileKeys * kTileQueries);
  ones.resize(kTileQueries);
  std::fill_n(ones.data(), kTileQueries, 1.0f);
  begin.resize(kTileKeys);
  end.resize(kTileKeys);
  for (Keys& tile : keys) tile.reserve(dim, panel_dim);
}

BackwardUnit::BackwardUnit(const BackwardCall& call, const KeyChunk& chunk,
                           const BackwardQueries& queries, BackwardScratch& scratch)
    : call_(call),
      chunk_(chunk),
      q_(queries),
      s_(scratch),
      kernel_(kernels()),
      sequence_(call.problem.seqlens().at(chunk.sequence)),
      k_s_(call.k_s, chunk.sequence, chunk.head_kv),
      k_q_(call.k_q, chunk.sequence, chunk.head_kv),
      v_p_(call.v_p, chunk.sequence, chunk.head_kv),
      heads_(call.problem.heads_per_kv()),
      dim_(call.problem.head_dim),
      panel_dim_(round_up(dim_, kPanel)),
      dq_factor_(folded(static_cast<float>(call.problem.scale()), k_q_.anchor())) {}

void BackwardUnit::run() {
  s_.reserve(dim_, panel_dim_);
  if (call_.dq_sums == nullptr) s_.dq.resize(heads_ * sequence_.seqlen_q * panel_dim_);
  s_.has_dq.assign(static_cast<std::size_t>(heads_ * q_.rows() / kTileQueries), false);
  for (std::int64_t tile = chunk_.tile_begin; tile < chunk_.tile_end; tile += kBlockTiles) {
    run_block(tile, std::min(kBlockTiles, chunk_.tile_end - tile));
  }
  if (call_.dq.data == nullptr) return;
  const bool empty = chunk_.tile_begin == chunk_.tile_end;
  for (std::int64_t h = 0; h < heads_; ++h) {
    for (std::int64_t row = 0; empty && row < sequence_.seqlen_q; row += kTileQueries) {
      finish_dq(h, row);
    }
    if (call_.dq_sums != nullptr) continue;
    write_rows(call_.dq, {chunk_.sequence, chunk_.head_kv * heads_ + h}, 0, sequence_.seqlen_q,
               dq_at(h, 0), panel_dim_);
  }
}

/// The queries once for all key tiles of the block, so that keys and their sums stay in the cache.
void BackwardUnit::run_block(std::int64_t first_tile, std::int64_t tiles) {
  const bool last = first_tile + tiles == chunk_.tile_end;
  KeyRange seeing[kBlockTiles];
  for (std::int64_t i = 0; i < tiles; ++i) {
    const std::int64_t tile = first_tile + i, key0 = first_key(tile);
    read_keys(s_.keys[i], tile);
    const KeyRange rows = seeing_rows(call_.problem.mask, sequence_.seqlen_q, sequence_.seqlen_k,
                                      key0, key0 + real_keys(tile));
    seeing[i] = {rows.begin / kTileQueries * kTileQueries, rows.end};
  }
  for (std::int64_t h = 0; h < heads_; ++h) {
    for (Keys& keys : s_.keys) keys.rounding.begin_keys();
    for (std::int64_t row = 0; row < sequence_.seqlen_q; row += kTileQueries) {
      for (std::int64_t i = 0; i < tiles; ++i) {
        if (row < seeing[i].begin || row >= seeing[i].end) continue;
        run_tile(s_.keys[i], first_tile + i, h, row);
      }
      if (last && call_.dq.data != nullptr) finish_dq(h, row);
    }
  }
  for (std::int64_t i = 0; i < tiles; ++i) write_keys(s_.keys[i], first_tile + i);
}

std::int64_t BackwardUnit::real_keys(std::int64_t tile) const {
  return std::min(kTileKeys, sequence_.seqlen_k - first_key(tile));
}

void BackwardUnit::read_keys(Keys& keys, std::int64_t tile) {
  const std::int64_t key0 = first_key(tile), count = round_up(real_keys(tile), kScaleBlock);
  k_s_.read(key0, count, dim_, keys.k_rows.data(), dim_);
  v_p_.read(key0, count, dim_, keys.v_rows.data(), dim_);
  k_q_.read(key0, count, panel_dim_, s_.rows.data(), panel_dim_);
  keys.non_finite.clear();
  if (hides_keys(call_.problem.mask)) {
    keys.non_finite.take(s_.rows.data(), count, dim_, panel_dim_);
  }
  pack_rows(kernel_, s_.rows.data(), panel_dim_, count, panel_dim_, keys.k_panels.data());
  const bool folds = folds_ds(call_.arithmetic);
  for (std::int64_t j = 0; j < count; ++j) {
    keys.exponent[j] = folds && key0 + j < sequence_.seqlen_k ? k_q_.exponent(key0 + j) : 0;
  }
  std::fill_n(keys.dk.data(), count * panel_dim_, 0.0f);
  std::fill_n(keys.dv.data(), count * panel_dim_, 0.0f);
}

void BackwardUnit::write_keys(Keys& keys, std::int64_t tile) {
  const std::int64_t real = real_keys(tile);
  const auto scale_and_write = [&](const Target& target, float* sums, float factor, int exponent) {
    if (target.data == nullptr) return;
    const float scale = folded(factor, exponent);
    for (std::int64_t i = 0; i < real * panel_dim_; ++i) sums[i] *= scale;
    write_rows(target, {chunk_.sequence, chunk_.head_kv}, first_key(tile), real, sums, panel_dim_);
  };
  scale_and_write(call_.dk, keys.dk.data(), static_cast<float>(call_.problem.scale()),
                  q_.q_anchor());
  scale_and_write(call_.dv, keys.dv.data(), 1.0f, q_.dout_anchor());
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

void BackwardUnit::run_tile(Keys& keys, std::int64_t tile, std::int64_t h, std::int64_t row) {
  const std::int64_t count = round_up(real_keys(tile), kScaleBlock);
  mask_keys(row, first_key(tile), count);
  const std::int64_t at = q_.at(h, row);
  const auto transposed_scores = [&](Buffer<std::uint16_t>& a, const std::uint16_t* columns,
                                     Buffer<float>& c) {
    kernel_.product({.m = count,
                     .n = kTileQueries,
                     .k = dim_,
                     .a = a.data(),
                     .a_row = dim_,
                     .b = columns + at * dim_,
                     .b_panel = dim_ * kPanel,
                     .c = c.data(),
                     .ldc = kTileQueries});
  };
  transposed_scores(keys.k_rows, q_.q_columns, s_.s);
  transposed_scores(keys.v_rows, q_.dout_columns, s_.dp);
  const bool folds = call_.arithmetic.hopper && !call_.arithmetic.bf16;
  kernel_.scores({.rows = count,
                  .cols = kTileQueries,
                  .s = s_.s.data(),
                  .dp = s_.dp.data(),
                  .begin = s_.begin.data(),
                  .end = s_.end.data(),
                  .s_mult = q_.s_mult[h],
                  .dp_mult = q_.dp_mult[h],
                  .bias = q_.bias + at,
                  .delta = q_.delta + at,
                  .unfold = folds ? q_.unfold + at : nullptr});
  const auto index = static_cast<std::size_t>(at / kTileQueries);
  if (call_.dv.data != nullptr) {
    round_p(at, count);
    add_to_keys(at, count, s_.p, q_.dout_rows, q_.dout_non_finite[index], keys.dv.data());
  }
  if (call_.dk.data == nullptr && call_.dq.data == nullptr) return;
  round_ds(keys, at, count);
  if (call_.dk.data != nullptr) {
    add_to_keys(at, count, s_.ds, q_.q_rows, q_.q_non_finite[index], keys.dk.data());
  }
  if (call_.dq.data != nullptr) add_to_queries(keys, count, h, row);
}

/// sums [count, panel_dim] += weights [count, kTileQueries] times the queries' operand.
void BackwardUnit::add_to_keys(std::int64_t at, std::int64_t count, Buffer<std::uint16_t>& weights,
                               const std::uint16_t* operand, const NonFinite& non_finite,
                               float* sums) {
  kernel_.product({.m = count,
                   .n = panel_dim_,
                   .k = kTileQueries,
                   .a = weights.data(),
                   .a_row = kTileQueries,
                   .b = operand + at * panel_dim_,
                   .b_panel = kTileQueries * kPanel,
                   .c = sums,
                   .ldc = panel_dim_,
                   .accumulate = true});
  non_finite.add(
      sums, panel_dim_, count,
      [&](std::int64_t key, std::int64_t query) { return sees(query, key); },
      [&](std::int64_t key, std::int64_t query) {
        return mx::decode_bf16(weights[key * kTileQueries + query]);
      });
}

float* BackwardUnit::dq_at(std::int64_t h, std::int64_t row) {
  if (call_.dq_sums == nullptr) {
    return s_.dq.data() + (h * sequence_.seqlen_q + row) * panel_dim_;
  }
  const std::int64_t head = chunk_.index * call_.problem.num_heads + chunk_.head_kv * heads_ + h;
  const std::int64_t first = head * call_.problem.rows_o() + sequence_.o_begin;
  return call_.dq_sums + (first + row) * panel_dim_;
}

void BackwardUnit::add_to_queries(Keys& keys, std::int64_t count, std::int64_t h,
                                  std::int64_t row) {
  const std::int64_t queries = std::min(kTileQueries, sequence_.seqlen_q - row);
  const auto index = static_cast<std::size_t>(q_.at(h, row) / kTileQueries);
  float* const dq = dq_at(h, row);
  kernel_.product({.m = queries,
                   .n = panel_dim_,
                   .k = count,
                   .a = s_.ds_pairs.data(),
                   .a_row = 2,
                   .a_pair = 2 * kTileQueries,
                   .b = keys.k_panels.data(),
                   .b_panel = count * kPanel,
                   .c = dq,
                   .ldc = panel_dim_,
                   .accumulate = s_.has_dq[index]});
  s_.has_dq[index] = true;
  keys.non_finite.add(
      dq, panel_dim_, queries,
      [&](std::int64_t query, std::int64_t key) { return sees(query, key); },
      [&](std::int64_t query, std::int64_t key) {
        const std::int64_t pair = key / 2 * kTileQueries + query;
        return mx::decode_bf16(s_.ds_pairs[2 * pair + key % 2]);
      });
}

void BackwardUnit::round_p(std::int64_t at, std::int64_t count) {
  RoundTile tile{.rows = count,
                 .cols = kTileQueries,
                 .values = s_.s.data(),
                 .ld = kTileQueries,
                 .rounding = call_.arithmetic.bf16 ? Rounding::kBf16 : Rounding::kE4M3,
                 .out = s_.p.data()};
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

void BackwardUnit::round_ds(Keys& keys, std::int64_t at, std::int64_t count) {
  const RoundTile tile{.rows = count,
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
  const TokenExponents exponents{q_.q_exponent + at, keys.exponent.data()};
  if (call_.arithmetic.hopper) {
    keys.rounding.round_warps(kernel_, tile, exponents, call_.arithmetic.rule);
  } else {
    keys.rounding.round_squares(kernel_, tile, exponents,
                                call_.arithmetic.leak_free
                                    ? std::optional(DsAnchors{q_.q_anchor(), k_q_.anchor()})
                                    : std::nullopt,
                                call_.arithmetic.rule);
  }
}

/// A tile of dQ's sums takes its factor, or zeros where no key was seen.
void BackwardUnit::finish_dq(std::int64_t h, std::int64_t row) {
  const std::int64_t count = std::min(kTileQueries, sequence_.seqlen_q - row) * panel_dim_;
  float* const dq = dq_at(h, row);
  if (!s_.has_dq[static_cast<std::size_t>(q_.at(h, row) / kTileQueries)]) {
    std::fill_n(dq, count, 0.0f);
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) dq[i] *= dq_factor_;
}

}  // namespace mxfa::cpu
