#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/sm100/forward/exp2_share.h"
#include "kernels/sm100/forward/launch.h"
#include "mx/bits.h"
#include "mx/jagged_scale.h"
#include "reference/datasets.h"
#include "reference/recipe/recipe.h"
#include "support/machine.h"
#include "support/offsets.h"
#include "support/rng.h"

/// Batches for the Blackwell forward: operands quantized on the host, everything around them
/// poisoned, the kernel's results.
namespace mxfa::testing {

using attention::Mask;
using reference::HeadInputs;
using reference::Matrix;
namespace recipe = reference::recipe;
using sm100::forward::PScale;

struct ForwardCase {
  std::string name;
  std::vector<std::int32_t> cu_seqlens_q = {};  ///< empty where broadcast or dense
  std::vector<std::int32_t> cu_seqlens_k = {};
  std::int64_t head_dim = 128;
  std::int64_t columns = 0;  ///< of the tensors, the rest of head_dim being zero; 0: head_dim
  std::int64_t num_heads = 1;
  std::int64_t num_heads_kv = 1;
  Mask mask = {};
  PScale p_scale = PScale::kConstant;
  BlockShape shape = BlockShape::k32x32;  ///< leak_free: of q and k
  bool leak_free = false;
  std::optional<BlockShape> o_shape = {};  ///< of MXFP8; else BF16
  std::int64_t broadcast_seqlen_q = 0;     ///< > 0: q is broadcast
  std::int64_t dense_batch = 0;            ///< > 0: dense, of the lengths below
  std::int64_t dense_seqlen_q = 0;
  std::int64_t dense_seqlen_k = 0;
  double sigma_q = 1.0;
  double spread = 0.0;  ///< groups of 32 tokens are scaled by 2^uniform(-spread, spread)
  double drift = 0.0;   ///< keys grow by so much along a sequence: maxima that keep moving
  std::optional<double> fill_q = {}, fill_k = {};  ///< all entries
  std::string dataset = {};                        ///< of reference::make_dataset; one head
  std::int64_t alter_from = -1;                    ///< k and v are others from this row on
  std::int64_t slack_rows = 3;                     ///< of NaN, behind the last sequence

  friend void PrintTo(const ForwardCase& test, std::ostream* out) { *out << test.name; }
};

/// Whether the machine's products are rounded once an instruction, not as Blackwell truncates them.
inline bool exact_arithmetic() { return machine().options().emulator.arithmetic == "exact"; }

/// The exponentials of a key tile as the kernel takes them: some by its polynomial; those of the
/// special function unit are 0 below the normal range. A single one is not a polynomial.
inline void kernel_exp2_row(const float* x, float* y, std::int64_t count) {
  using namespace sm100::forward;
  const int pairs = polynomial_pairs(machine().options().arch == "sm_103a" ? 1030 : 1000);
  recipe::exp2_f32_row(x, y, count);
  for (std::int64_t i = 0; i < count; ++i) {
    if (!is_polynomial(static_cast<int>(i % 32 / 2), pairs)) {
      y[i] = y[i] < std::ldexp(1.0f, -126) ? 0.0f : y[i];
      continue;
    }
    const float clamped = x[i] < kExp2Least ? kExp2Least : x[i];
    const float shifted = clamped + kExp2Shift;
    const float rest = clamped - (shifted - kExp2Shift);
    float sum = std::fma(kExp2Factor4, rest, kExp2Factor3);
    sum = std::fma(sum, rest, kExp2Factor2);
    sum = std::fma(sum, rest, kExp2Factor1);
    y[i] = std::fma(sum, rest, 1.0f) * mx::bits_float(mx::float_bits(shifted) << 23);
  }
}

/// One side's sequences, [sequence * heads + head].
struct Side {
  std::vector<std::int32_t> cu;
  std::int64_t heads = 1;
  std::vector<Matrix<float>> values;

