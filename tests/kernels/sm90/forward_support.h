#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/sm90/forward/launch.h"
#include "mx/bits.h"
#include "mx/fp8.h"
#include "mx/jagged_scale.h"
#include "mx/lower.h"
#include "mx/permutation.h"
#include "mx/scale_layout.h"
#include "reference/datasets.h"
#include "reference/recipe/recipe.h"
#include "support/machine.h"
#include "support/offsets.h"
#include "support/rng.h"

/// Batches for the Hopper forward: operands quantized on the host, the kernel's results, and what
/// the recipe and the oracle make of the same operands.
namespace mxfa::testing {

using attention::Mask;
using reference::HeadInputs;
using reference::Matrix;
namespace recipe = reference::recipe;
using sm90::forward::Product;
using sm90::forward::Scores;

struct ForwardCase {
  std::string name;
  std::vector<std::int32_t> cu_seqlens_q;  ///< empty where broadcast or dense
  std::vector<std::int32_t> cu_seqlens_k;
  std::int64_t head_dim = 128;
  std::int64_t num_heads = 1;
  std::int64_t num_heads_kv = 1;
  Mask mask = {};
  Scores scores = Scores::kF32;
  /// What half scores may cost O, dB: more where scores are large, for they keep 11 bits.
  double half_o_db = 0.25;
  double sums_o_db = 0.0;  ///< what half sums of many keys may cost beside, dB
  Product product = Product::kGroupScales;
  std::optional<BlockShape> o_shape = {};  ///< O in MXFP8
  bool o_by_head = false;                  ///< dense O as [batch, heads, seqlen, head_dim]
  std::int64_t broadcast_seqlen_q = 0;     ///< > 0: q is broadcast
  std::int64_t dense_batch = 0;            ///< > 0: dense, of the lengths below
  std::int64_t dense_seqlen_q = 0;
  std::int64_t dense_seqlen_k = 0;
  double sigma_q = 1.0, sigma_k = 1.0;
  double spread = 0.0;       ///< groups of 32 tokens are scaled by 2^uniform(-spread, spread)
  bool q_has_spread = true;  ///< or only K and V
  std::optional<double> fill_q = {}, fill_k = {};  ///< all entries
  double v_mean = 0.0;                             ///< sigma of the columns' means of V
  std::optional<double> sink = {};  ///< logit of every sequence's first key, whose V is 0
  std::int64_t slack_rows = 0;      ///< of NaN, behind the last sequence
  double softmax_scale = 0;         ///< 0: 1 / sqrt(head_dim)
  bool coarse = true;       ///< scales of K and V are, where prepare_operands() makes them so
  bool half_sums = true;    ///< what V says of its payload, where asked
  bool workspace = true;    ///< whether the call gets one
  bool drawn = false;       ///< of any size: a mean over few elements has a spread
  std::uint64_t seed = 0;   ///< of all values
  std::int64_t nan_v = -1;  ///< this token of every sequence is NaN in V, if there is one
  /// K and V of tokens from here on are others than without it, and Q where it has as many.
  std::int64_t other_from = std::numeric_limits<std::int64_t>::max();
  std::string dataset = {};  ///< values of this one (reference/datasets.h), of one head

  double scale() const {
    return softmax_scale > 0 ? softmax_scale : 1.0 / std::sqrt(static_cast<double>(head_dim));
  }
};

/// One side's packed rows and sequences.
struct Side {
  std::vector<std::int32_t> cu;
  std::int64_t heads = 1;
  std::int64_t dim = 128;
  std::vector<float> values;                  ///< BF16 values, [total, heads, dim]
  std::vector<mx::QuantizedMatrix> matrices;  ///< [sequence * heads + head]

