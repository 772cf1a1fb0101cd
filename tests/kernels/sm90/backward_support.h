#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <span>
#include <string>
#include <vector>

#include "kernels/sm90/backward/launch.h"
#include "mx/bits.h"
#include "mx/tensor_core_gemm.h"
#include "reference/recipe/recipe.h"
#include "support/half_operands.h"
#include "support/machine.h"
#include "support/rng.h"

/// Batches for the Hopper backward: inputs, what the recipe makes of them head by head, and the
/// kernel's gradients.
namespace mxfa::testing {

using attention::Mask;
using reference::HeadInputs;
using reference::Matrix;
namespace recipe = reference::recipe;
using sm90::backward::DqSums;
using sm90::backward::Product;
using sm90::backward::Scores;

struct BackwardCase {
  std::string name;
  std::vector<std::int32_t> cu_seqlens_q;  ///< equal lengths where dense or broadcast
  std::vector<std::int32_t> cu_seqlens_k;
  std::int64_t head_dim = 128;
  std::int64_t num_heads = 1;
  std::int64_t num_heads_kv = 1;
  Mask mask = {};
  bool dense = false;
  bool broadcast_q = false;
  double sigma_q = 1.0;
  double spread = 0.0;        ///< groups of 32 tokens are scaled by 2^uniform(-spread, spread)
  double token_spread = 0.0;  ///< tokens of Q, K and V likewise
  double dout_spread = 0.0;   ///< rows of dO likewise
  double dout_mean = 0.0;
  double dout_sigma = 1.0;
  double tile_growth = 0.0;  ///< dO of each 64 rows is 2^it times that of the 64 before
  double q_mean = 0.0;
  bool v_signs = false;            ///< rows of V are all 1 or all -1
  double k_size = 0.0;             ///< not 0: K is as large everywhere, with V's signs
  int zero_q = 0, zero_dout = 0;   ///< so many first rows of Q, of dO are zeros
  std::int64_t slack_rows = 0;     ///< of NaN, behind the last sequence
  std::int64_t slack_columns = 0;  ///< of gradients and o, between heads
  Scores scores = Scores::kF32;
  Product product = Product::kGroupScales;
  DqSums dq_sums = DqSums::kF32;
  bool deterministic = false;
  bool row_max = true;  ///< given
  /// Of half scores: how near to the recipe, and how much farther than it from the oracle. Where
  /// scores are large, so is what their rounding does to P.
  double half_recipe_db = 34, half_oracle_db = 0.5;
  /// Drawn, of any size: a mean over few elements has a spread, and few visible keys leave results
  /// so near to the oracle that their rounding to BF16 counts.
  bool drawn = false;
  int nan_v = -1;          ///< packed row of V that is NaN
  int nan_k = -1;          ///< of K
  std::uint64_t seed = 0;  ///< of all values

  std::int64_t batch() const { return std::int64_t(cu_seqlens_k.size()) - 1; }
  double scale() const { return 1.0 / std::sqrt(static_cast<double>(head_dim)); }
};

/// Packed BF16 rows [total, heads, head_dim].
struct PackedRows {
  std::vector<std::int32_t> cu;
  std::int64_t heads = 1, dim = 128;
  std::vector<float> values;

