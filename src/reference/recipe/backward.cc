#include "reference/recipe/backward.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"
#include "mx/block.h"
#include "mx/convert.h"
#include "reference/recipe/outputs.h"

namespace mxfa::reference::recipe {
namespace internal {
namespace {

/// A token-axis operand: which panel its GEMM reads, and what is left to fold.
mx::MmaPanel token_panel(const Operand& operand, const RecipeConfig& config, TokenExponents& fold) {
  if (bf16_operands(config)) return make_panel(operand.bf16, Role::kTokens);
  const bool folds = config.machine == Machine::kHopper ||
                     (is_mx(config) && operand.along_tokens.block_shape == BlockShape::k1xD);
  if (folds) fold = token_exponents(operand.along_tokens);
  return make_panel(operand.along_tokens, Role::kTokens,
                    config.machine == Machine::kBlackwell && !folds, fp8_rule(config));
}

/// The same for a BF16 dK, dQ GEMM: the values that the S GEMM saw.
mx::MmaPanel bf16_panel(const Operand& operand, const RecipeConfig& config) {
  if (bf16_operands(config) || config.qk_bf16) {
    return make_panel(operand.bf16, Role::kTokens);
  }
  Matrix<float> values(operand.along_d.rows, operand.along_d.cols);
  values.data = mx::dequantize(operand.along_d);
  for (float& value : values.data) value *= operand.tensor_scale;
  return make_panel(values, Role::kTokens);
}

bool ds_in_bf16(const RecipeConfig& config) { return bf16_operands(config) || config.dkq_bf16; }

}  // namespace

BackwardRun::BackwardRun(const Operands& operands, const HeadProblem& problem,
                         const SavedForward& forward, const RecipeConfig& config)
    : config_(config),
      problem_(problem),
      operands_(operands),
      forward_(forward),
      seqlen_q_(operands.q.rows()),
      seqlen_k_(operands.k.rows()),
      dim_(operands.q.cols()),
      rows_(prepass(operands, problem, forward, config)),
      scores_(score_gemm(operands, problem, config)),
      dp_(operands.dout, operands.v, bf16_operands(config) || config.dp_bf16, 1.0, config),
      rule_(fp8_rule(config)),
      ds_rule_(ds_in_bf16(config) ? mx::kExactAccumulator : rule_),
      softmax_scale_(static_cast<float>(problem.softmax_scale)) {
  TokenExponents in_p;  // dO's are folded into P' by the pre-pass
  dout_ = token_panel(operands.dout, config, in_p);
  if (ds_in_bf16(config)) {
    q_ = bf16_panel(operands.q, config);
    k_ = bf16_panel(operands.k, config);
  } else {
    q_ = token_panel(operands.q, config, q_fold_);
    k_ = token_panel(operands.k, config, k_fold_);
  }
}

void BackwardRun::allocate() {
  out_.dq = Matrix<float>(seqlen_q_, dim_);
  out_.dk = out_.dv = Matrix<float>(seqlen_k_, dim_);
  out_.delta = rows_.delta;
  out_.p_bias = rows_.bias;
  out_.p_fold = rows_.fold;
  out_.p_anchor = rows_.anchor;
  if (config_.dq_accum == DqAccum::kF16) out_.dq_exponent = config_.dq_exponent;
  if (config_.dq_accum == DqAccum::kF16Dynamic) {
    out_.dq_exponent = dynamic_dq_exponent(operands_, problem_, config_);
  }
  if (!config_.keep_intermediates) return;
  out_.p = out_.dp = out_.ds = out_.ds_dequantized = Matrix<float>(seqlen_q_, seqlen_k_);
  out_.ds_dk_codes = out_.ds_dq_codes = Matrix<std::uint8_t>(seqlen_q_, seqlen_k_);
  out_.ds_row_fold = q_fold_;
  out_.ds_col_fold = k_fold_;
  out_.p_payload.rows = seqlen_q_;
  out_.p_payload.cols = seqlen_k_;
  out_.p_payload.block_shape = BlockShape::k32x1;
  out_.p_payload.codes.assign(out_.p.data.size(), 0);
  out_.p_payload.scales.assign(static_cast<std::size_t>(out_.p_payload.grid().size()),
                               mx::kE8M0Bias);
  const bool warp = config_.ds_scale == DsScale::kWarp16;
  const std::int64_t q_step = warp ? config_.backward_tile_m : kScaleBlock;
  const std::int64_t q_blocks = mx::ceil_div(seqlen_q_, q_step);
  out_.ds_dk_exponent =
      Matrix<std::int16_t>(q_blocks, mx::ceil_div(seqlen_k_, warp ? 16 : kScaleBlock));
  out_.ds_dq_exponent =
      Matrix<std::int16_t>(q_blocks, mx::ceil_div(seqlen_k_, warp ? kDqKeys : kScaleBlock));
}

RecipeBackward BackwardRun::run() {
  allocate();
  if (config_.machine == Machine::kFp8PerTensor) measure_tensor_scales();
  for (std::int64_t t = 0; t < num_tiles(); ++t) {
    KeyTile tile = key_tile(config_.last_keys_first ? num_tiles() - 1 - t : t);
    compute_scores(tile, config_.keep_intermediates);
    if (config_.half_sums) {
      half_dv(tile);
    } else {
      accumulate_dv(tile);
    }
    if (ds_in_bf16(config_)) {
      gradients_bf16(tile);
    } else if (config_.ds_scale == DsScale::kWarp16) {
      if (config_.half_sums) {
        half_dk(tile);
      } else {
        warp16_dk(tile);
      }
      warp16_dq(tile);
    } else if (config_.ds_scale == DsScale::kSquare32) {
      gradients_square32(tile);
    } else {
      gradients_tensor(tile);
    }
  }
  finish_dq();
  round_output(out_.dk, config_.dkv_out, config_);
  round_output(out_.dv, config_.dkv_out, config_);
  return std::move(out_);
}

/// Rows that see a key of the tile; others would only add zeros.
KeyTile BackwardRun::key_tile(std::int64_t index) const {
  KeyTile tile;
  tile.key0 = index * config_.tile_n;
  tile.keys = std::min<std::int64_t>(config_.tile_n, seqlen_k_ - tile.key0);
  tile.row0 = seqlen_q_;
  for (std::int64_t i = 0; i < seqlen_q_; ++i) {
    const attention::KeyRange keys =
        attention::visible_keys(problem_.mask, seqlen_q_, seqlen_k_, i);
    if (keys.begin >= tile.key0 + tile.keys || keys.end <= tile.key0 || keys.empty()) continue;
    tile.row0 = std::min(tile.row0, i);
    tile.row1 = i + 1;
  }
  if (config_.keep_intermediates) {
    tile.row0 = 0;
    tile.row1 = seqlen_q_;
  }
  tile.row0 = std::min(tile.row0, tile.row1) / config_.backward_tile_m * config_.backward_tile_m;
  tile.p = tile.ds = Matrix<float>(seqlen_q_, tile.keys);
  return tile;
}

void BackwardRun::compute_scores(KeyTile& tile, bool record) {
  constexpr std::int64_t kSlabRows = 128;
  std::vector<float> s_acc(static_cast<std::size_t>(kSlabRows * tile.keys));
  std::vector<float> dp_acc(s_acc.size());
  for (std::int64_t row = tile.row0; row < tile.row1; row += kSlabRows) {
    const std::int64_t rows = std::min(kSlabRows, tile.row1 - row);
    scores_.run(row, rows, tile.key0, tile.keys, s_acc.data(), tile.keys);
    dp_.run(row, rows, tile.key0, tile.keys, dp_acc.data(), tile.keys);
    for (std::int64_t i = 0; i < rows; ++i) {
      score_row(tile, row + i, &s_acc[i * tile.keys], &dp_acc[i * tile.keys], record);
    }
  }
}

void BackwardRun::score_row(KeyTile& tile, std::int64_t row, const float* s_acc,
                            const float* dp_acc, bool record) {
  const std::int64_t keys = tile.keys;
  std::vector<float> factor(static_cast<std::size_t>(keys));
  std::vector<float> addend(factor.size(), rows_.bias[row]);
  std::vector<float> x(factor.size());
  float* p = tile.p.row(row).data();
  float* ds = tile.ds.row(row).data();
  scores_.multipliers(row, tile.key0, keys, factor.data());
  fma_row(s_acc, factor.data(), addend.data(), x.data(), keys);
  config_.exp2(x.data(), p, keys);

  dp_.multipliers(row, tile.key0, keys, factor.data());
  if (record) {
    multiply_row(dp_acc, factor.data(), out_.dp.row(row).data() + tile.key0, keys);
  }
  std::ranges::fill(addend, -rows_.delta[row]);
  fma_row(dp_acc, factor.data(), addend.data(), x.data(), keys);
  // P' is P times a power of two: undone before the product, exactly.
  scale_row(p, -rows_.fold[row], ds, keys);
  multiply_row(ds, x.data(), ds, keys);

  const attention::KeyRange visible =
      attention::visible_keys(problem_.mask, seqlen_q_, seqlen_k_, row);
  const std::int64_t begin = std::clamp<std::int64_t>(visible.begin - tile.key0, 0, keys);
  const std::int64_t end = std::clamp<std::int64_t>(visible.end - tile.key0, begin, keys);
  for (float* values : {p, ds}) {
    std::fill(values, values + begin, 0.0f);
    std::fill(values + end, values + keys, 0.0f);
  }
  if (!record) return;
  std::copy_n(p, keys, out_.p.row(row).data() + tile.key0);
  std::copy_n(ds, keys, out_.ds.row(row).data() + tile.key0);
}

void BackwardRun::measure_tensor_scales() {
  std::uint32_t p_bits = 0;
  std::uint32_t ds_bits = 0;
  for (std::int64_t t = 0; t < num_tiles(); ++t) {
    KeyTile tile = key_tile(t);
    compute_scores(tile, false);
    const auto count = static_cast<std::int64_t>(tile.p.data.size());
    p_bits = std::max(p_bits, mx::max_magnitude(tile.p.data.data(), count));
    ds_bits = std::max(ds_bits, mx::max_magnitude(tile.ds.data.data(), count));
  }
  p_tensor_amax_ = mx::bits_float(p_bits);
  ds_tensor_amax_ = mx::bits_float(ds_bits);
}

/// One key's P' in blocks of 32 queries, each with its own scale.
void BackwardRun::p_blocks(const KeyTile& tile, std::int64_t key, mx::MmaPanel& panel) {
  mx::QuantizedMatrix& record = out_.p_payload;
  for (std::int64_t row = tile.row0; row < tile.row1; row += kScaleBlock) {
    const std::int64_t rows = std::min<std::int64_t>(kScaleBlock, tile.row1 - row);
    float values[kScaleBlock];
    for (std::int64_t i = 0; i < rows; ++i) values[i] = tile.p(row + i, key);
    const mx::Block block =
        mx::quantize_block({values, static_cast<std::size_t>(rows)}, config_.scale_rule);
    decode_codes({block.codes, static_cast<std::size_t>(rows)}, panel.row(key) + row);
    panel.scales[(key * panel.cols + row) / kScaleBlock] =
        static_cast<std::int16_t>(scale_exponent(block.scale));
    if (!config_.keep_intermediates) continue;
    record.scales[record.grid().index(row, tile.key0 + key)] = block.scale;
    for (std::int64_t i = 0; i < rows; ++i) {
      record.codes[(row + i) * seqlen_k_ + tile.key0 + key] = block.codes[i];
    }
  }
}

/// P'^T as the dV GEMM reads it: [keys, seqlen_q].
mx::MmaPanel BackwardRun::p_panel(const KeyTile& tile) {
  mx::MmaPanel panel(tile.keys, seqlen_q_);
  if (is_mx(config_) && config_.p_scale_backward == PScale::kBlockAmax) {
    panel.scales.assign(panel.values.size() / kScaleBlock, 0);
    for (std::int64_t key = 0; key < tile.keys; ++key) p_blocks(tile, key, panel);
    return panel;
  }
  const bool bf16 = bf16_operands(config_);
  const float inverse = p_tensor_amax_ > 0 ? mx::E4M3::kMaxValue / p_tensor_amax_ : 1.0f;
  const std::vector<float> factors(static_cast<std::size_t>(tile.keys), inverse);
  std::vector<std::uint8_t> codes(factors.size());
  std::vector<float> values(factors.size());
  for (std::int64_t row = tile.row0; row < tile.row1; ++row) {
    const float* p = tile.p.row(row).data();
    if (bf16) {
      for (std::int64_t j = 0; j < tile.keys; ++j) values[j] = round_unscaled(p[j], config_);
    } else {
      mx::encode_row(DType::kE4M3, p, factors.data(), codes.data(), tile.keys);
      decode_codes(codes, values.data());
    }
    for (std::int64_t j = 0; j < tile.keys; ++j) panel.row(j)[row] = values[j];
    if (config_.keep_intermediates && !bf16) {
      std::ranges::copy(codes, out_.p_payload.codes.begin() + row * seqlen_k_ + tile.key0);
    }
  }
  return panel;
}

void BackwardRun::accumulate(const KeyTile& tile, const mx::MmaPanel& a, const mx::MmaPanel& b,
                             mx::AccumulatorRule rule, Matrix<float>& result) const {
  if (tile.row1 <= tile.row0) return;
  const std::int64_t interval = config_.promote_queries > 0 ? config_.promote_queries : a.cols;
  const std::int64_t first = tile.row0 / interval * interval;
  for (std::int64_t row = first; row < tile.row1; row += interval) {
    const std::int64_t begin = std::max(row, tile.row0);
    const std::int64_t end = std::min(row + interval, tile.row1);
    Matrix<float> acc(tile.keys, dim_);
    mx::tensor_core_gemm(
        a, b, {.m = tile.keys, .n = dim_, .depth = end - begin, .a_depth = begin, .b_depth = begin},
        rule, acc.data.data(), dim_);
    for (std::size_t i = 0; i < acc.data.size(); ++i) result.data[i] += acc.data[i];
  }
}

void BackwardRun::accumulate_dv(const KeyTile& tile) {
  mx::MmaPanel panel = p_panel(tile);
  if (rule_ != mx::kExactAccumulator) mx::prepare_aligned(panel);
  Matrix<float> sum(tile.keys, dim_);
  accumulate(tile, panel, dout_, rule_, sum);
  float scale = operands_.dout.tensor_scale;
  if (p_tensor_amax_ > 0) scale *= p_tensor_amax_ / mx::E4M3::kMaxValue;
  for (std::int64_t j = 0; j < tile.keys; ++j) {
    for (std::int64_t c = 0; c < dim_; ++c) {
      out_.dv(tile.key0 + j, c) = folded(sum(j, c) * scale, rows_.anchor);
    }
  }
}

}  // namespace internal

RecipeBackward recipe_backward(const Operands& operands, const HeadProblem& problem,
                               const SavedForward& forward, const RecipeConfig& config) {
  config.check();
  const std::int64_t rows = operands.q.rows();
  internal::check_operands(operands, config, true);
  core::expect(forward.o.rows == rows && forward.o.cols == operands.q.cols(), "forward.o",
               "q's shape", core::text(forward.o.rows));
  core::expect(
      std::int64_t(forward.lse.size()) == rows && std::int64_t(forward.row_max.size()) == rows,
      "forward.lse", "a value for each query row", core::text(std::int64_t(forward.lse.size())));
  return internal::BackwardRun(operands, problem, forward, config).run();
}

}  // namespace mxfa::reference::recipe