  std::int64_t total() const { return cu.back(); }
  std::int64_t batch() const { return std::int64_t(cu.size()) - 1; }
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
};

/// `lowered`: payload is that many binades smaller than the format allows. `coarse`: scales in
/// steps of 4 binades.
inline mx::QuantizedMatrix quantize_rows(const Matrix<float>& values, BlockShape shape, int lowered,
                                         bool coarse) {
  const mx::FloatView view = mx::row_major(values.data.data(), values.rows, values.cols);
  return mx::lowered(mx::quantize(view, {shape}), view, lowered, coarse);
}

inline mx::QuantizedMatrix for_half_sums(const mx::QuantizedMatrix& matrix,
                                         const Matrix<float>& values, float most, bool coarse) {
  return mx::for_half_sums(matrix, mx::row_major(values.data.data(), values.rows, values.cols),
                           most, coarse);
}

class ForwardBatch {
 public:
  explicit ForwardBatch(const ForwardCase& test) : test_(test) {
    const bool lowered = test.scores == Scores::kF16;
    if (test.dense_batch > 0) {
      q_ = make_side(equal_offsets(test.dense_batch, test.dense_seqlen_q), test.num_heads, kSeedQ,
                     test.sigma_q, test.fill_q);
      k_ = make_side(equal_offsets(test.dense_batch, test.dense_seqlen_k), test.num_heads_kv, 2,
                     test.sigma_k, test.fill_k);
    } else {
      const auto cu_q = test.broadcast_seqlen_q > 0 ? equal_offsets(1, test.broadcast_seqlen_q)
                                                    : test.cu_seqlens_q;
      q_ = make_side(cu_q, test.num_heads, kSeedQ, test.sigma_q, test.fill_q);
      k_ = make_side(test.cu_seqlens_k, test.num_heads_kv, 2, test.sigma_k, test.fill_k);
    }
    v_ = make_side(k_.cu, test.num_heads_kv, 3, 1.0, {}, test.nan_v);
    add_mean(test.v_mean);
    if (test.sink) add_sink(*test.sink);
    change_from(test.other_from);
    if (!test.dataset.empty()) take_dataset();
    for (Side* const side : {&q_, &k_, &v_}) {
      const bool tokens = test.product == Product::kTokenScales;
      const int lower = side == &v_   ? tokens ? device::kLoweredTokenV : 0
                        : !lowered    ? 0
                        : side == &q_ ? device::kLoweredQ
                                      : device::kLoweredK;
      const bool coarse = test.coarse && ((tokens && side != &q_) || (lowered && side == &k_));
      for (std::int64_t i = 0; i < side->batch() * side->heads; ++i) {
        const Matrix<float> values = side->matrix(i / side->heads, i % side->heads);
        mx::QuantizedMatrix matrix = quantize_rows(values, block_shape(), lower, coarse);
        if (side == &v_ && ((lowered && !tokens) || test.product == Product::kBf16)) {
          matrix = for_half_sums(matrix, values, mx::kHalfSumsV, false);
        } else if (side != &v_ && lowered && !tokens) {
          const float most = side == &q_ ? mx::kHalfSumsQ : mx::kHalfSumsK;
          matrix = for_half_sums(matrix, values, most, coarse);
        }
        side->matrices.push_back(std::move(matrix));
      }
    }
  }

  BlockShape block_shape() const {
    return test_.product == Product::kTokenScales ? BlockShape::k1xD : BlockShape::k32xD;
  }

  std::int64_t batch() const { return k_.batch(); }
  std::int64_t seqlen_q(std::int64_t s) const { return q_.length(q_sequence(s)); }
  std::int64_t rows_o() const {
    return test_.broadcast_seqlen_q > 0 ? batch() * q_.total() : q_.total();
  }
  std::int64_t o_begin(std::int64_t s) const {
    return test_.broadcast_seqlen_q > 0 ? s * q_.total() : q_.cu[s];
  }
  std::int64_t q_sequence(std::int64_t s) const { return test_.broadcast_seqlen_q > 0 ? 0 : s; }

  recipe::Operands operands(std::int64_t sequence, std::int64_t head) const {
    const std::int64_t kv = head / (test_.num_heads / test_.num_heads_kv);
    const auto operand = [](const Side& side, std::int64_t s, std::int64_t h) {
      recipe::Operand result;
      result.along_d = result.along_tokens = side.matrices[s * side.heads + h];
      result.bf16 = side.matrix(s, h);
      return result;
    };
    recipe::Operands result;
    result.q = operand(q_, q_sequence(sequence), head);
    result.k = operand(k_, sequence, kv);
    result.v = operand(v_, sequence, kv);
    return result;
  }
  recipe::HeadProblem problem() const { return {test_.mask, test_.scale()}; }

