#include <algorithm>
#include <cmath>
#include <limits>

#include "mx/block.h"
#include "mx/convert.h"
#include "reference/recipe/outputs.h"
#include "reference/recipe/panels.h"

namespace mxfa::reference::recipe {
namespace {

using attention::KeyRange;
using internal::kLeastFold;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::int64_t kSlabRows = 128;  // rows worked on together; no result depends on it

/// Of one query row.
struct RowState {
  float max = -kInfinity;       ///< what P' is taken against
  float true_max = -kInfinity;  ///< of the scores alone
  float sum = 0;                ///< of un-quantized, un-folded P' (2^p_offset at the maximum)
  float alpha = 1;              ///< rescale that the last tile asked for
  float interval_alpha = 1;     ///< product of the interval's alphas
  KeyRange keys;
};

/// V's exponents in the units that one key tile's arithmetic needs.
struct TileFold {
  std::vector<float> fold;   ///< [keys], added to x; empty where V is scaled by the MMA
  std::vector<double> undo;  ///< [keys], 2^-fold, for the row sum
  int anchor = 0;
};

class ForwardRun {
 public:
  ForwardRun(const Operands& operands, const HeadProblem& problem, const RecipeConfig& config)
      : config_(config),
        problem_(problem),
        operands_(operands),
        scores_(internal::score_gemm(operands, problem, config)),
        rule_(internal::fp8_rule(config)),
        seqlen_q_(operands.q.rows()),
        seqlen_k_(operands.k.rows()),
        dim_(operands.v.cols()) {
    if (internal::bf16_operands(config)) {
      v_ = internal::make_panel(operands.v.bf16, internal::Role::kTokens);
    } else {
      const bool folds = config.machine == Machine::kHopper || config.leak_free;
      const bool scaled = config.machine == Machine::kBlackwell && !folds;
      v_ = internal::make_panel(operands.v.along_tokens, internal::Role::kTokens, scaled, rule_);
      if (folds) v_fold_ = internal::token_exponents(operands.v.along_tokens);
    }
  }

  RecipeForward run();

 private:
  std::int64_t num_tiles() const { return mx::ceil_div(seqlen_k_, config_.tile_n); }
  void allocate();
  void make_folds();
  void run_slab(std::int64_t row0, std::int64_t rows);
  void run_tile(std::int64_t row0, std::int64_t tile, bool interval_begins);
  void run_row(std::int64_t row, std::int64_t tile, const float* acc, float* p);
  float tile_maximum(KeyRange range, double tie_shift) const;
  void quantize_p(std::int64_t row, std::int64_t tile, const float* p, mx::MmaPanel& panel,
                  std::int64_t panel_row);
  void promote(int anchor);
  void finish_row(std::int64_t row, float* o);
  void normalize_p();

