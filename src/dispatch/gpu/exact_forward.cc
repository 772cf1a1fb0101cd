#include <numbers>

#include "device/exact_attention.h"
#include "dispatch/gpu/architectures.h"
#include "dispatch/refuse.h"

namespace mxfa::dispatch {
namespace {

void check(const ForwardProblem& problem) {
  if (problem.options.recipe != attention::Recipe::kHopper) {
    unsupported("recipe", "hopper where attention is exact", "another");
  }
  if (problem.options.qk_bf16) unsupported("qk_bf16", "false where attention is exact", "true");
  if (problem.options.dp_bf16) unsupported("dp_bf16", "false where attention is exact", "true");
  if (problem.o.batch_stride != 0) {
    unsupported("o", "sequences side by side where attention is exact", "another batch stride");
  }
  const DType dtype = problem.o.dtype();
  if (dtype != DType::kBF16 && dtype != DType::kF32) {
    unsupported("o", "bf16 or f32 where attention is exact", dtype_name(dtype));
  }
}

std::int64_t workspace_bytes(const ForwardProblem& problem) {
  return device::operands_bytes(problem.operands);
}

void prepare(const ForwardProblem& problem, void* workspace) {
  device::prepare_operands(problem.queue, problem.operands, workspace);
}

void attend(const ForwardProblem& problem, void* workspace,
            const device::ClearBehindParams& behind) {
  const device::AttentionOperands operands = device::operands_in(problem.operands, workspace);
  const attention::ForwardArgs& args = problem.args;
  device::exact_attention(
      problem.queue, {.q = operands.q,
                      .k = operands.k,
                      .v = operands.v,
                      .broadcast_q = problem.operands.broadcast_q,
                      .mask = problem.mask,
                      .scale_log2 = static_cast<float>(problem.softmax_scale * std::numbers::log2e),
                      .rows = problem.rows_o(),
                      .o = problem.o.data(),
                      .o_f32 = problem.o.dtype() == DType::kF32,
                      .o_token_stride = problem.o.token_stride,
                      .o_head_stride = problem.o.head_stride,
                      .columns = problem.operands.head_dim,
                      .lse = static_cast<float*>(args.lse.data),
                      .lse_head_stride = args.lse.strides[0],
                      .row_max = static_cast<float*>(args.row_max.data),
                      .row_max_head_stride = args.row_max.strides[0]});
  device::clear_behind(problem.queue, behind);
}

}  // namespace

const ForwardKernels kExactForward{check, workspace_bytes, prepare, attend};

}  // namespace mxfa::dispatch
