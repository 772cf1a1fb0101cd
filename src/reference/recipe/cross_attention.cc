#include "reference/recipe/cross_attention.h"

#include <cmath>
#include <utility>

#include "core/check.h"
#include "core/parallel.h"
#include "mx/bits.h"
#include "mx/row_sum.h"
#include "reference/batch.h"
#include "reference/gemm.h"
#include "reference/recipe/panels.h"
#include "reference/rmsnorm.h"

namespace mxfa::reference::recipe {
namespace {

/// A stored tensor: its values, and its codes where it is MXFP8.
struct Stored {
  Matrix<double> values;  ///< [tokens, heads * dim]
  PackedMx mx;
};

/// How a tensor is stored.
struct Format {
  bool mxfp8 = false;
  BlockShape block_shape = BlockShape::k32x32;
  std::int64_t heads = 1;
  ScaleRule rule = ScaleRule::kRoundUp;
};

Matrix<double> rounded_bf16(Matrix<double> values) {
  for (double& value : values.data) value = mx::round_bf16(static_cast<float>(value));
  return values;
}
Matrix<double> rounded_f32(Matrix<double> values) {
  for (double& value : values.data) value = static_cast<float>(value);
  return values;
}
Matrix<double> to_double(const std::vector<double>& values, std::int64_t rows, std::int64_t cols) {
  Matrix<double> result(rows, cols);
  result.data = values;
  return result;
}
std::vector<double> to_double(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}
std::vector<float> to_float(const Matrix<double>& values) {
  return {values.data.begin(), values.data.end()};
}

/// Rounds FP32 values as `format` stores them; groups start with each sequence of `offsets`.
Stored store(const Matrix<double>& values, const mx::JaggedOffsets& offsets, const Format& format) {
  if (!format.mxfp8) return {rounded_bf16(values), {}};
  PackedMx packed{.offsets = offsets, .heads = format.heads, .parts = {}};
  packed.parts.resize(static_cast<std::size_t>(offsets.batch() * format.heads));
  const std::int64_t dim = values.cols / format.heads;
  core::parallel_for(std::ssize(packed.parts), [&](std::int64_t i) {
    const std::int64_t sequence = i / format.heads;
    Matrix<float> part(offsets.seqlen(sequence), dim);
    for (std::int64_t row = 0; row < part.rows; ++row) {
      for (std::int64_t c = 0; c < dim; ++c) {
        part(row, c) =
            static_cast<float>(values(offsets.tokens[sequence] + row, i % format.heads * dim + c));
      }
    }
    packed.parts[static_cast<std::size_t>(i)] =
        mx::quantize(mx::row_major(part.data.data(), part.rows, part.cols),
                     {.block_shape = format.block_shape, .rule = format.rule});
  });
  Matrix<double> stored = packed.parts.empty() ? values : packed.values();
  return {std::move(stored), std::move(packed)};
}

/// y = x * rstd * weight in FP32, the sum of squares in the one order that all machines keep.
RmsNormResult rmsnorm_f32(const Matrix<double>& x, const std::vector<double>& weight, double eps) {
  namespace order = mx::row_sum;
  RmsNormResult result{.y = Matrix<double>(x.rows, x.cols), .rstd = std::vector<double>(x.rows)};
  for (std::int64_t i = 0; i < x.rows; ++i) {
    float total = 0;
    for (std::int64_t first = 0; first < x.cols; first += order::kChunk) {
      float lanes[order::kLanes] = {};
      for (std::int64_t c = first; c < std::min(first + order::kChunk, x.cols); ++c) {
        const auto value = static_cast<float>(x(i, c));
        float& lane = lanes[order::lane_of(c)];
        lane = std::fma(value, value, lane);
      }
      for (int distance = order::kLanes / 2; distance > 0; distance /= 2) {
        for (int lane = 0; lane < distance; ++lane) lanes[lane] += lanes[lane + distance];
      }
      total += lanes[0];
    }
    const float mean = total / static_cast<float>(x.cols);
    const float rstd = 1.0f / std::sqrt(mean + static_cast<float>(eps));
    result.rstd[i] = rstd;
    for (std::int64_t c = 0; c < x.cols; ++c) {
      result.y(i, c) = static_cast<float>(x(i, c)) * rstd * static_cast<float>(weight[c]);
    }
  }
  return result;
}

Operand make_operand(const Stored& stored, HeadIndex index, const Matrix<float>& values) {
  Operand operand;
  if (stored.mx.parts.empty()) {
    operand.bf16 = values;
  } else {
    operand.along_d = operand.along_tokens = stored.mx.part(index.sequence, index.head);
  }
  return operand;
}

class Step {
 public:
  Step(const CrossAttentionInputs& inputs, const CrossAttentionConfig& config)
      : in_(inputs), config_(config) {
    config_.attention.check();
    config_.attention.o_out = OutputFormat::kBf16;
    // Rounded below, after the sums over query heads and over the batch.
    config_.attention.dq_out = config_.attention.dkv_out = OutputFormat::kF32;
    const std::int64_t batch = std::ssize(in_.cu_seqlens_k) - 1;
    std::vector<std::int32_t> offsets_o;
    for (std::int64_t s = 0; s <= batch; ++s) {
      offsets_o.push_back(static_cast<std::int32_t>(s * in_.seeds.rows));
    }
    seeds_ = mx::make_single_sequence(in_.seeds.rows);
    keys_ = mx::make_jagged_offsets(in_.cu_seqlens_k, in_.kv.rows);
    outputs_ = mx::make_jagged_offsets(offsets_o, batch * in_.seeds.rows);
  }

