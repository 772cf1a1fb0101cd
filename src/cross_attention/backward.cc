#include "core/workspace.h"
#include "cross_attention/layout.h"
#include "dispatch/validate.h"

namespace mxfa::cross_attention {
namespace {

struct Call {
  Layout::Projections projections;
  Tensor o, dy;  ///< of the output's products
  Intermediates own;
  attention::BackwardArgs attention;
  std::span<std::byte> attention_workspace;
};

/// What the caller wants.
struct Wanted {
  bool queries = true;  ///< anything before q
  bool keys = true;     ///< anything before k and v
};

/// Checks the attention's arguments, too.
Call make_call(const Inputs& inputs, const Activations& a, const TensorView& dy,
               const Intermediates* given, const Shape& shape, const Options& options,
               core::Arena& arena) {
  const Layout layout(shape, options, arena);
  Call call{.projections = layout.projections(inputs),
            .o = layout.o_operand(a.o),
            .dy = layout.dy_operand(dy),
            .own = given != nullptr ? *given : layout.gradients_of_attention(),
            .attention = {},
            .attention_workspace = {}};
  call.attention = {.q = a.q,
                    .k = a.k,
                    .v = a.v,
                    .cu_seqlens_q = {},
                    .cu_seqlens_k = shape.offsets_k(),
                    .o = a.o,
                    .lse = a.lse,
                    .row_max = a.row_max,
                    .dout = call.own.dout,
                    .dq = call.own.dq,
                    .dk = call.own.dk,
                    .dv = call.own.dv,
                    .delta = call.own.delta,
                    .dq_seq = call.own.dq_seq};
  const std::int64_t bytes =
      attention::backward_workspace_bytes(call.attention, attention_options(options));
  call.attention_workspace = arena.take_span(bytes);
  return call;
}

void check_gradient(const TensorView& gradient, const TensorView& input, std::string_view name) {
  if (gradient.rank == 0) return;
  const std::string full = fmt::format("gradients.{}", name);
  dispatch::check_output(gradient, full);
  dispatch::check_dtype(gradient, full, {DType::kF32, DType::kBF16});
  dispatch::check_shape(gradient, full, input.dims());
}
void check_gradients(const Gradients& gradients, const Inputs& inputs) {
  check_gradient(gradients.seeds, inputs.seeds, "seeds");
  check_gradient(gradients.kv, inputs.kv, "kv");
  check_gradient(gradients.seed_norm_weight, inputs.seed_norm_weight, "seed_norm_weight");
  check_gradient(gradients.kv_norm_weight, inputs.kv_norm_weight, "kv_norm_weight");
  check_gradient(gradients.wq, inputs.wq, "wq");
  check_gradient(gradients.wk, inputs.wk, "wk");
  check_gradient(gradients.wv, inputs.wv, "wv");
  check_gradient(gradients.wo, inputs.wo, "wo");
}

class Backward {
 public:
  Backward(const Inputs& inputs, const Activations& activations, const Gradients& gradients,
           const Shape& shape, const Options& options)
      : inputs_(inputs), a_(activations), g_(gradients), shape_(shape), options_(options) {
    wanted_.queries = g_.wq.rank + g_.seeds.rank + g_.seed_norm_weight.rank > 0;
    wanted_.keys = g_.wk.rank + g_.wv.rank + g_.kv.rank + g_.kv_norm_weight.rank > 0;
  }

  void run(const TensorView& dy, const Call& call, bool all) const {
    store(inputs_, call.projections, options_);
    store(dy, call.dy, shape_.offsets_o(), options_);
    const producers::Matrix dy_rows = output_rows(call.dy, shape_);
    if (g_.wo.rank > 0) store(a_.o.values, call.o, shape_.offsets_o(), options_);
    weight_gradient(dy_rows, output_rows(call.o, shape_), g_.wo);
    const bool queries = all || wanted_.queries;
    const bool keys = all || wanted_.keys;
    if (!queries && !keys) return;
    producers::project({.x = dy_rows,
                        .w = transposed({.tensor = call.projections.o}),
                        .y = call.own.dout,
                        .block_shape = attention::dout_shape(attention_options(options_)),
                        .rule = options_.scale_rule,
                        .cu_seqlens = shape_.offsets_o()},
                       options_.backend);
    attention::BackwardArgs args = call.attention;
    if (!queries) args.dq = {};
    if (!keys) args.dk = args.dv = {};
    attention::backward(args, attention_options(options_), call.attention_workspace);
    if (queries) through_queries(call);
    if (keys) through_keys(call);
  }

