#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "support/attention_case.h"

/// Faults that users of attention libraries met in the field, as small problems with right answers
/// from the definitions. A name starts with its number in the list of field failures; every
/// backend runs all of them.
namespace mxfa::testing {

namespace cases {

inline constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
/// One E4M3 rounding of a quantized operand.
inline constexpr double kOneRounding = 0.0625;

/// Rows of `width` equal values: row i holds values[i].
template <class T>
std::vector<T> rows(std::int64_t width, const std::vector<double>& values) {
  std::vector<T> result;
  result.reserve(values.size() * std::size_t(width));
  for (const double value : values) result.insert(result.end(), std::size_t(width), T(value));
  return result;
}

inline std::vector<double> repeated(std::int64_t count, double value) {
  return std::vector<double>(static_cast<std::size_t>(count), value);
}

inline Answer row_answer(std::int64_t width, const std::vector<double>& values,
                         double relative = 0) {
  return {.values = rows<double>(width, values), .relative = relative};
}

/// LSE is a logarithm rounded to FP32, so a value near 0 is as exact as one near 1.
inline Answer lse_answer(std::vector<double> values, double relative = 1e-6) {
  return {.values = std::move(values), .relative = relative, .floor = 1};
}

/// All tensors 0, sized for cu_seqlens and heads; dout too, so every case runs backward.
inline AttentionCase zeros(std::vector<std::int32_t> cu_seqlens_q,
                           std::vector<std::int32_t> cu_seqlens_k, std::int64_t head_dim = 32,
                           std::int64_t num_heads = 1, std::int64_t num_heads_kv = 1) {
  AttentionCase c{.num_heads = num_heads,
                  .num_heads_kv = num_heads_kv,
                  .head_dim = head_dim,
                  .cu_seqlens_q = std::move(cu_seqlens_q),
                  .cu_seqlens_k = std::move(cu_seqlens_k)};
  c.q.assign(std::size_t(c.total_q() * c.width_q()), 0.0f);
  c.dout = c.q;
  c.k.assign(std::size_t(c.total_k() * c.width_k()), 0.0f);
  c.v = c.k;
  return c;
}

/// Sets rows [first, first + values.size()) of a [rows, width] tensor.
inline void set_rows(std::vector<float>& tensor, std::int64_t width, std::int64_t first,
                     const std::vector<double>& values) {
  const std::vector<float> source = rows<float>(width, values);
  std::copy(source.begin(), source.end(), tensor.begin() + first * width);
}

/// One query over two keys with all answers exact, at the given rows of a larger problem.
inline void place_fix(AttentionCase& c, std::int64_t row_q, std::int64_t row_k, double dout = 1) {
  const std::int64_t d = c.head_dim;
  c.softmax_scale = 0.5;
  c.q[row_q * d] = 1;
  c.k[row_k * d] = c.k[row_k * d + 1] = c.k[(row_k + 1) * d] = 1;
  c.k[(row_k + 1) * d + 1] = -1;
  set_rows(c.v, d, row_k, {0, 0});
  c.v[row_k * d] = 2;
  c.dout[row_q * d] = float(dout);
  Answer o{.values = std::vector<double>(c.q.size())};
  Answer dk{.values = std::vector<double>(c.k.size())};
  Answer dq = o;
  Answer dv = dk;
  o.values[row_q * d] = 1;
  dq.values[row_q * d + 1] = 0.5 * dout;
  dk.values[row_k * d] = 0.25 * dout;
  dk.values[(row_k + 1) * d] = -0.25 * dout;
  dv.values[row_k * d] = dv.values[(row_k + 1) * d] = 0.5 * dout;
  c.o = o;
  c.dq = dq;
  c.dk = dk;
  c.dv = dv;
  c.lse = lse_answer({0.5 + std::log(2.0)});
}

inline AttentionCase fix(double dout = 1) {
  AttentionCase c = zeros({0, 1}, {0, 2});
  place_fix(c, 0, 0, dout);
  return c;
}

inline AttentionCase low_scores(double scale, bool both_keys) {
  AttentionCase c = zeros({0, 1}, {0, both_keys ? 2 : 1});
  c.softmax_scale = scale;
  set_rows(c.q, 32, 0, {64});
  set_rows(c.k, 32, 0, both_keys ? std::vector<double>{-32, -36} : std::vector<double>{-32});
  set_rows(c.v, 32, 0, both_keys ? std::vector<double>{1, 2} : std::vector<double>{1});
  set_rows(c.dout, 32, 0, {1});
  const double second = both_keys ? std::exp((-73728.0 + 65536.0) * scale) : 0;
  const double weight = second / (1 + second);
  c.o = row_answer(32, {1 + weight}, second > 0 ? 0.02 : 0);
  c.lse = lse_answer({-65536 * scale + std::log1p(second)});
  if (second == 0) {
    c.dq = row_answer(32, {0});
    c.dk = row_answer(32, both_keys ? std::vector<double>{0, 0} : std::vector<double>{0});
    c.dv = row_answer(32, both_keys ? std::vector<double>{1, 0} : std::vector<double>{1});
  }
  return c;
}

inline AttentionCase empty_queries(std::int64_t head_dim, bool causal) {
  AttentionCase c = zeros({0, 0, 1, 1}, {0, 2, 4, 5}, head_dim);
  c.mask.causal = causal;
  for (const std::int64_t row : {0, 1, 4}) {
    set_rows(c.k, head_dim, row, {3});
    set_rows(c.v, head_dim, row, {3});
  }
  place_fix(c, 0, 2);
  if (head_dim > 128) c.refusal = {"head_dim", std::to_string(head_dim)};
  return c;
}

/// All scores -128: exp(0 - LSE) of a padded key would be infinite.
inline AttentionCase very_negative_lse(std::int32_t seqlen_k) {
  constexpr std::int64_t kHeads = 2, kHeadDim = 64;
  AttentionCase c = zeros({0, 1}, {0, seqlen_k}, kHeadDim, kHeads, kHeads);
  c.softmax_scale = 0.125;
  c.q.assign(c.q.size(), 4.0f);
  c.k.assign(c.k.size(), -4.0f);
  const double n = seqlen_k;
  const double even_keys = (seqlen_k + 1) / 2;
  Answer o{.values = std::vector<double>(c.q.size())};
  Answer dv{.values = std::vector<double>(c.v.size()),
            .relative = seqlen_k == 128 ? 0 : kOneRounding};
  Answer dk = dv;
  for (std::int64_t head = 0; head < kHeads; ++head) {
    c.dout[head * kHeadDim] = 1;
    o.values[head * kHeadDim] = 2 * even_keys / n;
    for (std::int64_t j = 0; j < seqlen_k; ++j) {
      const std::int64_t at = (j * kHeads + head) * kHeadDim;
      if (j % 2 == 0) c.v[at] = 2;
      dv.values[at] = 1 / n;
      for (std::int64_t d = 0; d < kHeadDim; ++d) dk.values[at + d] = (j % 2 == 0 ? 1 : -1) / 256.0;
    }
  }
  c.o = o;
  c.lse = lse_answer(repeated(kHeads, -128 + std::log(n)));
  c.dv = dv;
  if (seqlen_k == 128) {
    c.dk = dk;
    c.dq = row_answer(kHeads * kHeadDim, {0});
  }
  return c;
}

/// Half of the keys score 0, half 2.5; a row maximum that lags behind would clamp P.
inline AttentionCase growing_maximum(bool low_first) {
  AttentionCase c = zeros({0, 1}, {0, 256});
  c.softmax_scale = 1;
  c.q[0] = 1;
  c.dout[0] = 1;
  for (std::int64_t j = 0; j < 128; ++j) {
    const std::int64_t row = low_first ? 128 + j : j;
    c.k[row * 32] = 2.5f;
    set_rows(c.v, 32, row, {1});
  }
  c.o = row_answer(32, {1 / (1 + std::exp(-2.5))}, 0.06);
  c.lse = lse_answer({std::log(128 + 128 * std::exp(2.5))});
  return c;
}

/// NaN in the neighbour's rows and in the slack behind them.
inline AttentionCase poisoned_neighbour() {
  AttentionCase c = zeros({0, 1, 2}, {0, 3, 5});
  c.slack_rows_k = 3;
  c.k.resize(std::size_t(c.total_k() * 32));
  set_rows(c.k, 32, 0, {1, 1, 1, kNaN, kNaN, kNaN, kNaN, kNaN});
  c.v = c.k;
  set_rows(c.v, 32, 0, {3, 6, 9});
  set_rows(c.dout, 32, 0, {1, 1});
  c.o = row_answer(32, {6, kNaN});
  c.lse = lse_answer({std::log(3.0), kNaN});
  c.dq = row_answer(32, {0, kNaN}, kOneRounding);
  c.dq->floor = 1;
  c.dk = row_answer(32, {0, 0, 0, kNaN, kNaN});
  c.dv = row_answer(32, {1 / 3.0, 1 / 3.0, 1 / 3.0, kNaN, kNaN}, kOneRounding);
  return c;
}

inline AttentionCase causal_rows_without_key() {
  AttentionCase c = zeros({0, 4}, {0, 2});
  c.mask.causal = true;
  c.softmax_scale = 1;
  set_rows(c.v, 32, 0, {2, 4});
  set_rows(c.dout, 32, 0, {1, 1, 1, 1});
  c.o = row_answer(32, {0, 0, 2, 3});
  c.lse = lse_answer({kMinusInfinity, kMinusInfinity, 0, std::log(2.0)});
  c.dv = row_answer(32, {1.5, 0.5});
  c.dq = row_answer(32, {0, 0, 0, 0});
  c.dk = row_answer(32, {0, 0});
  return c;
}

/// q's first block of 32 is all zero: scores come from the second alone.
inline AttentionCase zero_block() {
  AttentionCase c = zeros({0, 1}, {0, 2}, 64);
  c.softmax_scale = 0.1;
  for (std::int64_t d = 0; d < 32; ++d) {
    c.q[32 + d] = c.k[d] = c.k[32 + d] = c.k[64 + d] = 1;
  }
  set_rows(c.v, 64, 0, {1, 0});
  c.o = row_answer(64, {1 / (1 + std::exp(-3.2))}, kOneRounding);
  c.lse = lse_answer({std::log1p(std::exp(3.2))});
  return c;
}

/// q = k = 0, so every key weighs 1 / seqlen_k: o is the mean of `v_rows`, one value for each key.
inline AttentionCase uniform(const std::vector<double>& v_rows, double mean, std::int64_t seqlen_q,
                             std::int64_t head_dim, std::int64_t heads = 1) {
  const auto seqlen_k = std::int32_t(v_rows.size());
  AttentionCase c = zeros({0, std::int32_t(seqlen_q)}, {0, seqlen_k}, head_dim, heads, heads);
  set_rows(c.v, c.width_k(), 0, v_rows);
  c.o = row_answer(c.width_q(), repeated(seqlen_q, mean));
  c.lse = lse_answer(repeated(heads * seqlen_q, std::log(double(seqlen_k))));
  c.dq = row_answer(c.width_q(), repeated(seqlen_q, 0));
  c.dk = row_answer(c.width_k(), repeated(seqlen_k, 0));
  return c;
}

/// One large block among small values: a narrow accumulator loses the small ones.
inline AttentionCase large_and_small_values() {
  std::vector<double> values = repeated(4096, 3);
  std::fill(values.begin(), values.begin() + 32, 32768.0);
  return uniform(values, 1060768.0 / 4096, 1, 32);
}

inline AttentionCase more_queries_than_keys() {
  AttentionCase c = zeros({0, 76, 110, 256}, {0, 1, 2, 3});
  c.mask.causal = true;
  c.softmax_scale = 1;
  c.q.assign(c.q.size(), 1.0f);
  c.k.assign(c.k.size(), 2.0f);
  c.v.assign(c.v.size(), 3.0f);
  c.dout.assign(c.dout.size(), 1.0f);
  std::vector<double> o = repeated(256, 0);
  std::vector<double> lse = repeated(256, kMinusInfinity);
  for (const std::size_t last : {75, 109, 255}) {
    o[last] = 3;
    lse[last] = 64;
  }
  c.o = row_answer(32, o);
  c.lse = lse_answer(lse);
  c.dq = row_answer(32, repeated(256, 0));
  c.dk = row_answer(32, repeated(3, 0));
  c.dv = row_answer(32, repeated(3, 1));
  return c;
}

inline AttentionCase empty_batch() {
  AttentionCase c = zeros({0}, {0}, 64, 10, 10);
  c.o = c.lse = c.dq = c.dk = c.dv = Answer{};
  return c;
}

inline AttentionCase no_queries_at_all() {
  AttentionCase c = zeros({0, 0}, {0, 16});
  c.k.assign(c.k.size(), 1.0f);
  c.v = c.k;
  c.o = Answer{};
  c.lse = Answer{};
  c.dq = Answer{};
  c.dk = row_answer(32, repeated(16, 0));
  c.dv = c.dk;
  return c;
}

/// One query and one key each; `count` sequences, or heads of one sequence.
inline AttentionCase many(std::int32_t count, bool as_heads) {
  std::vector<std::int32_t> offsets{0, 1};
  for (std::int32_t s = 2; !as_heads && s <= count; ++s) offsets.push_back(s);
  const std::int64_t heads = as_heads ? count : 1;
  AttentionCase c = zeros(offsets, offsets, 32, heads, heads);
  std::vector<double> values;
  for (std::int32_t i = 0; i < count; ++i) values.push_back(i % 8);
  set_rows(c.v, 32, 0, values);
  c.dout.assign(c.dout.size(), 1.0f);
  c.o = row_answer(32, values);
  c.lse = lse_answer(repeated(count, 0));
  c.dv = row_answer(32, repeated(count, 1));
  c.dq = row_answer(32, repeated(count, 0));
  c.dk = c.dq;
  return c;
}

/// head_dim 40: the default scale is that of 40, not of the padded 64.
inline AttentionCase odd_head_dim() {
  AttentionCase c = zeros({0, 1}, {0, 2}, 40);
  c.q[0] = c.k[0] = 8;
  set_rows(c.v, 40, 0, {1, 0});
  const double score = 64 / std::sqrt(40.0);
  c.o = row_answer(40, {1 / (1 + std::exp(-score))}, 1e-3);
  c.lse = lse_answer({score + std::log1p(std::exp(-score))});
  return c;
}

inline AttentionCase grouped_heads(std::int64_t num_heads, std::int64_t num_heads_kv) {
  AttentionCase c = zeros({0, 1}, {0, 1}, 32, num_heads, num_heads_kv);
  c.dout.assign(c.dout.size(), 1.0f);
  const std::int64_t ratio = num_heads / num_heads_kv;
  std::vector<double> o, v;
  for (std::int64_t head = 0; head < num_heads; ++head) o.push_back(double(head / ratio + 1));
  for (std::int64_t head = 0; head < num_heads_kv; ++head) v.push_back(double(head + 1));
  set_rows(c.v, 32, 0, v);
  if (num_heads % num_heads_kv != 0) {
    c.refusal = {"num_heads", std::to_string(num_heads), std::to_string(num_heads_kv)};
    return c;
  }
  c.o = row_answer(32, o);
  c.lse = lse_answer(repeated(num_heads, 0));
  c.dv = row_answer(32, repeated(num_heads_kv, double(ratio)));
  c.dq = row_answer(32, repeated(num_heads, 0));
  c.dk = row_answer(32, repeated(num_heads_kv, 0));
  return c;
}

/// k and v have 4 rows, q has one; the offsets, or the stated maximum, do not fit.
inline AttentionCase bad_offsets(std::vector<std::int32_t> cu_seqlens_q,
                                 std::vector<std::int32_t> cu_seqlens_k, std::string got,
                                 std::int64_t max_seqlen_k = -1) {
  AttentionCase c = zeros({0, 1}, {0, 4});
  c.cu_seqlens_q = std::move(cu_seqlens_q);
  c.cu_seqlens_k = std::move(cu_seqlens_k);
  c.max_seqlen_k = max_seqlen_k;
  c.refusal = {"cu_seqlens_k", std::move(got)};
  return c;
}

}  // namespace cases

struct CaseEntry {
  std::string name;
  std::function<AttentionCase()> make;
  bool large = false;  ///< more than a million scores or a thousand heads: not for the emulator

