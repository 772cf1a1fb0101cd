#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "cross_attention/module_call.h"

namespace mxfa::testing {

/// A step whose parts a case may spoil.
struct Parts {
  explicit Parts(const cross_attention::Options& options = {})
      : call(plain_shape().batch(), options) {}

  ModuleCall call;
  PoisonedMemory activation_memory{cross_attention::activation_bytes(call.inputs, call.options)};
  PoisonedMemory workspace{
      std::max(cross_attention::forward_workspace_bytes(call.inputs, call.options),
               cross_attention::backward_workspace_bytes(call.inputs, call.options))};
  PoisonedMemory intermediate_memory{
      cross_attention::intermediate_bytes(call.inputs, call.options)};
  cross_attention::Activations activations =
      make_activations(call.inputs, call.options, activation_memory.span());
  cross_attention::Intermediates intermediates =
      make_intermediates(call.inputs, call.options, intermediate_memory.span());
  std::span<std::byte> space = workspace.span();
  TensorView y = call.output();
  cross_attention::Gradients gradients = call.gradients();

  void forward() { cross_attention::forward(call.inputs, activations, y, call.options, space); }
  void backward() {
    cross_attention::backward(call.inputs, activations, call.dy_view, gradients, call.options,
                              space, &intermediates);
  }
};

/// A tensor of a step, by the name that errors give it.
struct Named {
  std::string name;
  TensorView* view;
};

inline void add(std::vector<Named>& list, const std::string& name, TensorView& view) {
  if (view.rank > 0) list.push_back({name, &view});
}
inline void add(std::vector<Named>& list, const std::string& name, Tensor& tensor) {
  add(list, name, tensor.values);
  add(list, name + ".scales", tensor.scales);
}

inline std::vector<Named> inputs_of(Parts& parts) {
  cross_attention::Inputs& in = parts.call.inputs;
  return {{"seeds", &in.seeds},
          {"kv", &in.kv},
          {"cu_seqlens_k", &in.cu_seqlens_k},
          {"seed_norm_weight", &in.seed_norm_weight},
          {"kv_norm_weight", &in.kv_norm_weight},
          {"wq", &in.wq},
          {"wk", &in.wk},
          {"wv", &in.wv},
          {"wo", &in.wo}};
}
inline std::vector<Named> activations_of(Parts& parts) {
  cross_attention::Activations& a = parts.activations;
  std::vector<Named> list;
  add(list, "activations.seed_norm", a.seed_norm);
  add(list, "activations.kv_norm", a.kv_norm);
  add(list, "activations.q", a.q);
  add(list, "activations.k", a.k);
  add(list, "activations.v", a.v);
  add(list, "activations.o", a.o);
  add(list, "activations.seed_rstd", a.seed_rstd);
  add(list, "activations.kv_rstd", a.kv_rstd);
  add(list, "activations.lse", a.lse);
  add(list, "activations.row_max", a.row_max);
  return list;
}
inline std::vector<Named> gradients_of(Parts& parts) {
  cross_attention::Gradients& g = parts.gradients;
  return {{"gradients.seeds", &g.seeds},
          {"gradients.kv", &g.kv},
          {"gradients.seed_norm_weight", &g.seed_norm_weight},
          {"gradients.kv_norm_weight", &g.kv_norm_weight},
          {"gradients.wq", &g.wq},
          {"gradients.wk", &g.wk},
          {"gradients.wv", &g.wv},
          {"gradients.wo", &g.wo}};
}
inline std::vector<Named> intermediates_of(Parts& parts) {
  cross_attention::Intermediates& m = parts.intermediates;
  std::vector<Named> list;
  add(list, "intermediates.dout", m.dout);
  add(list, "intermediates.delta", m.delta);
  add(list, "intermediates.dq_seq", m.dq_seq);
  add(list, "intermediates.dq", m.dq);
  add(list, "intermediates.dk", m.dk);
  add(list, "intermediates.dv", m.dv);
  add(list, "intermediates.dseed_norm", m.dseed_norm);
  add(list, "intermediates.dkv_norm", m.dkv_norm);
  return list;
}
inline std::vector<Named> joined(std::vector<Named> list, const std::vector<Named>& more) {
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

}  // namespace mxfa::testing