  std::int64_t total() const { return cu.back(); }
  std::int64_t batch() const { return std::int64_t(cu.size()) - 1; }
  std::int64_t length(std::int64_t s) const { return cu[s + 1] - cu[s]; }
};

/// A quantized side in device memory. Rows behind the last sequence hold NaN codes, bytes of atoms
/// that no block owns NaN scales.
class DeviceOperand {
 public:
  DeviceOperand(const Side& side, const std::vector<mx::QuantizedMatrix>& matrices, ScaleAxis axis,
                std::int64_t head_dim, bool dense, std::int64_t slack_rows) {
    Machine& machine = testing::machine();
    std::vector<std::int64_t> groups{0}, tiles{0};
    for (std::int64_t s = 0; s < side.batch(); ++s) {
      groups.push_back(groups.back() + mx::ceil_div(side.length(s), 32));
      tiles.push_back(tiles.back() + mx::ceil_div(side.length(s), 128));
    }
    const std::int64_t heads = side.heads, total = side.total() + slack_rows;
    const std::int64_t head_bytes = std::max<std::int64_t>(tiles.back(), 1) * mx::kAtomBytes;
    std::vector<std::uint8_t> codes(std::max<std::int64_t>(total, 1) * heads * head_dim, 0x7F);
    std::vector<std::uint8_t> atoms(heads * head_bytes, 0xFF);
    for (std::int64_t i = 0; i < std::ssize(matrices); ++i) {
      const mx::QuantizedMatrix& matrix = matrices[i];
      const std::int64_t s = i / heads, head = i % heads;
      for (std::int64_t row = 0; row < matrix.rows; ++row) {
        for (std::int64_t d = 0; d < head_dim; ++d) {
          codes[((side.cu[s] + row) * heads + head) * head_dim + d] = matrix.code(row, d);
          const int in_tile = static_cast<int>(row % 128);
          const int byte = axis == ScaleAxis::kHeadDim
                               ? mx::byte_in_atom(in_tile, static_cast<int>(d / 32))
                               : mx::byte_in_atom(static_cast<int>(d), in_tile / 32);
          atoms[head * head_bytes + (tiles[s] + row / 128) * mx::kAtomBytes + byte] =
              matrix.scale(row, d);
        }
      }
    }
    codes_.emplace(machine.upload(std::span<const std::uint8_t>(codes)));
    atoms_.emplace(machine.upload(std::span<const std::uint8_t>(atoms)));
    cu_.emplace(machine.upload(std::span<const std::int32_t>(side.cu)));
    groups_.emplace(machine.upload(std::span<const std::int64_t>(groups)));
    tiles_.emplace(machine.upload(std::span<const std::int64_t>(tiles)));
    operand_ = {.rows = codes_->as<const std::uint8_t>(),
                .token_stride = heads * head_dim,
                .head_stride = head_dim,
                .atoms = atoms_->as<const std::uint8_t>(),
                .head_bytes = head_bytes,
                .axis = axis,
                .offsets = {.cu_seqlens = cu_->as<const std::int32_t>(),
                            .group_begin = groups_->as<const std::int64_t>(),
                            .tile_begin = tiles_->as<const std::int64_t>(),
                            .batch = static_cast<std::int32_t>(side.batch()),
                            .seqlen = dense ? side.length(0) : -1},
                .total = total,
                .num_heads = static_cast<std::int32_t>(heads),
                .head_dim = static_cast<std::int32_t>(head_dim)};
  }
  const device::BlockScaledOperand& operand() const { return operand_; }