  struct Results {
    std::vector<double> o;   ///< [rows_o, num_heads, head_dim]
    std::vector<float> lse;  ///< [num_heads, rows_o]
    std::vector<float> row_max;
    bool guards_intact = false;
  };
  Results run() const;

 private:
  Side make_side(std::vector<std::int32_t> cu, std::int64_t heads, std::uint64_t seed, double sigma,
                 std::optional<double> fill, std::int64_t nan_row = -1) const;

  void take_dataset() {
    const HeadInputs inputs = reference::make_dataset(
        test_.dataset,
        {.seqlen_q = q_.total(), .seqlen_k = k_.total(), .head_dim = test_.head_dim});
    q_.values = inputs.q.data;
    k_.values = inputs.k.data;
    v_.values = inputs.v.data;
  }
  void add_mean(double sigma) {
    Rng rng(4);
    const std::int64_t width = v_.heads * v_.dim;
    const std::vector<float> mean = rng.normal_values<float>(width, sigma);
    for (std::int64_t i = 0; i < std::ssize(v_.values); ++i) {
      v_.values[i] = mx::round_bf16(v_.values[i] + mean[i % width]);
    }
  }
  /// In the first column, whose product is 0 but for the first keys.
  void add_sink(double logit) {
    constexpr float kQuery = 4.0f;
    const float key = mx::round_bf16(static_cast<float>(logit / test_.scale()) / kQuery);
    for (std::int64_t i = 0; i < std::ssize(q_.values); i += q_.dim) q_.values[i] = kQuery;
    for (std::int64_t i = 0; i < std::ssize(k_.values); i += k_.dim) k_.values[i] = 0;
    for (std::int64_t s = 0; s < k_.batch(); ++s) {
      const std::int64_t width = k_.heads * k_.dim, first = k_.cu[s] * width;
      for (std::int64_t i = first; i < first + width; ++i) {
        k_.values[i] = i % k_.dim == 0 ? key : 0;
        v_.values[i] = 0;
      }
    }
  }
  void change_from(std::int64_t token) {
    for (Side* const side : {&k_, &v_}) {
      const std::int64_t width = side->heads * side->dim;
      for (std::int64_t s = 0; s < side->batch(); ++s) {
        for (std::int64_t row = token; row < side->length(s); ++row) {
          for (std::int64_t i = 0; i < width; ++i) {
            float& value = side->values[(side->cu[s] + row) * width + i];
            value = row % 3 == 0 ? std::numeric_limits<float>::quiet_NaN() : -64 * value;
          }
        }
      }
    }
    // Rows whose factors half cannot hold, and others, beside those that must stay.
    for (std::int64_t s = 0; s < q_.batch(); ++s) {
      for (std::int64_t row = token; row < q_.length(s); ++row) {
        for (std::int64_t i = 0; i < q_.heads * q_.dim; ++i) {
          q_.values[(q_.cu[s] + row) * q_.heads * q_.dim + i] *= row % 3 == 0 ? 0x1p40f : -16;
        }
      }
    }
  }
  std::vector<double> decode_mxfp8(const std::vector<std::uint8_t>& codes,
                                   const std::vector<std::uint8_t>& scales) const;
  std::int64_t o_scale_rows() const;
  std::int64_t o_scale_row(std::int64_t sequence, std::int64_t row) const;