  friend std::ostream& operator<<(std::ostream& out, const CaseEntry& entry) {
    return out << entry.name;
  }
};

/// The list: catalogue number, then what goes wrong where it fails.
inline const std::vector<CaseEntry>& field_failure_cases() {
  using namespace cases;
  static const std::vector<CaseEntry> entries{
      {"FIX", [] { return fix(); }},
      {"B01a_scores_below_stand_in", [] { return low_scores(1, true); }},
      {"B01b_scores_below_stand_in_mixed", [] { return low_scores(0x1p-13, true); }},
      {"B01c_scores_below_stand_in_one_key", [] { return low_scores(1, false); }},
      {"B02_empty_queries_d32", [] { return empty_queries(32, false); }},
      {"B02_empty_queries_d128", [] { return empty_queries(128, false); }},
      {"B02_empty_queries_d128_causal", [] { return empty_queries(128, true); }},
      {"B02_empty_queries_d256", [] { return empty_queries(256, false); }},
      {"B03a_low_lse_97", [] { return very_negative_lse(97); }},
      {"B03a_low_lse_128", [] { return very_negative_lse(128); }},
      {"B03a_low_lse_160", [] { return very_negative_lse(160); }},
      {"B03b_large_dq", [] { return fix(1024); }},
      {"B04c_scratch_tail", [] { return uniform(repeated(4096, 1), 1, 512, 128, 4); }, true},
      {"B07_growing_maximum", [] { return growing_maximum(true); }},
      {"B07_falling_maximum", [] { return growing_maximum(false); }},
      {"B08_poisoned_neighbour", [] { return poisoned_neighbour(); }},
      {"B10_rows_without_key", [] { return causal_rows_without_key(); }},
      {"B11_zero_block", [] { return zero_block(); }},
      {"B11_all_zero", [] { return uniform(repeated(5, 0), 0, 3, 64); }},
      {"B12b_long_keys", [] { return uniform(repeated(33728, 0), 0, 1, 128); }, true},
      {"B13_more_queries_than_keys", [] { return more_queries_than_keys(); }},
      {"B19a_empty_batch", [] { return empty_batch(); }},
      {"B19b_no_queries_at_all", [] { return no_queries_at_all(); }},
      {"B21_many_sequences", [] { return many(65537, false); }, true},
      {"B21_many_heads", [] { return many(65537, true); }, true},
      {"B22_head_dim_40", [] { return odd_head_dim(); }},
      {"B23_ratio_14_2", [] { return grouped_heads(14, 2); }},
      {"B23_ratio_5_1", [] { return grouped_heads(5, 1); }},
      {"B23_ratio_24_4", [] { return grouped_heads(24, 4); }},
      {"B23_ratio_16_1", [] { return grouped_heads(16, 1); }},
      {"B23_ratio_6_4", [] { return grouped_heads(6, 4); }},
      {"B24_short_last_block", [] { return uniform(repeated(33, 1), 1, 1, 32); }},
      {"B25_large_and_small_values", [] { return large_and_small_values(); }},
      {"B26_first_offset",
       [] {
         return bad_offsets({0, 1}, {1, 4}, "got 1");
       }},
      {"B26_past_the_rows",
       [] {
         return bad_offsets({0, 1}, {0, 5}, "got 5");
       }},
      {"B26_decreasing",
       [] {
         return bad_offsets({0, 1, 1, 1}, {0, 3, 2, 4}, "got 2");
       }},
      {"B26_negative",
       [] {
         return bad_offsets({0, 1, 1}, {0, -1, 4}, "got -1");
       }},
      {"B26_batch_length",
       [] {
         return bad_offsets({0, 1, 1}, {0, 4}, "got 2");
       }},
      {"B26_above_maximum",
       [] {
         return bad_offsets({0, 1}, {0, 4}, "of 4", 2);
       }},
  };
  return entries;
}

}  // namespace mxfa::testing