  std::int64_t total() const { return cu.back(); }
  std::int64_t length(std::int64_t s) const { return cu[s + 1] - cu[s]; }
  Matrix<float> matrix(std::int64_t sequence, std::int64_t head) const {
    Matrix<float> result(length(sequence), dim);
    for (std::int64_t row = 0; row < result.rows; ++row) {
      for (std::int64_t d = 0; d < dim; ++d) {
        result(row, d) = values[((cu[sequence] + row) * heads + head) * dim + d];
      }
    }
    return result;
  }
  std::vector<std::uint16_t> codes(std::int64_t slack_rows) const {
    std::vector<std::uint16_t> result;
    for (const float value : values) result.push_back(mx::encode_bf16(value));
    result.resize(result.size() + slack_rows * heads * dim, 0xFFFF);
    return result;
  }
};

/// One head of gradients, as doubles.
struct Gradients {
  std::vector<double> dq, dk, dv;
};

class BackwardBatch {
 public:
  explicit BackwardBatch(const BackwardCase& test) : test_(test) {
    const Spread spread{.groups = test.spread, .tokens = test.token_spread};
    q_ = make_rows(test.cu_seqlens_q, test.num_heads, 1, test.sigma_q, spread);
    k_ = make_rows(test.cu_seqlens_k, test.num_heads_kv, 2, 1.0, spread);
    v_ = make_rows(test.cu_seqlens_k, test.num_heads_kv, 3, 1.0, spread);
    for (float& value : q_.values) {
      value = mx::round_bf16(value + static_cast<float>(test.q_mean));
    }
    for (std::int64_t i = 0; test.v_signs && i < std::ssize(v_.values); ++i) {
      v_.values[i] = std::copysign(1.0f, v_.values[i - i % v_.dim]);
    }
    for (std::int64_t i = 0; test.k_size != 0 && i < std::ssize(k_.values); ++i) {
      k_.values[i] = std::copysign(static_cast<float>(test.k_size), v_.values[i]);
    }
    for (std::int64_t i = 0; test.nan_v >= 0 && i < v_.heads * v_.dim; ++i) {
      v_.values[test.nan_v * v_.heads * v_.dim + i] = std::nanf("");
    }
    for (std::int64_t i = 0; test.nan_k >= 0 && i < k_.heads * k_.dim; ++i) {
      k_.values[test.nan_k * k_.heads * k_.dim + i] = std::nanf("");
    }
    std::vector<std::int32_t> cu_o = test.cu_seqlens_q;
    if (test.broadcast_q) {
      for (std::int64_t s = 1; s < test.batch(); ++s) cu_o.push_back(cu_o.back() + cu_o[1]);
    }
    dout_ = make_rows(cu_o, test.num_heads, 4, test.dout_sigma, {.groups = test.dout_spread});
    for (float& value : dout_.values) {
      value = mx::round_bf16(value + static_cast<float>(test.dout_mean));
    }
    std::fill_n(q_.values.begin(), test.zero_q * q_.heads * q_.dim, 0.0f);
    std::fill_n(dout_.values.begin(), test.zero_dout * dout_.heads * dout_.dim, 0.0f);
    for (std::int64_t i = 0; test.tile_growth != 0 && i < std::ssize(dout_.values); ++i) {
      const auto tile = static_cast<double>(i / (dout_.heads * dout_.dim) / 64);
      dout_.values[i] *= static_cast<float>(std::exp2(tile * test.tile_growth));
    }
    for (std::int64_t s = 0; s < test.batch(); ++s) {
      for (std::int64_t head = 0; head < test.num_heads; ++head) run_forward(s, head);
    }
  }

  const PackedRows& q() const { return q_; }
  const PackedRows& k() const { return k_; }
  std::int64_t seqlen_q(std::int64_t s) const { return q_.length(q_sequence(s)); }
  std::int64_t q_sequence(std::int64_t s) const { return test_.broadcast_q ? 0 : s; }
  std::int64_t head_kv(std::int64_t head) const {
    return head / (test_.num_heads / test_.num_heads_kv);
  }
  const recipe::Operands& operands(std::int64_t s, std::int64_t head) const {
    return operands_[s * test_.num_heads + head];
  }
  const recipe::SavedForward& saved(std::int64_t s, std::int64_t head) const {
    return saved_[s * test_.num_heads + head];
  }
  recipe::HeadProblem problem() const { return {test_.mask, test_.scale()}; }
  bool tokens() const { return test_.product == Product::kTokenScales; }
  /// With dV's intervals, or dK's.
  recipe::RecipeConfig config(int promote_tiles = sm90::backward::kPromoteDvTiles) const {
    recipe::RecipeConfig config = recipe::RecipeConfig::hopper();
    if (tokens()) config = recipe::RecipeConfig::leak_free_of(std::move(config));
    config.last_keys_first = test_.deterministic;
    config.promote_queries = promote_tiles * sm90::backward::kTileM;
    config.dq_out = config.dkv_out = recipe::OutputFormat::kF32;
    config.fold_row_max = test_.row_max;
    config.qk_bf16 = sm90::backward::bf16_s(test_.product);
    config.dp_bf16 = sm90::backward::bf16_dp(test_.product);
    if (test_.dq_sums == DqSums::kF16) config.dq_accum = recipe::DqAccum::kF16;
    if (test_.scores != Scores::kF16) return config;
    config.half_sums = true;
    config.promote_dk_queries = sm90::backward::kPromoteDkTiles * sm90::backward::kTileM;
    return config;
  }

