#include "reference/recipe/panels.h"
#include "reference/recipe/recipe.h"

namespace mxfa::reference::recipe {

StepTensors run_step(const HeadInputs& inputs, const RecipeConfig& config) {
  RecipeConfig recording = config;
  recording.keep_intermediates = true;
  const Operands operands = quantize_operands(inputs, config);
  const HeadProblem problem{inputs.mask, inputs.softmax_scale};
  RecipeForward forward = recipe_forward(operands, problem, recording);
  StepTensors step;
  step.kern = kern_inputs(operands, problem, config);
  step.shift_v = operands.shift_v;
  if (inputs.dout.cols > 0) {
    RecipeBackward backward = recipe_backward(operands, problem, forward.saved, recording);
    step.dp = std::move(backward.dp);
    step.ds = std::move(backward.ds_dequantized);
    step.dq = std::move(backward.dq);
    step.dk = std::move(backward.dk);
    step.dv = std::move(backward.dv);
    step.dq_overflows = backward.dq_overflows;
  }
  step.s = std::move(forward.s);
  for (float& value : step.s.data) value *= internal::kLn2;
  step.p = std::move(forward.p_normalized);
  step.o = std::move(forward.saved.o);
  step.lse = std::move(forward.saved.lse);
  return step;
}

}  // namespace mxfa::reference::recipe
