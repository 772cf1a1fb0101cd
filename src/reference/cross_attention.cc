#include "reference/cross_attention.h"

#include <utility>

#include "core/check.h"
#include "reference/batch.h"
#include "reference/gemm.h"
#include "reference/rmsnorm.h"

namespace mxfa::reference {
namespace {

/// The attention inside the module, over the `total_k` rows of kv that belong to a sequence.
attention::AttentionProblem problem_of(const CrossAttentionInputs& inputs, std::int64_t total_k) {
  return {.batch = std::int64_t(inputs.cu_seqlens_k.size()) - 1,
          .num_heads = inputs.num_heads,
          .num_heads_kv = inputs.num_heads_kv,
          .head_dim = inputs.head_dim,
          .total_q = inputs.seeds.rows,
          .total_k = total_k,
          .cu_seqlens_k = inputs.cu_seqlens_k,
          .broadcast_q = true,
          .softmax_scale = inputs.softmax_scale};
}

Matrix<double> as_matrix(std::int64_t rows, std::int64_t cols, std::vector<double> values) {
  Matrix<double> result;
  result.rows = rows;
  result.cols = cols;
  result.data = std::move(values);
  return result;
}

/// Cuts rows off the end, or appends rows of zeros.
void resize_rows(Matrix<double>& matrix, std::int64_t rows) {
  matrix.data.resize(static_cast<std::size_t>(rows * matrix.cols), 0.0);
  matrix.rows = rows;
}

struct Saved {
  Matrix<double> kv;  ///< without slack
  std::vector<double> seed_rstd;
  std::vector<double> kv_rstd;
};

void backward(const CrossAttentionInputs& inputs, const Saved& saved, CrossAttentionResult& r) {
  const attention::AttentionProblem problem = problem_of(inputs, saved.kv.rows);
  LinearGradients output = linear_backward(r.o, inputs.wo, inputs.dy);
  r.dout = std::move(output.dx);
  r.dwo = std::move(output.dweight);

  PackedOutputs attention = batched_backward(PackedInputsF64{
      .problem = problem, .q = r.q.data, .k = r.k.data, .v = r.v.data, .dout = r.dout.data});
  r.delta = as_matrix(r.lse.rows, r.lse.cols, std::move(attention.delta));
  r.dq_seq = as_matrix(r.o.rows, r.o.cols, std::move(attention.dq_seq));
  r.dq = as_matrix(r.q.rows, r.q.cols, std::move(attention.dq));
  r.dk = as_matrix(r.k.rows, r.k.cols, std::move(attention.dk));
  r.dv = as_matrix(r.v.rows, r.v.cols, std::move(attention.dv));

  LinearGradients query = linear_backward(r.seed_norm, inputs.wq, r.dq);
  LinearGradients key = linear_backward(r.kv_norm, inputs.wk, r.dk);
  LinearGradients value = linear_backward(r.kv_norm, inputs.wv, r.dv);
  r.dseed_norm = std::move(query.dx);
  r.dkv_norm = std::move(key.dx);
  for (std::size_t i = 0; i < r.dkv_norm.data.size(); ++i) r.dkv_norm.data[i] += value.dx.data[i];
  r.dwq = std::move(query.dweight);
  r.dwk = std::move(key.dweight);
  r.dwv = std::move(value.dweight);

  RmsNormGradients seeds =
      rmsnorm_backward(inputs.seeds, inputs.seed_norm_weight, saved.seed_rstd, r.dseed_norm);
  RmsNormGradients kv =
      rmsnorm_backward(saved.kv, inputs.kv_norm_weight, saved.kv_rstd, r.dkv_norm);
  r.dseeds = std::move(seeds.dx);
  r.dkv = std::move(kv.dx);
  r.dseed_norm_weight = as_matrix(1, inputs.seeds.cols, std::move(seeds.dweight));
  r.dkv_norm_weight = as_matrix(1, saved.kv.cols, std::move(kv.dweight));
}

}  // namespace

void validate(const CrossAttentionInputs& inputs) {
  core::expect(!inputs.cu_seqlens_k.empty(), "cu_seqlens_k", "batch + 1 offsets", "none");
  const attention::AttentionProblem problem = problem_of(inputs, inputs.kv.rows);
  attention::validate(problem);
  const std::int64_t dim = inputs.seeds.cols;
  core::expect(dim >= 1, "seeds", "at least one column", core::text(dim));
  const std::int64_t width_q = inputs.num_heads * inputs.head_dim;
  const std::int64_t width_k = inputs.num_heads_kv * inputs.head_dim;
  const auto expect_shape = [](const Matrix<double>& matrix, const char* name, std::int64_t rows,
                               std::int64_t cols) {
    core::expect(matrix.rows == rows && matrix.cols == cols, name,
                 fmt::format("[{}, {}]", rows, cols),
                 fmt::format("[{}, {}]", matrix.rows, matrix.cols));
  };
  const auto expect_dim = [&](const std::vector<double>& weight, const char* name) {
    core::expect(std::int64_t(weight.size()) == dim, name, fmt::format("[{}]", dim),
                 fmt::format("[{}]", weight.size()));
  };
  expect_dim(inputs.seed_norm_weight, "seed_norm_weight");
  expect_dim(inputs.kv_norm_weight, "kv_norm_weight");
  expect_shape(inputs.kv, "kv", inputs.kv.rows, dim);
  expect_shape(inputs.wq, "wq", width_q, dim);
  expect_shape(inputs.wk, "wk", width_k, dim);
  expect_shape(inputs.wv, "wv", width_k, dim);
  expect_shape(inputs.wo, "wo", dim, width_q);
  if (inputs.dy.cols != 0) expect_shape(inputs.dy, "dy", problem.rows_o(), dim);
}

CrossAttentionResult cross_attention(const CrossAttentionInputs& inputs) {
  validate(inputs);
  Saved saved{.kv = inputs.kv, .seed_rstd = {}, .kv_rstd = {}};
  resize_rows(saved.kv, inputs.cu_seqlens_k.back());
  const attention::AttentionProblem problem = problem_of(inputs, saved.kv.rows);
  CrossAttentionResult r;
  RmsNormResult seeds = rmsnorm_forward(inputs.seeds, inputs.seed_norm_weight, inputs.eps);
  RmsNormResult kv = rmsnorm_forward(saved.kv, inputs.kv_norm_weight, inputs.eps);
  r.seed_norm = std::move(seeds.y);
  r.kv_norm = std::move(kv.y);
  saved.seed_rstd = std::move(seeds.rstd);
  saved.kv_rstd = std::move(kv.rstd);
  r.q = linear_forward(r.seed_norm, inputs.wq);
  r.k = linear_forward(r.kv_norm, inputs.wk);
  r.v = linear_forward(r.kv_norm, inputs.wv);
  PackedOutputs attention = batched_forward(
      PackedInputsF64{.problem = problem, .q = r.q.data, .k = r.k.data, .v = r.v.data, .dout = {}});
  r.o = as_matrix(problem.rows_o(), r.q.cols, std::move(attention.o));
  r.lse = as_matrix(inputs.num_heads, problem.rows_o(), std::move(attention.lse));
  r.y = linear_forward(r.o, inputs.wo);
  if (inputs.dy.cols != 0) backward(inputs, saved, r);
  for (Matrix<double>* tensor : {&r.kv_norm, &r.k, &r.v, &r.dk, &r.dv, &r.dkv_norm, &r.dkv}) {
    if (tensor->cols != 0) resize_rows(*tensor, inputs.kv.rows);
  }
  return r;
}

}  // namespace mxfa::reference