  static constexpr std::uint64_t kSeedQ = 1;
  ForwardCase test_;
  Side q_, k_, v_;
};

inline std::int64_t ForwardBatch::o_scale_row(std::int64_t sequence, std::int64_t row) const {
  if (test_.o_shape == BlockShape::k1x32) return o_begin(sequence) + row;
  std::int64_t groups = 0;
  for (std::int64_t s = 0; s < sequence; ++s) groups += mx::ceil_div(seqlen_q(s), 32);
  return groups + row / 32;
}
inline std::int64_t ForwardBatch::o_scale_rows() const {
  return test_.o_shape == BlockShape::k1x32 ? rows_o() : o_scale_row(batch(), 0);
}

/// Checks on the way that no block could have taken a smaller scale.
inline std::vector<double> ForwardBatch::decode_mxfp8(
    const std::vector<std::uint8_t>& codes, const std::vector<std::uint8_t>& scales) const {
  const std::int64_t heads = test_.num_heads, dim = test_.head_dim, parts = dim / 32;
  std::vector<double> values(codes.size());
  std::vector<float> largest(scales.size(), 0.0f);
  for (std::int64_t s = 0; s < batch(); ++s) {
    for (std::int64_t i = 0; i < seqlen_q(s) * heads * dim; ++i) {
      const std::int64_t row = i / (heads * dim), head = i / dim % heads, column = i % dim;
      const std::int64_t at = ((o_begin(s) + row) * heads + head) * dim + column;
      const std::int64_t scale = (o_scale_row(s, row) * heads + head) * parts + column / 32;
      const float code = mx::decode_e4m3(codes[at]);
      largest[scale] = std::max(largest[scale], std::abs(code));
      values[at] = std::ldexp(static_cast<double>(code), scales[scale] - 127);
    }
  }
  for (std::int64_t i = 0; i < o_scale_rows() * heads * parts; ++i) {
    EXPECT_TRUE(scales[i] == 0 || (scales[i] < 0xFF && largest[i] >= 224))
        << "scale " << i << ": " << int{scales[i]} << ", largest code " << largest[i];
  }
  return values;
}

inline Side ForwardBatch::make_side(std::vector<std::int32_t> cu, std::int64_t heads,
                                    std::uint64_t seed, double sigma, std::optional<double> fill,
                                    std::int64_t nan_row) const {
  Side side{
      .cu = std::move(cu), .heads = heads, .dim = test_.head_dim, .values = {}, .matrices = {}};
  Rng rng(test_.seed + seed);
  const double spread = seed == kSeedQ && !test_.q_has_spread ? 0 : test_.spread;
  side.values = rng.normal_values<float>(side.total() * heads * side.dim, sigma);
  for (std::int64_t s = 0; s < side.batch(); ++s) {
    for (std::int64_t group = 0; group < side.length(s); group += 32) {
      const double factor = std::exp2(rng.uniform(-spread, spread));
      for (std::int64_t row = group; row < std::min(group + 32, side.length(s)); ++row) {
        for (std::int64_t i = 0; i < heads * side.dim; ++i) {
          float& value = side.values[(side.cu[s] + row) * heads * side.dim + i];
          value =
              mx::round_bf16(fill ? static_cast<float>(*fill) : value * static_cast<float>(factor));
        }
      }
    }
    if (nan_row >= 0 && nan_row < side.length(s)) {
      std::fill_n(side.values.begin() + (side.cu[s] + nan_row) * heads * side.dim, heads * side.dim,
                  std::numeric_limits<float>::quiet_NaN());
    }
  }
  return side;
}

/// The operand of one side in device memory.
class DeviceOperand {
 public:
  DeviceOperand(const Side& side, bool dense, bool transposed, std::int64_t slack_rows,
                std::uint8_t lowered)
      : side_(side) {
    Machine& machine = testing::machine();
    std::vector<std::int64_t> groups{0}, tiles{0};
    for (std::int64_t s = 0; s < side.batch(); ++s) {
      groups.push_back(groups.back() + mx::ceil_div(side.length(s), 32));
      tiles.push_back(tiles.back() + mx::ceil_div(side.length(s), 128));
    }
    total_ = side.total() + slack_rows;
    by_token_ = !side.matrices.empty() && side.matrices[0].block_shape == BlockShape::k1xD;
    const std::int64_t scale_rows = by_token_ ? side.total() : groups.back();
    scale_pitch_ = mx::ceil_div(std::max<std::int64_t>(scale_rows, 1), 16) * 16;
    fill(groups, tiles, transposed);
    cu_.emplace(machine.upload(std::span<const std::int32_t>(side.cu)));
    groups_.emplace(machine.upload(std::span<const std::int64_t>(groups)));
    tiles_.emplace(machine.upload(std::span<const std::int64_t>(tiles)));
    operand_ = {.rows = transposed ? nullptr : codes_->as<const std::uint8_t>(),
                .token_stride = side.heads * side.dim,
                .head_stride = side.dim,
                .transposed = transposed ? codes_->as<const std::uint8_t>() : nullptr,
                .tiles = tiles.back(),
                .order = device::TokenOrder::kPi,
                .scales = {.data = scales_->as<const std::uint8_t>(),
                           .row_stride = 1,
                           .head_stride = scale_pitch_},
                .block_shape = by_token_ ? BlockShape::k1xD : BlockShape::k32xD,
                .offsets = {.cu_seqlens = cu_->as<const std::int32_t>(),
                            .group_begin = groups_->as<const std::int64_t>(),
                            .tile_begin = tiles_->as<const std::int64_t>(),
                            .batch = static_cast<std::int32_t>(side.batch()),
                            .seqlen = dense ? side.length(0) : -1},
                .total = total_,
                .num_heads = static_cast<std::int32_t>(side.heads),
                .head_dim = static_cast<std::int32_t>(side.dim),
                .lowered = lowered};
  }
  const device::AttentionOperand& operand() const { return operand_; }