  CrossAttentionStep run() {
    CrossAttentionResult& r = result_.tensors;
    const RmsNormResult seeds = rmsnorm_f32(in_.seeds, in_.seed_norm_weight, in_.eps);
    const RmsNormResult kv = rmsnorm_f32(in_.kv, in_.kv_norm_weight, in_.eps);
    seed_norm_ = store(seeds.y, seeds_, {.mxfp8 = queries_mxfp8(), .rule = rule()});
    kv_norm_ = store(kv.y, keys_, {.mxfp8 = mxfp8(), .rule = rule()});
    const Stored wq = weight(in_.wq, queries_mxfp8());
    const Stored wk = weight(in_.wk, mxfp8()), wv = weight(in_.wv, mxfp8());
    const Stored wo = weight(in_.wo, queries_mxfp8());
    const RecipeConfig& recipe = config_.attention;
    q_ = projected(seed_norm_, wq, seeds_, {mxfp8(), recipe.qk_shape, in_.num_heads, rule()});
    k_ = projected(kv_norm_, wk, keys_, {mxfp8(), recipe.qk_shape, in_.num_heads_kv, rule()});
    v_ = projected(kv_norm_, wv, keys_, {mxfp8(), recipe.v_shape, in_.num_heads_kv, rule()});
    Stored dy;
    if (in_.dy.cols != 0) {
      dy = store(in_.dy, outputs_, {.mxfp8 = queries_mxfp8(), .rule = rule()});
      dout_ = store(rounded_f32(multiply_nn(dy.values, wo.values)), outputs_,
                    {mxfp8(), recipe.dout_shape, in_.num_heads, rule()});
    }
    run_attention();
    // delta takes o as attention leaves it, the products take it rounded again.
    const Stored o =
        store(r.o, outputs_, {.mxfp8 = queries_mxfp8(), .heads = in_.num_heads, .rule = rule()});
    r.y = rounded_f32(linear_forward(o.values, wo.values));
    if (in_.dy.cols != 0) {
      const Stored dk = gradient(attention_.dk, r.k, keys_, in_.num_heads_kv, mxfp8());
      const Stored dv = gradient(attention_.dv, r.v, keys_, in_.num_heads_kv, mxfp8());
      const Stored dq = gradient(attention_.dq, r.q, seeds_, in_.num_heads, queries_mxfp8());
      r.dwo = rounded_f32(linear_backward(o.values, wo.values, dy.values).dweight);
      backward_of_queries(dq, wq, seeds.rstd);
      backward_of_keys(dk, dv, wk, wv, kv.rstd);
    }
    finish();
    return std::move(result_);
  }

 private:
  bool mxfp8() const { return internal::is_mx(config_.attention); }
  bool queries_mxfp8() const { return mxfp8() && !config_.queries_bf16; }
  ScaleRule rule() const { return config_.attention.scale_rule; }

