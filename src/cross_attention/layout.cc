#include "cross_attention/layout.h"

#include <algorithm>
#include <string>

#include "core/check.h"
#include "core/workspace.h"
#include "dispatch/validate.h"
#include "mxfa/quantize.h"

namespace mxfa::cross_attention {
namespace {

using Dims = std::initializer_list<std::int64_t>;

void check_part(const TensorView& given, const TensorView& expected, const std::string& name) {
  const auto text = [](const TensorView& view) {
    return view.rank == 0 ? std::string("none") : core::text(view);
  };
  if (given.rank != 0) dispatch::check_tensor(given, name);
  const bool same =
      given.dtype == expected.dtype && std::ranges::equal(given.dims(), expected.dims());
  if (!same) core::expect(false, name, text(expected), text(given));
  if (expected.rank > 0) dispatch::check_output(given, name);
}
void check_part(const Tensor& given, const Tensor& expected, const std::string& name) {
  check_part(given.values, expected.values, name);
  check_part(given.scales, expected.scales, name + ".scales");
}

/// Calls visit(pointer to member, name) for each tensor.
template <class Visit>
void visit_activations(Visit visit) {
  visit(&Activations::seed_norm, "activations.seed_norm");
  visit(&Activations::kv_norm, "activations.kv_norm");
  visit(&Activations::q, "activations.q");
  visit(&Activations::k, "activations.k");
  visit(&Activations::v, "activations.v");
  visit(&Activations::o, "activations.o");
  visit(&Activations::seed_rstd, "activations.seed_rstd");
  visit(&Activations::kv_rstd, "activations.kv_rstd");
  visit(&Activations::lse, "activations.lse");
  visit(&Activations::row_max, "activations.row_max");
}
template <class Visit>
void visit_intermediates(Visit visit) {
  visit(&Intermediates::dout, "intermediates.dout");
  visit(&Intermediates::delta, "intermediates.delta");
  visit(&Intermediates::dq_seq, "intermediates.dq_seq");
  visit(&Intermediates::dq, "intermediates.dq");
  visit(&Intermediates::dk, "intermediates.dk");
  visit(&Intermediates::dv, "intermediates.dv");
  visit(&Intermediates::dseed_norm, "intermediates.dseed_norm");
  visit(&Intermediates::dkv_norm, "intermediates.dkv_norm");
}

}  // namespace

TensorView Layout::floats(Dims shape) const {
  TensorView view = make_tensor(nullptr, DType::kF32, shape);
  view.data = arena_.take<float>(view.num_elements());
  return view;
}

Tensor Layout::stored(bool mxfp8, Dims shape, Rows rows, BlockShape block_shape) const {
  Tensor tensor{.values = make_tensor(nullptr, mxfp8 ? DType::kE4M3 : DType::kBF16, shape)};
  if (!mxfp8) {
    tensor.values.data = arena_.take<std::uint16_t>(tensor.values.num_elements());
    return tensor;
  }
  QuantizeOptions options{.block_shape = block_shape};
  if (rows == Rows::kKeys) options.cu_seqlens = shape_.offsets_k();
  if (rows == Rows::kOutputs) options.cu_seqlens = shape_.offsets_o();
  tensor.values.data = arena_.take<std::uint8_t>(tensor.values.num_elements());
  const std::vector<std::int64_t> scales = scale_shape(tensor.values.dims(), options);
  tensor.scales = make_tensor(nullptr, DType::kE8M0, scales);
  tensor.scales.data = arena_.take<std::uint8_t>(tensor.scales.num_elements());
  return tensor;
}

Activations Layout::activations() const {
  const Shape& s = shape_;
  const bool mxfp8 = is_mxfp8(options_);
  const bool queries = has_mxfp8_queries(options_);
  const BlockShape block = attention::operand_shape(attention_options(options_));
  Activations a{.seed_norm = stored(queries, {s.seqlen_q, s.dim}, Rows::kSeeds),
                .kv_norm = stored(mxfp8, {s.total_k, s.dim}, Rows::kKeys),
                .q = stored(mxfp8, {s.seqlen_q, s.num_heads, s.head_dim}, Rows::kSeeds, block),
                .k = stored(mxfp8, {s.total_k, s.num_heads_kv, s.head_dim}, Rows::kKeys, block),
                .v = stored(mxfp8, {s.total_k, s.num_heads_kv, s.head_dim}, Rows::kKeys, block),
                .o = stored(false, {s.rows_o(), s.num_heads, s.head_dim}, Rows::kOutputs),
                .seed_rstd = floats({s.seqlen_q}),
                .kv_rstd = floats({s.total_k}),
                .lse = floats({s.num_heads, s.rows_o()}),
                .row_max = {}};
  if (mxfp8 && options_.recipe == attention::Recipe::kHopper) {
    a.row_max = floats({s.num_heads, s.rows_o()});
  }
  return a;
}

Intermediates Layout::gradients_of_attention() const {
  const Shape& s = shape_;
  const bool mxfp8 = is_mxfp8(options_);
  const BlockShape block = attention::dout_shape(attention_options(options_));
  Intermediates g;
  g.dout = stored(mxfp8, {s.rows_o(), s.num_heads, s.head_dim}, Rows::kOutputs, block);
  g.dq = stored(has_mxfp8_queries(options_), {s.seqlen_q, s.num_heads, s.head_dim}, Rows::kSeeds);
  g.dk = stored(mxfp8, {s.total_k, s.num_heads_kv, s.head_dim}, Rows::kKeys);
  g.dv = stored(mxfp8, {s.total_k, s.num_heads_kv, s.head_dim}, Rows::kKeys);
  return g;
}

Intermediates Layout::intermediates() const {
  const Shape& s = shape_;
  Intermediates all = gradients_of_attention();
  all.delta = floats({s.num_heads, s.rows_o()});
  all.dq_seq = floats({s.rows_o(), s.num_heads, s.head_dim});
  all.dseed_norm = floats({s.seqlen_q, s.dim});
  all.dkv_norm = floats({s.total_k, s.dim});
  return all;
}

Layout::Projections Layout::projections(const Inputs& inputs) const {
  const auto of = [&](const TensorView& weight, bool mxfp8) {
    if (!mxfp8) return Tensor{.values = weight};
    return stored(true, {weight.shape[0], weight.shape[1]}, Rows::kWeights);
  };
  const bool mxfp8 = is_mxfp8(options_);
  const bool queries = has_mxfp8_queries(options_);
  return {of(inputs.wq, queries), of(inputs.wk, mxfp8), of(inputs.wv, mxfp8),
          of(inputs.wo, queries)};
}

Tensor Layout::o_operand(const Tensor& o) const {
  if (!has_mxfp8_queries(options_)) return o;
  return stored(true, {shape_.rows_o(), shape_.num_heads, shape_.head_dim}, Rows::kOutputs);
}

Tensor Layout::dy_operand(const TensorView& dy) const {
  if (!has_mxfp8_queries(options_)) return {.values = dy};
  return stored(true, {shape_.rows_o(), shape_.dim}, Rows::kOutputs);
}

void check_activations(const Activations& given, const Shape& shape, const Options& options) {
  core::Arena counter;
  const Activations expected = Layout(shape, options, counter).activations();
  visit_activations(
      [&](auto member, const char* name) { check_part(given.*member, expected.*member, name); });
}

void check_intermediates(const Intermediates& given, const Shape& shape, const Options& options) {
  core::Arena counter;
  const Intermediates expected = Layout(shape, options, counter).intermediates();
  visit_intermediates(
      [&](auto member, const char* name) { check_part(given.*member, expected.*member, name); });
}

void add_inputs(dispatch::Overlaps& tensors, const Inputs& inputs) {
  tensors.input(inputs.seeds, "seeds");
  tensors.input(inputs.kv, "kv");
  tensors.input(inputs.cu_seqlens_k, "cu_seqlens_k");
  tensors.input(inputs.seed_norm_weight, "seed_norm_weight");
  tensors.input(inputs.kv_norm_weight, "kv_norm_weight");
  tensors.input(inputs.wq, "wq");
  tensors.input(inputs.wk, "wk");
  tensors.input(inputs.wv, "wv");
  tensors.input(inputs.wo, "wo");
}

void add_activations(dispatch::Overlaps& tensors, const Activations& activations, bool output) {
  visit_activations([&](auto member, const char* name) {
    if (output) {
      tensors.output(activations.*member, name);
    } else {
      tensors.input(activations.*member, name);
    }
  });
}

void add_gradients(dispatch::Overlaps& tensors, const Gradients& gradients) {
  tensors.output(gradients.seeds, "gradients.seeds");
  tensors.output(gradients.kv, "gradients.kv");
  tensors.output(gradients.seed_norm_weight, "gradients.seed_norm_weight");
  tensors.output(gradients.kv_norm_weight, "gradients.kv_norm_weight");
  tensors.output(gradients.wq, "gradients.wq");
  tensors.output(gradients.wk, "gradients.wk");
  tensors.output(gradients.wv, "gradients.wv");
  tensors.output(gradients.wo, "gradients.wo");
}

void add_intermediates(dispatch::Overlaps& tensors, const Intermediates& intermediates) {
  visit_intermediates(
      [&](auto member, const char* name) { tensors.output(intermediates.*member, name); });
}

producers::Matrix seed_rows(const Tensor& tensor) { return {.tensor = tensor}; }
producers::Matrix key_rows(const Tensor& tensor, const Shape& shape) {
  return {.tensor = tensor, .cu_seqlens = shape.offsets_k()};
}
producers::Matrix output_rows(const Tensor& tensor, const Shape& shape) {
  return {.tensor = tensor, .cu_seqlens = shape.offsets_o()};
}
producers::Matrix transposed(producers::Matrix matrix) {
  matrix.transposed = !matrix.transposed;
  return matrix;
}

void store(const TensorView& from, const Tensor& to, const TensorView& cu_seqlens,
           const Options& options) {
  if (to.values.dtype != DType::kE4M3) return;
  QuantizeOptions quantize_options{.rule = options.scale_rule};
  if (cu_seqlens.rank > 0) quantize_options.cu_seqlens = cu_seqlens;
  quantize(from, to.values, to.scales, quantize_options);
}

void store(const Inputs& inputs, const Layout::Projections& projections, const Options& options) {
  store(inputs.wq, projections.q, {}, options);
  store(inputs.wk, projections.k, {}, options);
  store(inputs.wv, projections.v, {}, options);
  store(inputs.wo, projections.o, {}, options);
}

Activations make_activations(const Inputs& inputs, const Options& options,
                             std::span<std::byte> memory) {
  const Shape shape(inputs, options);
  Activations result;
  core::with_memory(
      memory, "activations",
      [&](core::Arena& arena) { return Layout(shape, options, arena).activations(); },
      [&](const Activations& activations) { result = activations; });
  return result;
}

std::int64_t activation_bytes(const Inputs& inputs, const Options& options) {
  const Shape shape(inputs, options);
  core::Arena counter;
  Layout(shape, options, counter).activations();
  return counter.used();
}

Intermediates make_intermediates(const Inputs& inputs, const Options& options,
                                 std::span<std::byte> memory) {
  const Shape shape(inputs, options);
  Intermediates result;
  core::with_memory(
      memory, "intermediates",
      [&](core::Arena& arena) { return Layout(shape, options, arena).intermediates(); },
      [&](const Intermediates& intermediates) { result = intermediates; });
  return result;
}

std::int64_t intermediate_bytes(const Inputs& inputs, const Options& options) {
  const Shape shape(inputs, options);
  core::Arena counter;
  Layout(shape, options, counter).intermediates();
  return counter.used();
}

}  // namespace mxfa::cross_attention