 private:
  /// Everything that no sequence covers is NaN, but for a transposed copy's last columns.
  void fill(const std::vector<std::int64_t>& groups, const std::vector<std::int64_t>& tiles,
            bool transposed) {
    const std::int64_t dim = side_.dim, heads = side_.heads;
    const device::TransposedTiles layout{static_cast<std::int32_t>(heads),
                                         static_cast<std::int32_t>(dim)};
    std::vector<std::uint8_t> codes(
        transposed ? std::max<std::int64_t>(tiles.back(), 1) * layout.tile_bytes()
                   : total_ * heads * dim,
        transposed ? 0x00 : 0x7F);
    std::vector<std::uint8_t> scales(heads * scale_pitch_, 0xFF);
    for (std::int64_t i = 0; i < std::ssize(side_.matrices); ++i) {
      const mx::QuantizedMatrix& matrix = side_.matrices[i];
      const std::int64_t s = i / heads, head = i % heads;
      for (std::int64_t row = 0; row < matrix.rows; ++row) {
        const std::int64_t scale_row = by_token_ ? side_.cu[s] + row : groups[s] + row / 32;
        scales[head * scale_pitch_ + scale_row] = matrix.scale(row, 0);
        for (std::int64_t d = 0; d < dim; ++d) {
          const std::int64_t column = row / 16 * 16 + mx::pi_position(static_cast<int>(row % 16));
          const std::int64_t at = transposed
                                      ? layout.at(tiles[s] + column / 128, head, d) + column % 128
                                      : ((side_.cu[s] + row) * heads + head) * dim + d;
          codes[at] = matrix.code(row, d);
        }
      }
    }
    codes_.emplace(machine().upload(std::span<const std::uint8_t>(codes)));
    scales_.emplace(machine().upload(std::span<const std::uint8_t>(scales)));
  }