  Stored weight(const Matrix<double>& values, bool as_mxfp8) const {
    return store(values, mx::make_single_sequence(values.rows),
                 {.mxfp8 = as_mxfp8, .rule = rule()});
  }
  static Stored projected(const Stored& x, const Stored& w, const mx::JaggedOffsets& offsets,
                          const Format& format) {
    return store(rounded_f32(linear_forward(x.values, w.values)), offsets, format);
  }
  /// A gradient of attention as the projections' gradients read it.
  Stored gradient(const std::vector<double>& values, const Matrix<double>& like,
                  const mx::JaggedOffsets& offsets, std::int64_t heads, bool as_mxfp8) const {
    return store(rounded_f32(to_double(values, like.rows, like.cols)), offsets,
                 {.mxfp8 = as_mxfp8, .heads = heads, .rule = rule()});
  }

  HeadOutputs head(const HeadInputs& inputs, HeadIndex index) const {
    const HeadIndex kv{index.sequence, index.head / (in_.num_heads / in_.num_heads_kv)};
    Operands operands{.q = make_operand(q_, {0, index.head}, inputs.q),
                      .k = make_operand(k_, kv, inputs.k),
                      .v = make_operand(v_, kv, inputs.v),
                      .dout = {},
                      .shift_k = {},
                      .shift_v = {}};
    const HeadProblem problem{inputs.mask, inputs.softmax_scale};
    const RecipeForward f = recipe_forward(operands, problem, config_.attention);
    HeadOutputs out{.o = reference::to_double(f.saved.o),
                    .lse = to_double(f.saved.lse),
                    .delta = {},
                    .dq = {},
                    .dk = {},
                    .dv = {}};
    if (inputs.dout.cols == 0) return out;
    operands.dout = make_operand(dout_, index, inputs.dout);
    const RecipeBackward b = recipe_backward(operands, problem, f.saved, config_.attention);
    out.delta = to_double(b.delta);
    out.dq = reference::to_double(b.dq);
    out.dk = reference::to_double(b.dk);
    out.dv = reference::to_double(b.dv);
    return out;
  }

  void run_attention() {
    const attention::AttentionProblem problem{.batch = outputs_.batch(),
                                              .num_heads = in_.num_heads,
                                              .num_heads_kv = in_.num_heads_kv,
                                              .head_dim = in_.head_dim,
                                              .total_q = in_.seeds.rows,
                                              .total_k = in_.kv.rows,
                                              .cu_seqlens_k = in_.cu_seqlens_k,
                                              .broadcast_q = true,
                                              .softmax_scale = in_.softmax_scale};
    const std::vector<float> q = to_float(q_.values), k = to_float(k_.values),
                             v = to_float(v_.values), dout = to_float(dout_.values);
    attention_ = run_heads(
        PackedInputs{.problem = problem, .q = q, .k = k, .v = v, .dout = dout},
        [this](const HeadInputs& inputs, HeadIndex index) { return head(inputs, index); });
    CrossAttentionResult& r = result_.tensors;
    const std::int64_t rows = problem.rows_o();
    r.seed_norm = seed_norm_.values;
    r.kv_norm = kv_norm_.values;
    r.q = q_.values;
    r.k = k_.values;
    r.v = v_.values;
    r.dout = dout_.values;
    r.o = to_double(attention_.o, rows, r.q.cols);
    r.lse = to_double(attention_.lse, in_.num_heads, rows);
    if (in_.dy.cols == 0) return;
    r.delta = to_double(attention_.delta, in_.num_heads, rows);
    r.dq_seq = rounded_f32(to_double(attention_.dq_seq, rows, r.q.cols));
  }

  void backward_of_queries(const Stored& dq, const Stored& wq, const std::vector<double>& rstd) {
    CrossAttentionResult& r = result_.tensors;
    r.dq = dq.values;
    LinearGradients query = linear_backward(r.seed_norm, wq.values, dq.values);
    r.dwq = rounded_f32(std::move(query.dweight));
    r.dseed_norm = rounded_f32(std::move(query.dx));
    RmsNormGradients seeds = rmsnorm_backward(in_.seeds, in_.seed_norm_weight, rstd, r.dseed_norm);
    r.dseeds = rounded_f32(std::move(seeds.dx));
    r.dseed_norm_weight = rounded_f32(to_double(seeds.dweight, 1, in_.seeds.cols));
  }

