#include "cross_attention/shape.h"

#include <cmath>

#include "core/check.h"
#include "dispatch/members.h"
#include "dispatch/validate.h"

namespace mxfa::cross_attention {
namespace {

void check_options(const Options& options) {
  dispatch::check_backend(options.backend);
  dispatch::check_member(options.precision, "precision");
  dispatch::check_member(options.recipe, "recipe");
  dispatch::check_member(options.scale_rule, "scale_rule");
  core::expect(options.num_heads >= 1, "num_heads", "at least 1", options.num_heads);
  core::expect(options.num_heads_kv >= 0, "num_heads_kv", "at least 0", options.num_heads_kv);
  core::expect(options.eps >= 0 && std::isfinite(static_cast<float>(options.eps)), "eps",
               "a finite number of at least 0", core::later("{}", options.eps));
}

void check_matrix(const TensorView& tensor, std::string_view name) {
  dispatch::check_tensor(tensor, name);
  dispatch::check_dtype(tensor, name, {DType::kBF16, DType::kF16, DType::kF32});
  core::expect(tensor.rank == 2, name, "a matrix", tensor);
}
void check_floats(const TensorView& tensor, std::string_view name,
                  const std::vector<std::int64_t>& shape) {
  dispatch::check_tensor(tensor, name);
  dispatch::check_dtype(tensor, name, {DType::kBF16, DType::kF16, DType::kF32});
  dispatch::check_shape(tensor, name, shape);
}

}  // namespace

Shape::Shape(const Inputs& inputs, const Options& options) {
  check_options(options);
  check_matrix(inputs.seeds, "seeds");
  seqlen_q = inputs.seeds.shape[0];
  dim = inputs.seeds.shape[1];
  constexpr std::int64_t kMostColumns = 16384;  // of RMSNorm
  core::expect(dim >= 1 && dim <= kMostColumns, "seeds",
               core::later("1 to {} columns", kMostColumns), inputs.seeds);
  check_matrix(inputs.kv, "kv");
  total_k = inputs.kv.shape[0];
  check_floats(inputs.kv, "kv", {total_k, dim});
  check_floats(inputs.seed_norm_weight, "seed_norm_weight", {dim});
  check_floats(inputs.kv_norm_weight, "kv_norm_weight", {dim});
  num_heads = options.num_heads;
  num_heads_kv = options.num_heads_kv == 0 ? num_heads : options.num_heads_kv;
  core::expect(num_heads % num_heads_kv == 0, "num_heads",
               core::later("a multiple of num_heads_kv = {}", num_heads_kv), num_heads);
  check_matrix(inputs.wq, "wq");
  core::expect(inputs.wq.shape[0] % num_heads == 0 && inputs.wq.shape[0] > 0, "wq",
               core::later("a multiple of num_heads = {} rows", num_heads), inputs.wq);
  head_dim = inputs.wq.shape[0] / num_heads;
  check_floats(inputs.wq, "wq", {num_heads * head_dim, dim});
  check_floats(inputs.wk, "wk", {num_heads_kv * head_dim, dim});
  check_floats(inputs.wv, "wv", {num_heads_kv * head_dim, dim});
  check_floats(inputs.wo, "wo", {dim, num_heads * head_dim});
  cu_seqlens_k = dispatch::read_cu_seqlens(inputs.cu_seqlens_k, "cu_seqlens_k",
                                           {.total = total_k, .max_seqlen = options.max_seqlen_k});
  batch = std::ssize(cu_seqlens_k) - 1;
  core::expect(rows_o() <= INT32_MAX, "seeds", "batch * seqlen_q below 2^31", rows_o());
  for (std::int64_t s = 0; s <= batch; ++s) {
    cu_seqlens_o.push_back(static_cast<std::int32_t>(s * seqlen_q));
  }
}

TensorView Shape::view(const std::vector<std::int32_t>& offsets) {
  return make_tensor(const_cast<std::int32_t*>(offsets.data()), DType::kI32, {std::ssize(offsets)});
}

bool is_mxfp8(const Options& options) { return options.precision == attention::Precision::kMxfp8; }
bool has_mxfp8_queries(const Options& options) {
  return is_mxfp8(options) && !options.queries_bf16;
}

attention::Options attention_options(const Options& options) {
  attention::Options result;
  result.precision = options.precision;
  result.recipe = options.recipe;
  result.softmax_scale = options.softmax_scale;
  result.broadcast_q = true;
  result.max_seqlen_k = options.max_seqlen_k;
  result.scale_rule = options.scale_rule;
  return result;
}

void check_y(const TensorView& y, const Shape& shape) {
  dispatch::check_output(y, "y");
  dispatch::check_dtype(y, "y", {DType::kF32, DType::kBF16});
  dispatch::check_shape(y, "y", std::vector{shape.rows_o(), shape.dim});
}

void check_dy(const TensorView& dy, const Shape& shape) {
  check_floats(dy, "dy", {shape.rows_o(), shape.dim});
}

}  // namespace mxfa::cross_attention