  struct Results {
    std::vector<std::uint16_t> dq, dk, dv;  ///< BF16 [total, heads, pitch()]
    std::uint64_t overflows = 0;
    bool guards_intact = false;
  };
  /// Gradients that are not wanted stay as they are.
  struct Wants {
    bool dq = true, dk = true, dv = true;
  };
  std::int64_t pitch() const { return test_.head_dim + test_.slack_columns; }
  Results run() const { return run({}); }
  Results run(const Wants& wants) const;

 private:
  struct Spread {
    double groups = 0.0, tokens = 0.0;
  };
  PackedRows make_rows(std::vector<std::int32_t> cu, std::int64_t heads, std::uint64_t seed,
                       double sigma, const Spread& spread) const {
    PackedRows rows{.cu = std::move(cu), .heads = heads, .dim = test_.head_dim, .values = {}};
    Rng rng(test_.seed + seed);
    rows.values = rng.normal_values<float>(rows.total() * heads * rows.dim, sigma);
    float factor = 1.0f;
    for (std::int64_t row = 0; row < rows.total(); ++row) {
      if (row % 32 == 0 || spread.tokens > 0) {
        const double most = spread.groups + spread.tokens;
        factor = static_cast<float>(std::exp2(rng.uniform(-most, most)));
      }
      for (std::int64_t i = 0; i < heads * rows.dim; ++i) {
        float& value = rows.values[row * heads * rows.dim + i];
        value = mx::round_bf16(value * factor);
      }
    }
    return rows;
  }
  void run_forward(std::int64_t s, std::int64_t head) {
    HeadInputs inputs;
    inputs.q = q_.matrix(q_sequence(s), head);
    inputs.k = k_.matrix(s, head_kv(head));
    inputs.v = v_.matrix(s, head_kv(head));
    inputs.dout = dout_.matrix(s, head);
    operands_.push_back(recipe::quantize_operands(inputs, config()));
    if (test_.scores == Scores::kF16) lower_for_half_scores(inputs, operands_.back());
    if (tokens()) coarsen(inputs, operands_.back());
    saved_.push_back(recipe::recipe_forward(operands_.back(), problem(), config()).saved);
    kernel_lse_.push_back(test_.scores == Scores::kF16 ? half_scores_lse(operands_.back())
                                                       : saved_.back().lse);
    if (test_.nan_v < 0) return;
    // The forward's GEMM spreads a NaN to rows that do not see it: this is about the backward.
    const auto exact =
        reference::attention_forward(recipe::kern_inputs(operands_.back(), problem(), config()));
    std::ranges::copy(exact.o.data, saved_.back().o.data.begin());
  }