  const RecipeConfig& config_;
  const HeadProblem& problem_;
  const Operands& operands_;
  internal::HeadDimGemm scores_;
  mx::MmaPanel v_;
  mx::AccumulatorRule rule_;
  internal::TokenExponents v_fold_;
  std::int64_t seqlen_q_;
  std::int64_t seqlen_k_;
  std::int64_t dim_;
  std::vector<TileFold> folds_;  ///< of each key tile
  std::vector<RowState> state_;  ///< of the slab
  Matrix<float> o_;              ///< of the slab, [rows, head_dim], in units of 2^o_anchor_
  Matrix<float> acc_;            ///< of the accumulation interval
  int o_anchor_ = 0;
  std::vector<float> raw_;  ///< scratch: [rows, tile_n] accumulators
  std::vector<float> mult_, bias_, x_, s_;
  RecipeForward out_;
};

void ForwardRun::allocate() {
  const auto rows = static_cast<std::size_t>(seqlen_q_);
  out_.saved.o = Matrix<float>(seqlen_q_, dim_);
  out_.saved.lse.assign(rows, -kInfinity);
  out_.saved.row_max.assign(rows, -kInfinity);
  out_.row_sum.assign(rows, 0.0f);
  for (auto* scratch : {&mult_, &bias_, &x_, &s_}) {
    scratch->assign(static_cast<std::size_t>(config_.tile_n), 0.0f);
  }
  if (!config_.keep_intermediates) return;
  out_.s = out_.p = out_.p_normalized = Matrix<float>(seqlen_q_, seqlen_k_);
  out_.tile_max = Matrix<float>(seqlen_q_, num_tiles(), -kInfinity);
  mx::QuantizedMatrix& payload = out_.p_payload;
  payload.rows = seqlen_q_;
  payload.cols = seqlen_k_;
  payload.block_shape = BlockShape::k1x32;
  payload.codes.assign(out_.p.data.size(), 0);
  const bool whole = config_.p_offset == std::floor(config_.p_offset);
  const int scale = whole ? mx::kE8M0Bias - static_cast<int>(config_.p_offset) : mx::kE8M0Bias;
  payload.scales.assign(static_cast<std::size_t>(payload.grid().size()),
                        static_cast<std::uint8_t>(scale));
}

/// In leak-free form a key's exponent itself; on Hopper relative to the largest exponent from the
/// sequence's start to the end of the tile's accumulation interval.
void ForwardRun::make_folds() {
  folds_.resize(static_cast<std::size_t>(num_tiles()));
  if (v_fold_.empty()) return;
  const std::int64_t interval = config_.promote_keys > 0 ? config_.promote_keys : seqlen_k_;
  int anchor = -mx::kE8M0Bias;
  std::int64_t anchored = 0;
  for (std::int64_t t = 0; t < num_tiles(); ++t) {
    TileFold& tile = folds_[static_cast<std::size_t>(t)];
    const std::int64_t key0 = t * config_.tile_n;
    const std::int64_t end = std::min(seqlen_k_, (key0 / interval + 1) * interval);
    for (; anchored < end; ++anchored) anchor = std::max(anchor, v_fold_[anchored]);
    tile.anchor = config_.leak_free ? 0 : anchor;
    for (std::int64_t j = key0; j < std::min(seqlen_k_, key0 + config_.tile_n); ++j) {
      const int fold = config_.leak_free ? v_fold_[j] : std::max(v_fold_[j] - anchor, kLeastFold);
      tile.fold.push_back(static_cast<float>(fold));
      tile.undo.push_back(std::ldexp(1.0, -fold));
    }
  }
}

RecipeForward ForwardRun::run() {
  allocate();
  make_folds();
  for (std::int64_t row = 0; row < seqlen_q_; row += kSlabRows) {
    run_slab(row, std::min(kSlabRows, seqlen_q_ - row));
  }
  if (config_.keep_intermediates) {
    for (const TileFold& tile : folds_) out_.v_anchor.push_back(tile.anchor);
    normalize_p();
  }
  return std::move(out_);
}

void ForwardRun::run_slab(std::int64_t row0, std::int64_t rows) {
  state_.assign(static_cast<std::size_t>(rows), {});
  o_ = acc_ = Matrix<float>(rows, dim_);
  raw_.assign(static_cast<std::size_t>(rows * config_.tile_n), 0.0f);
  std::int64_t begin = seqlen_k_;
  std::int64_t end = 0;
  for (std::int64_t i = 0; i < rows; ++i) {
    const KeyRange keys = visible_keys(problem_.mask, seqlen_q_, seqlen_k_, row0 + i);
    state_[i].keys = keys;
    if (keys.empty()) continue;
    begin = std::min(begin, keys.begin);
    end = std::max(end, keys.end);
  }
  const std::int64_t interval = config_.promote_keys > 0 ? config_.promote_keys : seqlen_k_;
  bool started = false;
  int anchor = 0;
  o_anchor_ = 0;
  for (std::int64_t t = 0; t < num_tiles(); ++t) {
    const std::int64_t key0 = t * config_.tile_n;
    const bool seen = key0 < end && key0 + config_.tile_n > begin;
    // A tile that nobody sees changes nothing; its scores are only wanted for the record.
    if (!seen && !config_.keep_intermediates) continue;
    const bool begins = !started || key0 % interval == 0;
    if (begins && started) promote(anchor);
    started = true;
    anchor = folds_[t].anchor;
    run_tile(row0, t, begins);
  }
  promote(anchor);
  for (std::int64_t i = 0; i < rows; ++i) finish_row(row0 + i, o_.row(i).data());
}

void ForwardRun::run_tile(std::int64_t row0, std::int64_t tile, bool interval_begins) {
  const auto rows = static_cast<std::int64_t>(state_.size());
  const std::int64_t key0 = tile * config_.tile_n;
  const std::int64_t keys = std::min<std::int64_t>(config_.tile_n, seqlen_k_ - key0);
  scores_.run(row0, rows, key0, keys, raw_.data(), config_.tile_n);
  mx::MmaPanel panel(rows, keys);
  if (config_.p_scale != PScale::kConstant) {
    panel.scales.assign(panel.values.size() / kScaleBlock, 0);
  }
  std::vector<float> p(static_cast<std::size_t>(keys));
  for (std::int64_t i = 0; i < rows; ++i) {
    run_row(row0 + i, tile, &raw_[i * config_.tile_n], p.data());
    quantize_p(row0 + i, tile, p.data(), panel, i);
    // The accumulator of an interval under way follows the maximum, as O does in promote().
    const float alpha = state_[i].alpha;
    if (interval_begins) continue;
    for (float& value : acc_.row(i)) value *= alpha;
  }
  if (rule_ != mx::kExactAccumulator) mx::prepare_aligned(panel);
  const mx::MmaTile shape{.m = rows, .n = dim_, .depth = panel.cols, .b_depth = key0};
  mx::tensor_core_gemm(panel, v_, shape, rule_, acc_.data.data(), dim_);
}

/// The largest of s_ in the range, plus the shift (nats) where it repeats; NaNs do not count, as in
/// a hardware maximum.
float ForwardRun::tile_maximum(KeyRange range, double tie_shift) const {
  float top = -kInfinity;
  int repeats = 0;
  for (std::int64_t j = range.begin; j < range.end; ++j) {
    if (s_[j] > top) {
      top = s_[j];
      repeats = 1;
    } else if (s_[j] == top) {
      ++repeats;
    }
  }
  const bool tied = tie_shift > 0 && repeats > 1;
  return tied ? top + static_cast<float>(tie_shift) * internal::kLog2e : top;
}

/// Online softmax of one row and key tile: P' from the raw accumulators, 0 where masked.
void ForwardRun::run_row(std::int64_t row, std::int64_t tile, const float* acc, float* p) {
  RowState& state = state_[row % kSlabRows];
  const TileFold& fold = folds_[tile];
  const std::int64_t key0 = tile * config_.tile_n;
  const std::int64_t keys = std::min<std::int64_t>(config_.tile_n, seqlen_k_ - key0);
  const KeyRange range{std::clamp<std::int64_t>(state.keys.begin - key0, 0, keys),
                       std::clamp<std::int64_t>(state.keys.end - key0, 0, keys)};
  scores_.multipliers(row, key0, keys, mult_.data());
  internal::multiply_row(acc, mult_.data(), s_.data(), keys);
  if (config_.keep_intermediates) {
    std::copy_n(s_.data(), keys, out_.s.row(row).data() + key0);
  }
  state.true_max = std::max(state.true_max, tile_maximum(range, 0));
  if (config_.leak_free) {
    internal::fma_row(acc, mult_.data(), fold.fold.data(), s_.data(), keys);
  }
  const float old_max = state.max;
  const float moved = std::max(old_max, tile_maximum(range, config_.tie_shift));
  const bool lags = config_.rescale_threshold > 0 &&
                    moved - old_max <= static_cast<float>(config_.rescale_threshold);
  state.max = lags ? old_max : moved;
  const float safe_max = state.max == -kInfinity ? 0.0f : state.max;
  const float shift = old_max - safe_max;
  float alpha = 0;
  config_.exp2(&shift, &alpha, 1);
  if (state.max == -kInfinity) alpha = 1;  // nothing seen yet, nothing to rescale
  const float base = static_cast<float>(config_.p_offset) - safe_max;
  if (config_.leak_free) {
    for (std::int64_t j = 0; j < keys; ++j) x_[j] = s_[j] + base;
  } else {
    for (std::int64_t j = 0; j < keys; ++j) {
      bias_[j] = fold.fold.empty() ? base : base + fold.fold[j];
    }
    internal::fma_row(acc, mult_.data(), bias_.data(), x_.data(), keys);
  }
  config_.exp2(x_.data(), p, keys);
  std::fill(p, p + range.begin, 0.0f);
  std::fill(p + std::max(range.begin, range.end), p + keys, 0.0f);
  double sum = 0;
  for (std::int64_t j = range.begin; j < range.end; ++j) {
    sum += fold.undo.empty() ? p[j] : p[j] * fold.undo[j];
  }
  state.sum = std::fma(state.sum, alpha, static_cast<float>(sum));
  state.alpha = alpha;
  state.interval_alpha *= alpha;
  if (config_.keep_intermediates) {
    std::copy_n(p, keys, out_.p.row(row).data() + key0);
    out_.tile_max(row, tile) = state.max;
  }
}

/// P's payload into a row of the GEMM's panel. With block scales the MMA applies them.
void ForwardRun::quantize_p(std::int64_t row, std::int64_t tile, const float* p,
                            mx::MmaPanel& panel, std::int64_t panel_row) {
  const std::int64_t key0 = tile * config_.tile_n;
  const std::int64_t keys = std::min<std::int64_t>(config_.tile_n, seqlen_k_ - key0);
  float* values = panel.row(panel_row);
  if (internal::bf16_operands(config_)) {
    for (std::int64_t j = 0; j < keys; ++j) values[j] = internal::round_unscaled(p[j], config_);
    if (config_.keep_intermediates) std::copy_n(values, keys, &out_.p_normalized(row, key0));
    return;
  }
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(keys));
  std::vector<float> inverse(static_cast<std::size_t>(keys), 1.0f);
  for (std::int64_t j = 0; config_.p_scale != PScale::kConstant && j < keys; j += kScaleBlock) {
    const std::int64_t width = std::min<std::int64_t>(kScaleBlock, keys - j);
    float amax = mx::block_amax({p + j, static_cast<std::size_t>(width)});
    if (config_.p_scale == PScale::kBlockRowMax && amax > 0 && mx::is_finite(amax)) {
      // exp2 is monotone: P's maximum is the exponential of the largest argument.
      const float* block = x_.data() + j;
      float top = -kInfinity;
      for (std::int64_t q = 0; q < width; ++q) {
        if (p[j + q] > 0) top = std::max(top, block[q]);
      }
      config_.exp2(&top, &amax, 1);
    }
    const std::uint8_t scale = mx::scale_from_amax<mx::E4M3>(amax, config_.scale_rule);
    std::fill_n(inverse.begin() + j, width, mx::inverse_e8m0(scale));
    panel.scales[panel_row * (panel.cols / kScaleBlock) + j / kScaleBlock] =
        static_cast<std::int16_t>(internal::scale_exponent(scale));
    if (config_.keep_intermediates) {
      out_.p_payload.scales[out_.p_payload.grid().index(row, key0 + j)] = scale;
    }
  }
  mx::encode_row(DType::kE4M3, p, inverse.data(), codes.data(), keys);
  internal::decode_codes(codes, values);
  if (config_.keep_intermediates) {
    std::ranges::copy(codes, out_.p_payload.codes.begin() + row * seqlen_k_ + key0);
    for (std::int64_t j = 0; j < keys; ++j) {
      out_.p_normalized(row, key0 + j) = values[j] / inverse[j];
    }
  }
}

/// O = O * alpha + the interval's accumulator; the anchors' difference rides on alpha.
void ForwardRun::promote(int anchor) {
  for (std::size_t i = 0; i < state_.size(); ++i) {
    const float alpha = internal::folded(state_[i].interval_alpha, o_anchor_ - anchor);
    const auto row = static_cast<std::int64_t>(i);
    for (std::int64_t c = 0; c < dim_; ++c) o_(row, c) = std::fma(o_(row, c), alpha, acc_(row, c));
    state_[i].interval_alpha = 1;
  }
  std::ranges::fill(acc_.data, 0.0f);
  o_anchor_ = anchor;
}

void ForwardRun::finish_row(std::int64_t row, float* o) {
  const RowState& state = state_[row % kSlabRows];
  const bool none = state.keys.empty() || state.sum == 0;
  float* out = out_.saved.o.row(row).data();
  const bool shifted = !operands_.shift_v.empty();
  const float inverse = none ? 0.0f : 1.0f / state.sum;
  for (std::int64_t c = 0; c < dim_ && !none; ++c) {
    const float value = internal::folded(o[c] * inverse, o_anchor_) * operands_.v.tensor_scale;
    out[c] = shifted ? value + operands_.shift_v[c] : value;
  }
  if (none) return;
  const float safe_max = state.max == -kInfinity ? 0.0f : state.max;
  const float base = static_cast<float>(config_.p_offset) - safe_max;
  out_.saved.lse[row] = (log2_f32(state.sum) - base) * internal::kLn2;
  out_.saved.row_max[row] = state.true_max;
  out_.row_sum[row] = state.sum;
}

/// p_normalized holds decoded payloads so far: times 2^-fold, exp2(tile maximum - last) and 1 / l.
void ForwardRun::normalize_p() {
  for (std::int64_t row = 0; row < seqlen_q_; ++row) {
    const double sum = out_.row_sum[row];
    const double last = num_tiles() > 0 ? double{out_.tile_max(row, num_tiles() - 1)} : 0.0;
    for (std::int64_t j = 0; j < seqlen_k_; ++j) {
      float& value = out_.p_normalized(row, j);
      if (value == 0 || sum == 0) continue;
      const std::int64_t tile = j / config_.tile_n;
      const TileFold& fold = folds_[tile];
      const double undo = fold.undo.empty() ? 1.0 : fold.undo[j % config_.tile_n];
      const double rescale = std::exp2(double{out_.tile_max(row, tile)} - last);
      value = static_cast<float>(value * undo * rescale / sum);
    }
  }
}

}  // namespace

RecipeForward recipe_forward(const Operands& operands, const HeadProblem& problem,
                             const RecipeConfig& config) {
  config.check();
  internal::check_operands(operands, config, false);
  ForwardRun run(operands, problem, config);
  RecipeForward result = run.run();
  internal::round_output(result.saved.o, config.o_out, config);
  return result;
}

}  // namespace mxfa::reference::recipe
