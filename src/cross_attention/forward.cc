#include "core/workspace.h"
#include "cross_attention/layout.h"

namespace mxfa::cross_attention {
namespace {

struct Call {
  Layout::Projections projections;
  Tensor o;  ///< of the output's product
  attention::ForwardArgs attention;
  std::span<std::byte> attention_workspace;
};

/// Checks the attention's arguments, too.
Call make_call(const Inputs& inputs, const Activations& a, const Shape& shape,
               const Options& options, core::Arena& arena) {
  const Layout layout(shape, options, arena);
  Call call{.projections = layout.projections(inputs),
            .o = layout.o_operand(a.o),
            .attention = {.q = a.q,
                          .k = a.k,
                          .v = a.v,
                          .cu_seqlens_q = {},
                          .cu_seqlens_k = shape.offsets_k(),
                          .o = a.o,
                          .lse = a.lse,
                          .row_max = a.row_max},
            .attention_workspace = {}};
  const std::int64_t bytes =
      attention::forward_workspace_bytes(call.attention, attention_options(options));
  call.attention_workspace = arena.take_span(bytes);
  return call;
}

void norm(const TensorView& x, const TensorView& weight, const TensorView& cu_seqlens,
          const Tensor& y, const TensorView& rstd, const Options& options) {
  producers::rmsnorm({.x = x,
                      .weight = weight,
                      .eps = options.eps,
                      .cu_seqlens = cu_seqlens,
                      .y = y,
                      .rstd = rstd,
                      .rule = options.scale_rule},
                     options.backend);
}

void project(const producers::Matrix& x, const Tensor& weight, const Tensor& y,
             const Options& options) {
  producers::project({.x = x,
                      .w = {.tensor = weight},
                      .y = y,
                      .block_shape = attention::operand_shape(attention_options(options)),
                      .rule = options.scale_rule,
                      .cu_seqlens = x.cu_seqlens},
                     options.backend);
}

}  // namespace

std::int64_t forward_workspace_bytes(const Inputs& inputs, const Options& options) {
  const Shape shape(inputs, options);
  core::Arena activations, counter;
  make_call(inputs, Layout(shape, options, activations).activations(), shape, options, counter);
  return counter.used();
}

void forward(const Inputs& inputs, const Activations& a, const TensorView& y,
             const Options& options, std::span<std::byte> workspace) {
  const Shape shape(inputs, options);
  check_activations(a, shape, options);
  check_y(y, shape);
  dispatch::Overlaps tensors;
  add_inputs(tensors, inputs);
  add_activations(tensors, a, true);
  tensors.output(y, "y");
  tensors.workspace(workspace);
  tensors.check();
  core::with_workspace(
      workspace, [&](core::Arena& arena) { return make_call(inputs, a, shape, options, arena); },
      [&](const Call& call) {
        store(inputs, call.projections, options);
        norm(inputs.seeds, inputs.seed_norm_weight, {}, a.seed_norm, a.seed_rstd, options);
        norm(inputs.kv, inputs.kv_norm_weight, shape.offsets_k(), a.kv_norm, a.kv_rstd, options);
        project(seed_rows(a.seed_norm), call.projections.q, a.q, options);
        project(key_rows(a.kv_norm, shape), call.projections.k, a.k, options);
        project(key_rows(a.kv_norm, shape), call.projections.v, a.v, options);
        attention::forward(call.attention, attention_options(options), call.attention_workspace);
        store(a.o.values, call.o, shape.offsets_o(), options);
        producers::gemm(output_rows(call.o, shape), transposed({.tensor = call.projections.o}), y,
                        options.backend);
      });
}

}  // namespace mxfa::cross_attention