 private:
  /// dY^T X.
  void weight_gradient(const producers::Matrix& dy, const producers::Matrix& x,
                       const TensorView& gradient) const {
    if (gradient.rank > 0) producers::gemm(transposed(dy), x, gradient, options_.backend);
  }

  void through_queries(const Call& call) const {
    const producers::Matrix dq = seed_rows(call.own.dq);
    weight_gradient(dq, seed_rows(a_.seed_norm), g_.wq);
    const producers::Product product{dq, {.tensor = call.projections.q}};
    producers::rmsnorm_backward({.products = {&product, 1},
                                 .x = inputs_.seeds,
                                 .weight = inputs_.seed_norm_weight,
                                 .rstd = a_.seed_rstd,
                                 .dy = call.own.dseed_norm,
                                 .dx = g_.seeds,
                                 .dweight = g_.seed_norm_weight},
                                options_.backend);
  }

  void through_keys(const Call& call) const {
    const producers::Matrix dk = key_rows(call.own.dk, shape_);
    const producers::Matrix dv = key_rows(call.own.dv, shape_);
    weight_gradient(dk, key_rows(a_.kv_norm, shape_), g_.wk);
    weight_gradient(dv, key_rows(a_.kv_norm, shape_), g_.wv);
    const producers::Product products[] = {{dk, {.tensor = call.projections.k}},
                                           {dv, {.tensor = call.projections.v}}};
    producers::rmsnorm_backward({.products = products,
                                 .x = inputs_.kv,
                                 .weight = inputs_.kv_norm_weight,
                                 .rstd = a_.kv_rstd,
                                 .cu_seqlens = shape_.offsets_k(),
                                 .dy = call.own.dkv_norm,
                                 .dx = g_.kv,
                                 .dweight = g_.kv_norm_weight},
                                options_.backend);
  }

  const Inputs& inputs_;
  const Activations& a_;
  const Gradients& g_;
  const Shape& shape_;
  const Options& options_;
  Wanted wanted_;
};

}  // namespace

std::int64_t backward_workspace_bytes(const Inputs& inputs, const Options& options) {
  const Shape shape(inputs, options);
  core::Arena activations, counter;
  const TensorView dy = make_tensor(nullptr, DType::kBF16, {shape.rows_o(), shape.dim});
  make_call(inputs, Layout(shape, options, activations).activations(), dy, nullptr, shape, options,
            counter);
  return counter.used();
}

void backward(const Inputs& inputs, const Activations& activations, const TensorView& dy,
              const Gradients& gradients, const Options& options, std::span<std::byte> workspace,
              const Intermediates* intermediates) {
  const Shape shape(inputs, options);
  check_activations(activations, shape, options);
  check_dy(dy, shape);
  check_gradients(gradients, inputs);
  dispatch::Overlaps tensors;
  add_inputs(tensors, inputs);
  add_activations(tensors, activations, false);
  tensors.input(dy, "dy");
  add_gradients(tensors, gradients);
  if (intermediates != nullptr) {
    check_intermediates(*intermediates, shape, options);
    add_intermediates(tensors, *intermediates);
  }
  tensors.workspace(workspace);
  tensors.check();
  const Backward backward(inputs, activations, gradients, shape, options);
  core::with_workspace(
      workspace,
      [&](core::Arena& arena) {
        return make_call(inputs, activations, dy, intermediates, shape, options, arena);
      },
      [&](const Call& call) { backward.run(dy, call, intermediates != nullptr); });
}

}  // namespace mxfa::cross_attention
