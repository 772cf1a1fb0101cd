#include "core/check.h"
#include "device/block_scaled.h"
#include "dispatch/gpu/architectures.h"
#include "dispatch/refuse.h"
#include "kernels/sm100/forward/launch.h"

namespace mxfa::dispatch {
namespace {

void check(const ForwardProblem& problem) {
  const attention::Options& options = problem.options;
  if (options.qk_bf16) unsupported("qk_bf16", "false on Blackwell", "true");
  if (options.half_scores) unsupported("half_scores", "false on Blackwell", "true");
  if (problem.args.q.values.dtype == DType::kE4M3)
    unsupported("q", "bf16 or f32 on Blackwell", dtype_name(DType::kE4M3));
  const DeviceRows& o = problem.o;
  if (o.batch_stride != 0) {
    unsupported("o", "sequences side by side on Blackwell", "another batch stride");
  }
  if (o.dtype() != DType::kBF16) unsupported("o", "bf16 on Blackwell", dtype_name(o.dtype()));
  core::expect(
      o.token_stride % 8 == 0 && o.head_stride % 8 == 0 &&
          reinterpret_cast<std::uintptr_t>(o.data()) % 16 == 0,
      "o", "strides that are multiples of 8 and an address on 16 bytes",
      core::later("strides {}, {}, address {}", o.token_stride, o.head_stride, fmt::ptr(o.data())));
  check_row_max(problem.args.row_max, problem.args.lse);
}

std::int64_t workspace_bytes(const ForwardProblem& problem) {
  return device::block_scaled_bytes(problem.operands) +
         sm100::forward::forward_workspace_bytes(problem.operands.k_sequences.batch);
}

void launch(const ForwardProblem& problem, const device::BlockScaledOperands& operands,
            void* workspace, device::Phase phase) {
  const attention::ForwardArgs& args = problem.args;
  sm100::forward::attention_forward(problem.queue,
                                    {.q = operands.q,
                                     .k = operands.k,
                                     .v = operands.v,
                                     .leak_free = problem.operands.leak_free,
                                     .broadcast_q = problem.operands.broadcast_q,
                                     .mask = problem.mask,
                                     .softmax_scale = problem.softmax_scale,
                                     .o = static_cast<std::uint16_t*>(problem.o.data()),
                                     .o_token_stride = problem.o.token_stride,
                                     .o_head_stride = problem.o.head_stride,
                                     .columns = problem.operands.head_dim,
                                     .lse = static_cast<float*>(args.lse.data),
                                     .row_max = static_cast<float*>(args.row_max.data),
                                     .lse_head_stride = args.lse.strides[0],
                                     .workspace = static_cast<std::byte*>(workspace) +
                                                  device::block_scaled_bytes(problem.operands),
                                     .phase = phase});
}

void prepare(const ForwardProblem& problem, void* workspace) {
  launch(problem, device::prepare_block_scaled(problem.queue, problem.operands, workspace),
         workspace, device::Phase::kPlan);
}

void attend(const ForwardProblem& problem, void* workspace) {
  launch(problem, device::block_scaled_in(problem.operands, workspace), workspace,
         device::Phase::kAttend);
}

}  // namespace

const ForwardKernels kSm100Forward{check, workspace_bytes, prepare, attend};

}  // namespace mxfa::dispatch