  /// LSE of scores that are accumulated in half, as a forward leaves it: of large scores P follows
  /// their rounding.
  std::vector<float> half_scores_lse(const recipe::Operands& operands) const {
    const mx::QuantizedMatrix &q = operands.q.along_d, &k = operands.k.along_d;
    mx::MmaPanel rows(q.rows, q.cols), columns(k.cols, k.rows);
    for (std::int64_t d = 0; d < q.cols; ++d) {
      for (std::int64_t i = 0; i < q.rows; ++i) {
        rows.row(i)[d] = mx::decode_e4m3(q.codes[i * q.cols + d]);
      }
      for (std::int64_t j = 0; j < k.rows; ++j) {
        columns.row(d)[j] = mx::decode_e4m3(k.codes[j * k.cols + d]);
      }
    }
    mx::prepare_aligned(rows);
    mx::prepare_aligned(columns);
    Matrix<float> scores(q.rows, k.rows);
    mx::tensor_core_gemm(rows, columns, {.m = q.rows, .n = k.rows, .depth = q.cols},
                         mx::kHopperFp8HalfAccumulator, scores.data.data(), scores.cols);
    const float scale = mx::round_f16(static_cast<float>(test_.scale() * std::numbers::log2e));
    std::vector<float> lse;
    for (std::int64_t i = 0; i < q.rows; ++i) {
      const attention::KeyRange keys = attention::visible_keys(test_.mask, q.rows, k.rows, i);
      double sum = 0;
      for (std::int64_t j = keys.begin; j < keys.end; ++j) {
        sum += std::exp2(
            std::ldexp(scale * scores(i, j), q.scale(i, 0) + k.scale(j, 0) - 2 * mx::kE8M0Bias));
      }
      lse.push_back(static_cast<float>(std::log(sum)));
    }
    return lse;
  }
  /// As a leak-free forward does.
  static void coarsen(const HeadInputs& inputs, recipe::Operands& operands) {
    recipe::requantize(inputs.k, 0, operands.k, true);
    recipe::requantize(inputs.v, device::kLoweredTokenV, operands.v, true);
  }

