#include "core/check.h"
#include "dispatch/gpu/architectures.h"
#include "dispatch/refuse.h"
#include "kernels/sm90/forward/launch.h"

namespace mxfa::dispatch {
namespace {

std::int64_t operands_bytes(const ForwardProblem& problem) {
  return device::operands_bytes(problem.operands);
}

void check(const ForwardProblem& problem) {
  if (problem.options.qk_bf16) unsupported("qk_bf16", "false on sm_90a", "true");
  if (problem.options.leak_free) unsupported("leak_free", "false on sm_90a", "true");
  const TensorView& o = problem.args.o.values;
  if (o.dtype != DType::kBF16) unsupported("o", "bf16 on sm_90a", dtype_name(o.dtype));
  if (!(problem.o_token_stride % 2 == 0 && problem.o_head_stride % 2 == 0 &&
        reinterpret_cast<std::uintptr_t>(o.data) % 4 == 0))
    refuse("o", "even strides and an address on 4 bytes",
           fmt::format("strides {}, {}, address {}", problem.o_token_stride, problem.o_head_stride,
                       fmt::ptr(o.data)));
  const TensorView& row_max = problem.args.row_max;
  if (!(row_max.rank == 0 || row_max.strides[0] == problem.args.lse.strides[0]))
    refuse("row_max", fmt::format("the strides of lse: {}", problem.args.lse.strides[0]),
           core::text(row_max.strides[0]));
}

std::int64_t workspace_bytes(const ForwardProblem& problem) {
  return operands_bytes(problem) + sm90::forward::forward_workspace_bytes(
                                       problem.queue.device, problem.operands.k_sequences.batch);
}

void prepare(const ForwardProblem& problem, void* workspace) {
  device::prepare_operands(problem.queue, problem.operands, workspace);
}

void attend(const ForwardProblem& problem, void* workspace) {
  const device::AttentionOperands operands = device::operands_in(problem.operands, workspace);
  const attention::ForwardArgs& args = problem.args;
  sm90::forward::attention_forward(
      problem.queue, {.q = operands.q,
                      .k = operands.k,
                      .v = operands.v,
                      .broadcast_q = problem.operands.broadcast_q,
                      .mask = problem.mask,
                      .softmax_scale = problem.softmax_scale,
                      .scores = problem.options.half_scores ? sm90::forward::Scores::kF16
                                                            : sm90::forward::Scores::kF32,
                      .o = static_cast<std::uint16_t*>(args.o.values.data),
                      .o_token_stride = problem.o_token_stride,
                      .o_head_stride = problem.o_head_stride,
                      .columns = problem.operands.head_dim,
                      .lse = static_cast<float*>(args.lse.data),
                      .row_max = static_cast<float*>(args.row_max.data),
                      .lse_head_stride = args.lse.strides[0],
                      .workspace = static_cast<std::byte*>(workspace) + operands_bytes(problem)});
}

}  // namespace

const ForwardKernels kSm90Forward{check, workspace_bytes, prepare, attend};

}  // namespace mxfa::dispatch