  const Side& side_;
  std::int64_t total_ = 0, scale_pitch_ = 0;
  bool by_token_ = false;
  std::optional<Guarded> codes_, scales_, cu_, groups_, tiles_;
  device::AttentionOperand operand_;
};

inline ForwardBatch::Results ForwardBatch::run() const {
  Machine& machine = testing::machine();
  const bool dense = test_.dense_batch > 0, broadcast = test_.broadcast_seqlen_q > 0;
  const bool half = test_.scores == Scores::kF16;
  const DeviceOperand q(q_, dense || broadcast, false, test_.slack_rows,
                        half ? device::kLoweredQ : 0);
  const DeviceOperand k(k_, dense, false, test_.slack_rows, half ? device::kLoweredK : 0);
  const DeviceOperand v(v_, dense, true, 0, 0);
  const std::int64_t heads = test_.num_heads, dim = test_.head_dim;
  const auto rows = static_cast<std::size_t>(std::max<std::int64_t>(rows_o() * heads, 1));
  const auto scale_rows = static_cast<std::size_t>(std::max<std::int64_t>(o_scale_rows(), 1));
  const bool mxfp8 = test_.o_shape.has_value();
  const Guarded o = machine.poisoned(rows * dim * (mxfp8 ? 1 : 2));
  const Guarded scales = machine.poisoned(scale_rows * heads * (dim / 32));
  const Guarded lse = machine.poisoned(rows * 4), row_max = machine.poisoned(rows * 4);
  const Guarded workspace =
      machine.poisoned(static_cast<std::size_t>(sm90::forward::forward_workspace_bytes(
          machine.device(), static_cast<std::int32_t>(batch()))));
  const auto bf16 = [&](const Side& side) {
    std::vector<std::uint16_t> codes((side.total() + test_.slack_rows) * side.heads * side.dim,
                                     0x7FFF);
    std::ranges::transform(side.values, codes.begin(), mx::encode_bf16);
    return machine.upload(std::span<const std::uint16_t>(codes));
  };
  const Guarded q_bf16 = bf16(q_), k_bf16 = bf16(k_);
  device::AttentionOperand values = v.operand();
  values.half_sums = test_.half_sums && (half || test_.product != Product::kGroupScales);
  sm90::forward::ForwardCall call{.q = q.operand(),
                                  .k = k.operand(),
                                  .v = values,
                                  .broadcast_q = broadcast,
                                  .mask = test_.mask,
                                  .softmax_scale = test_.scale(),
                                  .scores = test_.scores,
                                  .lse = lse.as<float>(),
                                  .row_max = row_max.as<float>(),
                                  .lse_head_stride = rows_o(),
                                  .workspace = test_.workspace ? workspace.as<void>() : nullptr};
  if (test_.product == Product::kBf16) {
    call.q_bf16 = {q_bf16.as<const std::uint16_t>(), heads * dim, dim};
    call.k_bf16 = {k_bf16.as<const std::uint16_t>(), k_.heads * dim, dim};
    call.q.rows = call.k.rows = nullptr;
  }
  if (mxfp8) {
    call.o_mxfp8 = {.codes = o.as<std::uint8_t>(),
                    .token_stride = heads * dim,
                    .head_stride = dim,
                    .scales = scales.as<std::uint8_t>(),
                    .scale_row_stride = heads * (dim / 32),
                    .scale_head_stride = dim / 32,
                    .block_shape = *test_.o_shape};
  } else {
    call.o = o.as<std::uint16_t>();
    call.o_token_stride = test_.o_by_head ? dim : heads * dim;
    call.o_head_stride = test_.o_by_head ? test_.dense_seqlen_q * dim : dim;
    call.o_batch_stride = test_.o_by_head ? test_.dense_seqlen_q * heads * dim : 0;
  }
  sm90::forward::attention_forward(machine.queue(), call);
  machine.synchronize();
  Results results{.o = std::vector<double>(rows * dim),
                  .lse = lse.download<float>(),
                  .row_max = row_max.download<float>(),
                  .guards_intact = o.guards_intact() && lse.guards_intact() &&
                                   row_max.guards_intact() && workspace.guards_intact() &&
                                   scales.guards_intact()};
  if (mxfp8) {
    results.o = decode_mxfp8(o.download<std::uint8_t>(), scales.download<std::uint8_t>());
    return results;
  }
  const std::vector<std::uint16_t> codes = o.download<std::uint16_t>();
  for (std::int64_t i = 0; i < std::ssize(codes); ++i) {
    const std::int64_t row = i / (heads * dim), head = i / dim % heads;
    const std::int64_t length = test_.dense_seqlen_q;
    const std::int64_t at =
        test_.o_by_head ? ((row / length * heads + head) * length + row % length) * dim + i % dim
                        : i;
    results.o[i] = mx::bits_float(std::uint32_t{codes[at]} << 16);
  }
  return results;
}

}  // namespace mxfa::testing
