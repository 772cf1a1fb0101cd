#include <algorithm>
#include <cmath>
#include <utility>

#include "mx/block.h"
#include "mx/convert.h"
#include "reference/recipe/backward.h"
#include "reference/recipe/outputs.h"

namespace mxfa::reference::recipe::internal {
namespace {

constexpr float kF16Max = 65504.0f;

/// SplitMix64 of a seed and an element: one draw for each dS.
std::uint32_t draw(std::uint64_t seed, std::uint64_t element) {
  std::uint64_t z = seed + (element + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return static_cast<std::uint32_t>((z ^ (z >> 31)) >> 32);
}

/// E4M3 with the probability of rounding up in magnitude equal to what truncation drops.
std::uint8_t encode_stochastic(float value, std::uint32_t random) {
  if (mx::is_nan(value)) return mx::E4M3::kNanCode;
  const std::uint32_t sign = (mx::float_bits(value) >> 24) & 0x80u;
  const float abs = mx::magnitude(value);
  if (abs >= mx::E4M3::kMaxValue) return static_cast<std::uint8_t>(sign | mx::E4M3::kMaxCode);
  const int exponent = std::max(static_cast<int>(mx::float_bits(abs) >> 23) - 127, -6);
  const double step = std::ldexp(1.0, exponent - 3);
  const double up = std::floor(abs / step + random * 0x1p-32) * step;
  return static_cast<std::uint8_t>(sign | mx::encode_e4m3(static_cast<float>(up)));
}

int largest(const TokenExponents& exponents, std::int64_t begin, std::int64_t end) {
  int top = -mx::kE8M0Bias;
  for (std::int64_t i = begin; i < end; ++i) top = std::max(top, exponents[i]);
  return top;
}

/// Exponents relative to their maximum. Blocks of zeros count as the maximum: their payload is zero
/// whatever is folded, and what they share a payload with must not shrink.
TokenExponents relative(const TokenExponents& exponents) {
  const int top = largest(exponents, 0, static_cast<std::int64_t>(exponents.size()));
  TokenExponents result;
  for (const int e : exponents) result.push_back(e == -mx::kE8M0Bias ? 0 : std::max(e - top, -100));
  return result;
}

float add_rounded(float sum, float term, DqAccum format) {
  // Sums of two 11-bit or 8-bit numbers may be rounded to FP32 on the way.
  if (format == DqAccum::kBf16) return mx::round_bf16(sum + mx::round_bf16(term));
  if (format == DqAccum::kF32) return sum + term;
  return mx::round_f16(sum + mx::round_f16(term));
}

}  // namespace

std::uint8_t BackwardRun::encode_ds(float value, std::int64_t row, std::int64_t key) const {
  if (!config_.stochastic_ds) return mx::encode_e4m3(value);
  return encode_stochastic(value,
                           draw(config_.seed, static_cast<std::uint64_t>(row * seqlen_k_ + key)));
}

void BackwardRun::store_dk(std::int64_t key, const float* acc, float scale, int exponent) {
  const float factor = folded(scale, exponent);
  for (std::int64_t c = 0; c < dim_; ++c) out_.dk(key, c) = acc[c] * factor;
}

/// dK's payload of one warp: 16 keys x query tile, Q's exponents folded. `exponent` is the warp's
/// so far (kNoExponent at first); returns the new one, which is never smaller.
int BackwardRun::warp_payload(const KeyTile& tile, std::int64_t row0, std::int64_t group,
                              int exponent, mx::MmaPanel& panel) {
  const std::int64_t row1 = std::min<std::int64_t>(row0 + config_.backward_tile_m, seqlen_q_);
  const std::int64_t key0 = group * kWarpKeys;
  const std::int64_t key1 = std::min(key0 + kWarpKeys, tile.keys);
  const int reference = largest(q_fold_, row0, row1);
  float values[kWarpKeys];
  std::uint32_t amax_bits = 0;
  const auto load = [&](std::int64_t row) {
    scale_row(tile.ds.row(row).data() + key0, q_fold_[row] - reference, values, key1 - key0);
  };
  for (std::int64_t row = row0; row < row1; ++row) {
    load(row);
    amax_bits = std::max(amax_bits, mx::max_magnitude(values, key1 - key0));
  }
  const float amax = mx::bits_float(amax_bits);
  const std::uint8_t scale = mx::scale_from_amax<mx::E4M3>(amax, config_.scale_rule);
  const bool nan = scale == mx::kE8M0Nan;
  const int room = config_.half_sums ? kHalfSumsDkRoom : 0;
  if (amax > 0 && !nan) exponent = std::max(exponent, scale_exponent(scale) + reference + room);
  const float inverse = power_of_two(exponent == kNoExponent ? 0 : reference - exponent);
  for (std::int64_t row = row0; row < row1; ++row) {
    load(row);
    for (std::int64_t j = key0; j < key1; ++j) {
      const std::uint8_t code =
          nan ? mx::E4M3::kNanCode : encode_ds(values[j - key0] * inverse, row, tile.key0 + j);
      const float value = mx::decode_e4m3(code);
      panel.row(j)[row - row0] = value;
      if (!config_.keep_intermediates) continue;
      out_.ds_dk_codes(row, tile.key0 + j) = code;
      out_.ds_dequantized(row, tile.key0 + j) =
          static_cast<float>(std::ldexp(value, exponent - q_fold_[row]));
    }
  }
  if (config_.keep_intermediates) {
    out_.ds_dk_exponent(row0 / config_.backward_tile_m, (tile.key0 + key0) / kWarpKeys) =
        static_cast<std::int16_t>(exponent);
  }
  return exponent;
}

/// dQ's payload of query tile x kDqKeys, K's exponents folded; returns its exponent, kNoExponent
/// where all of it is zero.
int BackwardRun::dq_payload(const KeyTile& tile, std::int64_t row0, std::int64_t key0,
                            mx::MmaPanel& panel) {
  const std::int64_t row1 = std::min<std::int64_t>(row0 + config_.backward_tile_m, seqlen_q_);
  const std::int64_t keys = std::min(kDqKeys, tile.keys - key0);
  const int reference = largest(k_fold_, tile.key0, tile.key0 + tile.keys);
  std::vector<float> fold(static_cast<std::size_t>(keys));
  for (std::int64_t j = 0; j < keys; ++j) {
    fold[j] = power_of_two(k_fold_[tile.key0 + key0 + j] - reference);
  }
  std::vector<float> values(fold.size());
  std::uint32_t amax_bits = 0;
  for (std::int64_t row = row0; row < row1; ++row) {
    multiply_row(tile.ds.row(row).data() + key0, fold.data(), values.data(), keys);
    amax_bits = std::max(amax_bits, mx::max_magnitude(values.data(), keys));
  }
  const std::uint8_t scale =
      mx::scale_from_amax<mx::E4M3>(mx::bits_float(amax_bits), config_.scale_rule);
  const int exponent =
      scale_exponent(scale) + reference + (config_.half_sums ? kHalfSumsDqRoom : 0);
  const float inverse = power_of_two(reference - exponent);
  for (std::int64_t row = row0; row < row1; ++row) {
    multiply_row(tile.ds.row(row).data() + key0, fold.data(), values.data(), keys);
    for (std::int64_t j = 0; j < keys; ++j) {
      const std::uint8_t code = scale == mx::kE8M0Nan
                                    ? mx::E4M3::kNanCode
                                    : encode_ds(values[j] * inverse, row, tile.key0 + key0 + j);
      panel.row(row)[key0 + j] = mx::decode_e4m3(code);
      if (config_.keep_intermediates) out_.ds_dq_codes(row, tile.key0 + key0 + j) = code;
    }
  }
  const int result = amax_bits == 0 ? kNoExponent : exponent;
  if (config_.keep_intermediates) {
    out_.ds_dq_exponent(row0 / config_.backward_tile_m, (tile.key0 + key0) / kDqKeys) =
        static_cast<std::int16_t>(result);
  }
  return result;
}

/// One chain of MMAs: the keys of the smallest exponent first, the sum rescaled where it grows.
/// Leaves in the first column of `exponents` [seqlen_q, parts] what the sums are of.
Matrix<float> BackwardRun::dq_of_halves(const KeyTile& tile, const mx::MmaPanel& panel,
                                        Matrix<int>& exponents) const {
  const bool half = config_.half_sums;
  Matrix<float> acc(seqlen_q_, dim_);
  for (std::int64_t row0 = tile.row0; row0 < tile.row1; row0 += config_.backward_tile_m) {
    const std::int64_t row1 = std::min<std::int64_t>(row0 + config_.backward_tile_m, tile.row1);
    std::vector<std::pair<int, std::int64_t>> parts;
    for (std::int64_t part = 0; part < exponents.cols; ++part) {
      parts.emplace_back(exponents(row0, part), part);
    }
    std::ranges::stable_sort(parts, {}, &std::pair<int, std::int64_t>::first);
    int sum = kNoExponent;
    for (const auto& [exponent, part] : parts) {
      for (std::int64_t row = row0; row < row1 && sum != kNoExponent && sum != exponent; ++row) {
        scale_row(acc.row(row).data(), sum - exponent, acc.row(row).data(), dim_);
        if (half) round_f16_row(acc.row(row).data(), dim_);
      }
      sum = exponent;
      mx::tensor_core_gemm(panel, k_,
                           {.m = row1 - row0,
                            .n = dim_,
                            .depth = std::min(kDqKeys, tile.keys - part * kDqKeys),
                            .a_row = row0,
                            .a_depth = part * kDqKeys,
                            .b_depth = tile.key0 + part * kDqKeys},
                           half ? mx::kHopperFp8HalfAccumulator : ds_rule_, acc.row(row0).data(),
                           dim_);
    }
    for (std::int64_t row = row0; row < row1; ++row) exponents(row, 0) = sum;
  }
  return acc;
}

void BackwardRun::warp16_dk(const KeyTile& tile) {
  const std::int64_t groups = mx::ceil_div(tile.keys, kWarpKeys);
  std::vector<int> exponents(static_cast<std::size_t>(groups), kNoExponent);
  Matrix<float> acc(tile.keys, dim_);
  Matrix<float> sum(tile.keys, dim_);
  const std::int64_t step = config_.backward_tile_m;
  for (std::int64_t row0 = tile.row0; row0 < tile.row1; row0 += step) {
    const std::int64_t row1 = std::min(row0 + step, seqlen_q_);
    mx::MmaPanel for_dk(tile.keys, row1 - row0);
    if (config_.promote_queries > 0 && row0 % config_.promote_queries == 0) {
      for (std::size_t i = 0; i < acc.data.size(); ++i) sum.data[i] += acc.data[i];
      std::ranges::fill(acc.data, 0.0f);
    }
    for (std::int64_t group = 0; group < groups; ++group) {
      const int old = exponents[group];
      const int grown = warp_payload(tile, row0, group, old, for_dk);
      exponents[group] = grown;
      if (old == kNoExponent || grown == old) continue;
      ++out_.ds_rescales;
      const std::int64_t end = std::min((group + 1) * kWarpKeys, tile.keys);
      for (std::int64_t j = group * kWarpKeys; j < end; ++j) {
        scale_row(acc.row(j).data(), old - grown, acc.row(j).data(), dim_);
        scale_row(sum.row(j).data(), old - grown, sum.row(j).data(), dim_);
      }
    }
    if (ds_rule_ != mx::kExactAccumulator) mx::prepare_aligned(for_dk);
    mx::tensor_core_gemm(for_dk, q_,
                         {.m = tile.keys, .n = dim_, .depth = row1 - row0, .b_depth = row0},
                         ds_rule_, acc.data.data(), dim_);
  }
  for (std::int64_t j = 0; j < tile.keys; ++j) {
    for (std::int64_t c = 0; c < dim_; ++c) sum(j, c) += acc(j, c);
    const int exponent = exponents[j / kWarpKeys];
    store_dk(tile.key0 + j, sum.row(j).data(), softmax_scale_,
             exponent == kNoExponent ? 0 : exponent);
  }
}

void BackwardRun::warp16_dq(const KeyTile& tile) {
  mx::MmaPanel for_dq(seqlen_q_, tile.keys);
  Matrix<int> dq_exponents(seqlen_q_, mx::ceil_div(tile.keys, kDqKeys));
  const std::int64_t step = config_.backward_tile_m;
  for (std::int64_t row0 = tile.row0; row0 < tile.row1; row0 += step) {
    const std::int64_t row1 = std::min(row0 + step, seqlen_q_);
    for (std::int64_t part = 0; part < dq_exponents.cols; ++part) {
      const int exponent = dq_payload(tile, row0, part * kDqKeys, for_dq);
      for (std::int64_t row = row0; row < row1; ++row) dq_exponents(row, part) = exponent;
    }
  }
  if (ds_rule_ != mx::kExactAccumulator) mx::prepare_aligned(for_dq);
  const Matrix<float> dq = dq_of_halves(tile, for_dq, dq_exponents);
  std::vector<int> of_rows;
  for (std::int64_t row = 0; row < seqlen_q_; ++row) {
    of_rows.push_back(dq_exponents(row, 0) == kNoExponent ? 0 : dq_exponents(row, 0));
  }
  add_dq(tile, dq, of_rows, softmax_scale_);
}

/// One 32 x 32 square, with Q's and K's exponents folded where the MMA cannot apply them. A factor
/// of a row is free in dQ and one of a column in dK, so one payload still serves both.
void BackwardRun::square_payload(const KeyTile& tile, std::int64_t row0, std::int64_t key0,
                                 mx::MmaPanel& for_dk, mx::MmaPanel& for_dq) {
  const std::int64_t row1 = std::min<std::int64_t>(row0 + kScaleBlock, seqlen_q_);
  const std::int64_t key1 = std::min<std::int64_t>(key0 + kScaleBlock, tile.keys);
  const auto fold = [&](std::int64_t row, std::int64_t key) {
    return (out_.ds_row_fold.empty() ? 0 : out_.ds_row_fold[row]) +
           (out_.ds_col_fold.empty() ? 0 : out_.ds_col_fold[tile.key0 + key]);
  };
  std::uint32_t amax_bits = 0;
  float values[kScaleBlock][kScaleBlock];
  for (std::int64_t row = row0; row < row1; ++row) {
    float* const out = values[row - row0];
    for (std::int64_t j = key0; j < key1; ++j) {
      out[j - key0] = tile.ds(row, j) * power_of_two(fold(row, j));
    }
    amax_bits = std::max(amax_bits, mx::max_magnitude(out, key1 - key0));
  }
  const std::uint8_t scale =
      mx::scale_from_amax<mx::E4M3>(mx::bits_float(amax_bits), config_.scale_rule);
  const bool nan = scale == mx::kE8M0Nan;
  const int exponent = nan ? 0 : scale_exponent(scale);
  const float inverse = nan ? 1.0f : mx::inverse_e8m0(scale);
  for (std::int64_t row = row0; row < row1; ++row) {
    for_dq.scales[(row * for_dq.cols + key0) / kScaleBlock] = static_cast<std::int16_t>(exponent);
    for (std::int64_t j = key0; j < key1; ++j) {
      const std::uint8_t code =
          nan ? mx::E4M3::kNanCode
              : encode_ds(values[row - row0][j - key0] * inverse, row, tile.key0 + j);
      const float value = mx::decode_e4m3(code);
      for_dk.row(j)[row] = for_dq.row(row)[j] = value;
      if (!config_.keep_intermediates) continue;
      out_.ds_dk_codes(row, tile.key0 + j) = out_.ds_dq_codes(row, tile.key0 + j) = code;
      out_.ds_dequantized(row, tile.key0 + j) =
          static_cast<float>(std::ldexp(value, exponent - fold(row, j)));
    }
  }
  for (std::int64_t j = key0; j < key1; ++j) {
    for_dk.scales[(j * for_dk.cols + row0) / kScaleBlock] = static_cast<std::int16_t>(exponent);
  }
  if (!config_.keep_intermediates) return;
  const std::int64_t key_block = (tile.key0 + key0) / kScaleBlock;
  out_.ds_dk_exponent(row0 / kScaleBlock, key_block) = static_cast<std::int16_t>(exponent);
  out_.ds_dq_exponent(row0 / kScaleBlock, key_block) = static_cast<std::int16_t>(exponent);
}

void BackwardRun::gradients_square32(const KeyTile& tile) {
  mx::MmaPanel for_dk(tile.keys, seqlen_q_);
  mx::MmaPanel for_dq(seqlen_q_, tile.keys);
  for (mx::MmaPanel* panel : {&for_dk, &for_dq}) {
    panel->scales.assign(panel->values.size() / kScaleBlock, 0);
  }
  const auto count = [](const TokenExponents& e) { return static_cast<std::int64_t>(e.size()); };
  out_.ds_row_fold = relative(q_fold_);
  out_.ds_col_fold = relative(k_fold_);
  const int q_top = q_fold_.empty() ? 0 : largest(q_fold_, 0, count(q_fold_));
  const int k_top = k_fold_.empty() ? 0 : largest(k_fold_, 0, count(k_fold_));
  for (std::int64_t row = tile.row0; row < tile.row1; row += kScaleBlock) {
    for (std::int64_t key = 0; key < tile.keys; key += kScaleBlock) {
      square_payload(tile, row, key, for_dk, for_dq);
    }
  }
  if (ds_rule_ != mx::kExactAccumulator) {
    mx::prepare_aligned(for_dk);
    mx::prepare_aligned(for_dq);
  }
  Matrix<float> sum(tile.keys, dim_);
  accumulate(tile, for_dk, q_, ds_rule_, sum);
  for (std::int64_t j = 0; j < tile.keys; ++j) {
    const int fold = out_.ds_col_fold.empty() ? 0 : out_.ds_col_fold[tile.key0 + j];
    store_dk(tile.key0 + j, sum.row(j).data(), softmax_scale_, q_top - fold);
  }
  std::vector<int> exponents(static_cast<std::size_t>(seqlen_q_), k_top);
  for (std::int64_t i = 0; i < seqlen_q_ && !out_.ds_row_fold.empty(); ++i) {
    exponents[i] = k_top - out_.ds_row_fold[i];
  }
  add_dq(tile, dq_gemm(tile, for_dq), exponents, softmax_scale_);
}

/// One FP32 scale for the whole of dS.
void BackwardRun::gradients_tensor(const KeyTile& tile) {
  mx::MmaPanel for_dk(tile.keys, seqlen_q_);
  mx::MmaPanel for_dq(seqlen_q_, tile.keys);
  const bool usable = ds_tensor_amax_ > 0 && mx::is_finite(ds_tensor_amax_);
  const float inverse = usable ? mx::E4M3::kMaxValue / ds_tensor_amax_ : 1.0f;
  const float scale = usable ? ds_tensor_amax_ / mx::E4M3::kMaxValue : 1.0f;
  for (std::int64_t row = tile.row0; row < tile.row1; ++row) {
    for (std::int64_t j = 0; j < tile.keys; ++j) {
      const std::uint8_t code = encode_ds(tile.ds(row, j) * inverse, row, tile.key0 + j);
      const float value = mx::decode_e4m3(code);
      for_dk.row(j)[row] = for_dq.row(row)[j] = value;
      if (!config_.keep_intermediates) continue;
      out_.ds_dk_codes(row, tile.key0 + j) = out_.ds_dq_codes(row, tile.key0 + j) = code;
      out_.ds_dequantized(row, tile.key0 + j) = value * scale;
    }
  }
  if (ds_rule_ != mx::kExactAccumulator) {
    mx::prepare_aligned(for_dk);
    mx::prepare_aligned(for_dq);
  }
  Matrix<float> sum(tile.keys, dim_);
  accumulate(tile, for_dk, q_, ds_rule_, sum);
  for (std::int64_t j = 0; j < tile.keys; ++j) {
    store_dk(tile.key0 + j, sum.row(j).data(), softmax_scale_ * scale * operands_.q.tensor_scale,
             0);
  }
  add_dq(tile, dq_gemm(tile, for_dq), std::vector<int>(static_cast<std::size_t>(seqlen_q_), 0),
         softmax_scale_ * scale * operands_.k.tensor_scale);
}

void BackwardRun::gradients_bf16(const KeyTile& tile) {
  mx::MmaPanel for_dk(tile.keys, seqlen_q_);
  mx::MmaPanel for_dq(seqlen_q_, tile.keys);
  for (std::int64_t row = tile.row0; row < tile.row1; ++row) {
    for (std::int64_t j = 0; j < tile.keys; ++j) {
      const float value = round_unscaled(tile.ds(row, j), config_);
      for_dk.row(j)[row] = for_dq.row(row)[j] = value;
      if (config_.keep_intermediates) out_.ds_dequantized(row, tile.key0 + j) = value;
    }
  }
  Matrix<float> sum(tile.keys, dim_);
  accumulate(tile, for_dk, q_, ds_rule_, sum);
  for (std::int64_t j = 0; j < tile.keys; ++j) {
    store_dk(tile.key0 + j, sum.row(j).data(), softmax_scale_, 0);
  }
  add_dq(tile, dq_gemm(tile, for_dq), std::vector<int>(static_cast<std::size_t>(seqlen_q_), 0),
         softmax_scale_);
}

Matrix<float> BackwardRun::dq_gemm(const KeyTile& tile, const mx::MmaPanel& panel) const {
  Matrix<float> acc(seqlen_q_, dim_);
  if (tile.row1 <= tile.row0) return acc;
  mx::tensor_core_gemm(panel, k_,
                       {.m = tile.row1 - tile.row0,
                        .n = dim_,
                        .depth = tile.keys,
                        .a_row = tile.row0,
                        .b_depth = tile.key0},
                       ds_rule_, acc.row(tile.row0).data(), dim_);
  return acc;
}

void BackwardRun::add_dq(const KeyTile& tile, const Matrix<float>& acc,
                         const std::vector<int>& exponents, float scale) {
  for (std::int64_t i = tile.row0; i < tile.row1; ++i) {
    const float factor = folded(scale, exponents[i]);
    for (std::int64_t c = 0; c < dim_; ++c) {
      const float term = folded(acc(i, c) * factor, out_.dq_exponent);
      out_.dq(i, c) = add_rounded(out_.dq(i, c), term, config_.dq_accum);
    }
  }
}

/// An FP16 sum that overflowed is infinite, or NaN after two infinities met; both become the
/// largest value and are counted. A NaN that the row's inputs explain stays NaN.
void BackwardRun::finish_dq() {
  const bool f16 = config_.dq_accum == DqAccum::kF16 || config_.dq_accum == DqAccum::kF16Dynamic;
  for (std::int64_t i = 0; i < seqlen_q_ && f16; ++i) {
    const bool poisoned = std::isnan(forward_.lse[i]) || std::isnan(rows_.delta[i]);
    for (float& value : out_.dq.row(i)) {
      if (!mx::is_finite(value) && !poisoned) {
        value = std::signbit(value) && !std::isnan(value) ? -kF16Max : kF16Max;
        ++out_.dq_overflows;
      }
      value = folded(value, -out_.dq_exponent);
    }
  }
  round_output(out_.dq, config_.dq_out, config_);
}

}  // namespace mxfa::reference::recipe::internal
