#pragma once

#include <algorithm>
#include <span>

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

}  // namespace mxfa::testing