  BackwardCase test_;
  PackedRows q_, k_, v_, dout_;
  std::vector<recipe::Operands> operands_;
  std::vector<recipe::SavedForward> saved_;
  std::vector<std::vector<float>> kernel_lse_;  ///< what the kernel is given
};

inline BackwardBatch::Results BackwardBatch::run(const Wants& wants) const {
  Machine& machine = testing::machine();
  const std::int64_t heads = test_.num_heads, dim = test_.head_dim, slack = test_.slack_rows;
  const std::int64_t rows_o = dout_.total();
  const auto upload = [&](const PackedRows& rows) {
    const auto codes = rows.codes(slack);
    return machine.upload(std::span<const std::uint16_t>(codes));
  };
  const Guarded q = upload(q_), k = upload(k_), v = upload(v_), dout = upload(dout_);
  const Guarded cu_q = machine.upload(std::span<const std::int32_t>(q_.cu)),
                cu_k = machine.upload(std::span<const std::int32_t>(k_.cu));
  std::vector<std::uint16_t> o_codes((rows_o + slack) * heads * pitch(), 0xFFFF);
  std::vector<float> lse(heads * (rows_o + slack), std::nanf("")), row_max = lse;
  for (std::int64_t s = 0; s < test_.batch(); ++s) {
    for (std::int64_t head = 0; head < heads; ++head) {
      for (std::int64_t row = 0; row < dout_.length(s); ++row) {
        const std::int64_t at = dout_.cu[s] + row;
        lse[head * (rows_o + slack) + at] = kernel_lse_[s * heads + head][row];
        row_max[head * (rows_o + slack) + at] = saved(s, head).row_max[row];
        for (std::int64_t d = 0; d < dim; ++d) {
          o_codes[(at * heads + head) * pitch() + d] = mx::encode_bf16(saved(s, head).o(row, d));
        }
      }
    }
  }
  const Guarded o = machine.upload(std::span<const std::uint16_t>(o_codes)),
                lse_d = machine.upload(std::span<const float>(lse)),
                row_max_d = machine.upload(std::span<const float>(row_max));
  const auto input = [&](const Guarded& x, const PackedRows& rows) {
    return device::OperandInput{.data = x.as<const void>(),
                                .token_stride = rows.heads * dim,
                                .head_stride = dim,
                                .batch_stride = rows.length(0) * rows.heads * dim};
  };
  const auto sequences = [&](const PackedRows& rows, const Guarded& cu, bool dense) {
    return device::Sequences{.cu_seqlens = dense ? nullptr : cu.as<const std::int32_t>(),
                             .seqlen = dense ? rows.length(0) : 0,
                             .batch = static_cast<std::int32_t>(rows.cu.size() - 1),
                             .total = rows.total() + (dense ? 0 : slack)};
  };
  const device::OperandsSpec spec{
      .q = input(q, q_),
      .k = input(k, k_),
      .v = input(v, v_),
      .dout = input(dout, dout_),
      .q_sequences = sequences(q_, cu_q, test_.dense || test_.broadcast_q),
      .k_sequences = sequences(k_, cu_k, test_.dense),
      .broadcast_q = test_.broadcast_q,
      .num_heads = static_cast<std::int32_t>(heads),
      .num_heads_kv = static_cast<std::int32_t>(test_.num_heads_kv),
      .head_dim = static_cast<std::int32_t>(dim),
      .forward = test_.scores == Scores::kF32 && test_.product == Product::kGroupScales,
      .backward = true,
      .leak_free = tokens(),
      .half_scores = test_.scores == Scores::kF16,
      .bf16_scores = sm90::backward::bf16_s(test_.product),
      .bf16_dp = sm90::backward::bf16_dp(test_.product)};
  const Guarded memory = machine.poisoned(static_cast<std::size_t>(device::operands_bytes(spec)));
  const device::AttentionOperands operands =
      device::prepare_operands(machine.queue(), spec, memory.as<void>());
  const auto bf16 = [&](const Guarded& x, const PackedRows& rows) {
    return sm90::Bf16Rows{x.as<const std::uint16_t>(), rows.heads * dim, dim};
  };
  const auto gradient = [&](const PackedRows& rows) {
    return machine.poisoned((rows.total() + slack) * rows.heads * pitch() * 2);
  };
  const auto out = [&](const Guarded& x, const PackedRows& rows, bool wanted) {
    return sm90::backward::GradientOut{.data = wanted ? x.as<std::uint16_t>() : nullptr,
                                       .token_stride = rows.heads * pitch(),
                                       .head_stride = pitch()};
  };
  const Guarded dq = gradient(q_), dk = gradient(k_), dv = gradient(k_);
  const std::uint64_t none = 0;
  const Guarded overflows = machine.upload(std::span<const std::uint64_t>(&none, 1));
  sm90::backward::BackwardCall call{
      .q = operands.q,
      .k = operands.k,
      .v = operands.v,
      .dout = operands.dout,
      .product = test_.product,
      .q_bf16 = bf16(q, q_),
      .k_bf16 = bf16(k, k_),
      .v_bf16 = bf16(v, v_),
      .dout_bf16 = bf16(dout, dout_),
      .broadcast_q = test_.broadcast_q,
      .mask = test_.mask,
      .softmax_scale = test_.scale(),
      .o = o.as<const std::uint16_t>(),
      .o_token_stride = heads * pitch(),
      .o_head_stride = pitch(),
      .lse = lse_d.as<const float>(),
      .row_max = test_.row_max ? row_max_d.as<const float>() : nullptr,
      .lse_head_stride = rows_o + slack,
      .columns = static_cast<std::int32_t>(dim),
      .dq = out(dq, q_, wants.dq),
      .dk = out(dk, k_, wants.dk),
      .dv = out(dv, k_, wants.dv),
      .scores = test_.scores,
      .dq_sums = test_.dq_sums,
      .deterministic = test_.deterministic,
      .dq_overflows = overflows.as<unsigned long long>()};
  const Guarded workspace = machine.poisoned(
      static_cast<std::size_t>(sm90::backward::backward_workspace_bytes(machine.device(), call)));
  call.workspace = workspace.as<void>();
  sm90::backward::attention_backward(machine.queue(), call);
  machine.synchronize();
  const Guarded* const all[] = {&memory, &dq, &dk, &dv, &workspace};
  return {dq.download<std::uint16_t>(), dk.download<std::uint16_t>(), dv.download<std::uint16_t>(),
          overflows.download<std::uint64_t>()[0],
          std::all_of(std::begin(all), std::end(all),
                      [](const Guarded* x) { return x->guards_intact(); })};
}

}  // namespace mxfa::testing