 private:
  std::optional<Guarded> codes_, atoms_, cu_, groups_, tiles_;
  device::BlockScaledOperand operand_;
};

class ForwardBatch {
 public:
  explicit ForwardBatch(const ForwardCase& test) : test_(test) {
    const bool dense = test.dense_batch > 0, broadcast = test.broadcast_seqlen_q > 0;
    q_ = make_side(dense       ? equal_offsets(test.dense_batch, test.dense_seqlen_q)
                   : broadcast ? equal_offsets(1, test.broadcast_seqlen_q)
                               : test.cu_seqlens_q,
                   test.num_heads, 1, test.sigma_q, test.fill_q);
    k_ = make_side(dense ? equal_offsets(test.dense_batch, test.dense_seqlen_k) : test.cu_seqlens_k,
                   test.num_heads_kv, 2, 1.0, test.fill_k);
    v_ = make_side(k_.cu, test.num_heads_kv, 3, 1.0, {});
    if (!test.dataset.empty()) {
      const HeadInputs inputs = reference::make_dataset(
          test.dataset,
          {.seqlen_q = seqlen_q(0), .seqlen_k = seqlen_k(0), .head_dim = test.head_dim});
      q_.values = {inputs.q};
      k_.values = {inputs.k};
      v_.values = {inputs.v};
    }
    for (std::int64_t s = 0; s < batch(); ++s) {
      for (std::int64_t head = 0; head < test.num_heads; ++head) quantize_head(s, head);
    }
  }

  std::int64_t batch() const { return k_.batch(); }
  std::int64_t seqlen_q(std::int64_t s) const { return q_.length(q_sequence(s)); }
  std::int64_t seqlen_k(std::int64_t s) const { return k_.length(s); }
  std::int64_t rows_o() const {
    return test_.broadcast_seqlen_q > 0 ? batch() * q_.total() : q_.total();
  }
  std::int64_t o_begin(std::int64_t s) const {
    return test_.broadcast_seqlen_q > 0 ? s * q_.total() : q_.cu[s];
  }
  /// Where the scale of `row` in MXFP8 is.
  std::int64_t o_scale_row(std::int64_t sequence, std::int64_t row) const {
    if (test_.o_shape == BlockShape::k1x32) return o_begin(sequence) + row;
    std::int64_t groups = 0;
    for (std::int64_t s = 0; s < sequence; ++s) groups += mx::ceil_div(seqlen_q(s), 32);
    return groups + row / 32;
  }
  std::int64_t o_parts() const { return mx::ceil_div(columns(), 32); }
  std::int64_t num_heads() const { return test_.num_heads; }
  std::int64_t columns() const { return test_.columns > 0 ? test_.columns : test_.head_dim; }
  std::int64_t probe_pitch() const {
    std::int64_t most = 128;
    for (std::int64_t s = 0; s < batch(); ++s) {
      most = std::max(most, mx::ceil_div(seqlen_k(s), 128) * 128);
    }
    return most;
  }

  const recipe::Operands& operands(std::int64_t sequence, std::int64_t head) const {
    return operands_[sequence * test_.num_heads + head];
  }
  recipe::HeadProblem problem() const {
    return {test_.mask, 1.0 / std::sqrt(static_cast<double>(columns()))};
  }
  recipe::RecipeConfig config() const {
    recipe::RecipeConfig config = recipe::RecipeConfig::blackwell();
    config.qk_shape = config.v_shape = test_.shape;
    config.leak_free = test_.leak_free;
    if (test_.leak_free) config.v_shape = BlockShape::k1xD;
    config.accumulator =
        exact_arithmetic() ? recipe::Accumulator::kExact : recipe::Accumulator::kBlackwell;
    config.o_out = recipe::OutputFormat::kBf16;
    config.keep_intermediates = true;
    config.exp2 = kernel_exp2_row;
    config.p_offset = sm100::forward::p_offset(test_.p_scale);
    if (test_.p_scale == PScale::kConstant) return config;
    config.p_scale = test_.p_scale == PScale::kBlockAmax ? recipe::PScale::kBlockAmax
                                                         : recipe::PScale::kBlockRowMax;
    config.rescale_threshold = sm100::forward::kRescaleThreshold;
    return config;
  }