  void backward_of_keys(const Stored& dk, const Stored& dv, const Stored& wk, const Stored& wv,
                        const std::vector<double>& rstd) {
    CrossAttentionResult& r = result_.tensors;
    r.dk = dk.values;
    r.dv = dv.values;
    LinearGradients key = linear_backward(r.kv_norm, wk.values, dk.values);
    LinearGradients value = linear_backward(r.kv_norm, wv.values, dv.values);
    r.dwk = rounded_f32(std::move(key.dweight));
    r.dwv = rounded_f32(std::move(value.dweight));
    for (std::size_t i = 0; i < key.dx.data.size(); ++i) key.dx.data[i] += value.dx.data[i];
    r.dkv_norm = rounded_f32(std::move(key.dx));
    RmsNormGradients kv = rmsnorm_backward(in_.kv, in_.kv_norm_weight, rstd, r.dkv_norm);
    r.dkv = rounded_f32(std::move(kv.dx));
    r.dkv_norm_weight = rounded_f32(to_double(kv.dweight, 1, in_.kv.cols));
    result_.dk = dk.mx;
    result_.dv = dv.mx;
  }

  void finish() {
    result_.seed_norm = std::move(seed_norm_.mx);
    result_.kv_norm = std::move(kv_norm_.mx);
    result_.q = std::move(q_.mx);
    result_.k = std::move(k_.mx);
    result_.v = std::move(v_.mx);
    result_.dout = std::move(dout_.mx);
  }

  CrossAttentionInputs in_;
  CrossAttentionConfig config_;
  mx::JaggedOffsets seeds_, keys_, outputs_;
  Stored seed_norm_, kv_norm_, q_, k_, v_, dout_;
  PackedOutputs attention_;
  CrossAttentionStep result_;
};

}  // namespace

std::vector<std::uint8_t> PackedMx::payload() const {
  const std::int64_t dim = parts.empty() ? 0 : parts.front().cols;
  std::vector<std::uint8_t> bytes;
  for (std::int64_t s = 0; s < offsets.batch(); ++s) {
    for (std::int64_t row = 0; row < offsets.seqlen(s); ++row) {
      for (std::int64_t head = 0; head < heads; ++head) {
        const auto from = part(s, head).codes.begin() + row * dim;
        bytes.insert(bytes.end(), from, from + dim);
      }
    }
  }
  return bytes;
}

std::vector<std::uint8_t> PackedMx::scales() const {
  std::vector<std::uint8_t> bytes;
  for (std::int64_t s = 0; s < offsets.batch(); ++s) {
    const mx::ScaleGrid grid = part(s, 0).grid();
    for (std::int64_t row = 0; row < grid.grid_rows(); ++row) {
      for (std::int64_t head = 0; head < heads; ++head) {
        const auto from = part(s, head).scales.begin() + row * grid.grid_cols();
        bytes.insert(bytes.end(), from, from + grid.grid_cols());
      }
    }
  }
  return bytes;
}

Matrix<double> PackedMx::values() const {
  const std::int64_t dim = parts.empty() ? 0 : parts.front().cols;
  Matrix<double> result(offsets.tokens.back(), heads * dim);
  for (std::int64_t i = 0; i < std::ssize(parts); ++i) {
    const std::vector<float> part = mx::dequantize(parts[static_cast<std::size_t>(i)]);
    const std::int64_t first = offsets.tokens[i / heads];
    for (std::int64_t at = 0; at < std::ssize(part); ++at) {
      result(first + at / dim, i % heads * dim + at % dim) = part[static_cast<std::size_t>(at)];
    }
  }
  return result;
}

CrossAttentionStep cross_attention_step(const CrossAttentionInputs& inputs,
                                        const CrossAttentionConfig& config) {
  validate(inputs);
  core::expect(inputs.cu_seqlens_k.back() == inputs.kv.rows, "kv",
               fmt::format("{} rows, none behind the last sequence", inputs.cu_seqlens_k.back()),
               core::text(inputs.kv.rows));
  return Step(inputs, config).run();
}

}  // namespace mxfa::reference::recipe
