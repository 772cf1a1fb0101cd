#include "core/check.h"
#include "dispatch/gpu/architectures.h"
#include "dispatch/gpu/sm90_bf16_rows.h"
#include "dispatch/refuse.h"
#include "kernels/sm90/forward/launch.h"

namespace mxfa::dispatch {
namespace {

void check_o(const ForwardProblem& problem) {
  const DeviceRows& o = problem.o;
  if (o.dtype() == DType::kF32) unsupported("o", "bf16 or e4m3 on sm_90a", dtype_name(o.dtype()));
  if (o.dtype() == DType::kE4M3 && o.batch_stride != 0) {
    unsupported("o", "e4m3 whose sequences lie side by side on sm_90a", "another batch stride");
  }
  const std::size_t alignment = o.dtype() == DType::kBF16 ? 4 : 2;
  core::expect(o.token_stride % 2 == 0 && o.head_stride % 2 == 0 && o.batch_stride % 2 == 0 &&
                   reinterpret_cast<std::uintptr_t>(o.data()) % alignment == 0,
               "o", core::later("even strides and an address on {} bytes", alignment),
               core::later("strides {}, {}, {}, address {}", o.batch_stride, o.token_stride,
                           o.head_stride, fmt::ptr(o.data())));
}

void check(const ForwardProblem& problem) {
  const attention::Options& options = problem.options;
  const device::OperandsSpec& spec = problem.operands;
  if (options.qk_bf16 && (options.leak_free || options.half_scores)) {
    unsupported("qk_bf16", "false beside leak_free or half_scores on sm_90a", "true");
  }
  if (options.qk_bf16) {
    check_bf16_rows(spec.q, "q", spec.q_sequences, "qk_bf16");
    check_bf16_rows(spec.k, "k", spec.k_sequences, "qk_bf16");
  }
  check_o(problem);
  check_row_max(problem.args.row_max, problem.args.lse);
}

std::int64_t workspace_bytes(const ForwardProblem& problem) {
  return device::operands_bytes(problem.operands) +
         sm90::forward::forward_workspace_bytes(problem.queue.device,
                                                problem.operands.k_sequences.batch);
}

void launch(const ForwardProblem& problem, const device::AttentionOperands& operands,
            void* workspace, device::Phase phase, const device::ClearBehindParams& behind) {
  const device::OperandsSpec& spec = problem.operands;
  const DeviceRows& o = problem.o;
  sm90::forward::ForwardCall call{
      .q = operands.q,
      .k = operands.k,
      .v = operands.v,
      .broadcast_q = spec.broadcast_q,
      .mask = problem.mask,
      .softmax_scale = problem.softmax_scale,
      .scores = spec.half_scores ? sm90::forward::Scores::kF16 : sm90::forward::Scores::kF32,
      .columns = spec.head_dim,
      .lse = static_cast<float*>(problem.args.lse.data),
      .row_max = static_cast<float*>(problem.args.row_max.data),
      .lse_head_stride = problem.args.lse.strides[0],
      .workspace = static_cast<std::byte*>(workspace) + operands.bytes,
      .phase = phase,
      .behind = behind};
  if (spec.bf16_scores) {
    call.q_bf16 = bf16_rows(spec.q);
    call.k_bf16 = bf16_rows(spec.k);
  }
  if (o.dtype() == DType::kE4M3) {
    call.o_mxfp8 = mxfp8_rows(o, problem.options.output_shape);
  } else {
    call.o = static_cast<std::uint16_t*>(o.data());
    call.o_token_stride = o.token_stride;
    call.o_head_stride = o.head_stride;
    call.o_batch_stride = o.batch_stride;
  }
  sm90::forward::attention_forward(problem.queue, call);
}

void prepare(const ForwardProblem& problem, void* workspace) {
  launch(problem, device::prepare_operands(problem.queue, problem.operands, workspace), workspace,
         device::Phase::kPlan, {});
}

void attend(const ForwardProblem& problem, void* workspace,
            const device::ClearBehindParams& behind) {
  launch(problem, device::operands_in(problem.operands, workspace), workspace,
         device::Phase::kAttend, behind);
}

}  // namespace

const ForwardKernels kSm90Forward{check, workspace_bytes, prepare, attend};

}  // namespace mxfa::dispatch