  struct Results {
    std::vector<float> o;  ///< [rows_o, num_heads, columns]; MXFP8: before, where probed
    std::vector<std::uint8_t> o_codes;
    std::vector<std::uint8_t> o_scales;  ///< [o_scale_row, num_heads, ceil(columns / 32)]
    std::vector<float> lse;              ///< [num_heads, rows_o]
    std::vector<float> row_max;
    std::vector<std::uint8_t> p_codes;   ///< [num_heads, rows_o, pitch]
    std::vector<std::uint8_t> p_scales;  ///< [num_heads, rows_o, pitch / 32]
    bool guards_intact = false;
  };
  /// `probed`: by the kernels that write P as well.
  Results run(bool probed = true) const;

 private:
  std::int64_t q_sequence(std::int64_t s) const { return test_.broadcast_seqlen_q > 0 ? 0 : s; }
  Side make_side(std::vector<std::int32_t> cu, std::int64_t heads, std::uint64_t seed, double sigma,
                 std::optional<double> fill) const;
  void quantize_head(std::int64_t sequence, std::int64_t head);
  std::vector<mx::QuantizedMatrix> matrices(const Side& side, recipe::Operand recipe::Operands::*m,
                                            ScaleAxis axis) const;

  ForwardCase test_;
  Side q_, k_, v_;
  std::vector<recipe::Operands> operands_;  ///< [sequence * num_heads + head]
};

inline Side ForwardBatch::make_side(std::vector<std::int32_t> cu, std::int64_t heads,
                                    std::uint64_t seed, double sigma,
                                    std::optional<double> fill) const {
  Side side{.cu = std::move(cu), .heads = heads, .values = {}};
  Rng rng(seed);
  for (std::int64_t i = 0; i < side.batch() * heads; ++i) {
    const std::int64_t rows = side.length(i / heads);
    Matrix<float> matrix(rows, test_.head_dim);
    for (std::int64_t row = 0; row < rows; ++row) {
      const double factor =
          std::exp2(test_.spread * std::sin(0.7 * static_cast<double>(row / 32 + i))) *
          (1.0 + test_.drift * static_cast<double>(row) / static_cast<double>(rows));
      for (std::int64_t d = 0; d < columns(); ++d) {
        const bool altered = seed != 1 && test_.alter_from >= 0 && row >= test_.alter_from;
        const double value = (fill ? *fill : rng.normal() * sigma * factor) * (altered ? -9 : 1);
        matrix(row, d) = mx::round_bf16(static_cast<float>(value));
      }
    }
    side.values.push_back(std::move(matrix));
  }
  return side;
}

inline void ForwardBatch::quantize_head(std::int64_t sequence, std::int64_t head) {
  const std::int64_t kv = head / (test_.num_heads / test_.num_heads_kv);
  const HeadInputs inputs{.q = q_.values[q_sequence(sequence) * q_.heads + head],
                          .k = k_.values[sequence * k_.heads + kv],
                          .v = v_.values[sequence * v_.heads + kv],
                          .dout = {},
                          .mask = test_.mask,
                          .softmax_scale = problem().softmax_scale};
  operands_.push_back(recipe::quantize_operands(inputs, config()));
}

inline std::vector<mx::QuantizedMatrix> ForwardBatch::matrices(
    const Side& side, recipe::Operand recipe::Operands::*member, ScaleAxis axis) const {
  std::vector<mx::QuantizedMatrix> result;
  for (std::int64_t i = 0; i < side.batch() * side.heads; ++i) {
    const std::int64_t head = i % side.heads * (test_.num_heads / side.heads);
    const recipe::Operand& operand = operands(i / side.heads, head).*member;
    result.push_back(axis == ScaleAxis::kHeadDim ? operand.along_d : operand.along_tokens);
  }
  return result;
}

inline ForwardBatch::Results ForwardBatch::run(bool probed) const {
  Machine& machine = testing::machine();
  const bool dense = test_.dense_batch > 0, broadcast = test_.broadcast_seqlen_q > 0;
  const std::int64_t dim = test_.head_dim, heads = test_.num_heads;
  const auto operand = [&](const Side& side, recipe::Operand recipe::Operands::*member,
                           ScaleAxis axis, bool is_dense) {
    return DeviceOperand(side, matrices(side, member, axis), axis, dim, is_dense, test_.slack_rows);
  };
  const DeviceOperand q =
      operand(q_, &recipe::Operands::q, ScaleAxis::kHeadDim, dense || broadcast);
  const DeviceOperand k = operand(k_, &recipe::Operands::k, ScaleAxis::kHeadDim, dense);
  const DeviceOperand v = operand(
      v_, &recipe::Operands::v, test_.leak_free ? ScaleAxis::kHeadDim : ScaleAxis::kTokens, dense);
  const std::int64_t rows = std::max<std::int64_t>(rows_o(), 1);
  const bool mxfp8 = test_.o_shape.has_value();
  const std::size_t elems = rows * heads * columns();
  const Guarded o = machine.poisoned(elems * (mxfp8 ? 1 : 2));
  const Guarded o_scales = machine.poisoned(mxfp8 ? rows * heads * o_parts() : 1);
  const Guarded o_before = machine.poisoned(mxfp8 && probed ? elems * 4 : 4);
  const Guarded lse = machine.poisoned(rows * heads * 4);
  const Guarded row_max = machine.poisoned(rows * heads * 4);
  const Guarded codes = machine.poisoned(probed ? rows * heads * probe_pitch() : 16);
  const Guarded scales = machine.poisoned(probed ? rows * heads * probe_pitch() / 32 : 16);
  const Guarded workspace = machine.poisoned(static_cast<std::size_t>(
      sm100::forward::forward_workspace_bytes(static_cast<std::int32_t>(batch()))));
  sm100::forward::ForwardCall call{.q = q.operand(),
                                   .k = k.operand(),
                                   .v = v.operand(),
                                   .leak_free = test_.leak_free,
                                   .broadcast_q = broadcast,
                                   .mask = test_.mask,
                                   .softmax_scale = problem().softmax_scale,
                                   .p_scale = test_.p_scale,
                                   .columns = static_cast<std::int32_t>(columns()),
                                   .lse = lse.as<float>(),
                                   .row_max = row_max.as<float>(),
                                   .lse_head_stride = rows_o(),
                                   .workspace = workspace.as<void>()};
  if (mxfp8) {
    call.o_mxfp8 = {.codes = o.as<std::uint8_t>(),
                    .token_stride = heads * columns(),
                    .head_stride = columns(),
                    .scales = o_scales.as<std::uint8_t>(),
                    .scale_row_stride = heads * o_parts(),
                    .scale_head_stride = o_parts(),
                    .block_shape = *test_.o_shape};
  } else {
    call.o = o.as<std::uint16_t>();
    call.o_token_stride = heads * columns();
    call.o_head_stride = columns();
  }
  if (probed) {
    attention_forward_probed(machine.queue(), call,
                             {.codes = codes.as<std::uint8_t>(),
                              .scales = scales.as<std::uint8_t>(),
                              .rows = rows_o(),
                              .pitch = probe_pitch(),
                              .o = o_before.as<float>()});
  } else {
    attention_forward(machine.queue(), call);
  }
  machine.synchronize();
  Results results{.o = {},
                  .o_codes = {},
                  .o_scales = {},
                  .lse = lse.download<float>(),
                  .row_max = row_max.download<float>(),
                  .p_codes = codes.download<std::uint8_t>(),
                  .p_scales = scales.download<std::uint8_t>(),
                  .guards_intact = true};
  for (const Guarded* const buffer :
       {&o, &o_scales, &o_before, &lse, &row_max, &codes, &scales, &workspace}) {
    results.guards_intact = results.guards_intact && buffer->guards_intact();
  }
  if (mxfp8) {
    results.o = o_before.download<float>();
    results.o_codes = o.download<std::uint8_t>();
    results.o_scales = o_scales.download<std::uint8_t>();
    return results;
  }
  for (const std::uint16_t bits : o.download<std::uint16_t>()) {
    results.o.push_back(mx::bits_float(std::uint32_t{bits} << 16));
  }
  return results;
}

}  // namespace mxfa::testing
