#include "core/check.h"
#include "device/block_scaled.h"
#include "device/ragged_map.h"
#include "dispatch/gpu/architectures.h"
#include "dispatch/refuse.h"
#include "kernels/sm100/forward/launch.h"

namespace mxfa::dispatch {
namespace {

using sm100::forward::PScale;

PScale p_scale_of(const attention::Options& options) {
  switch (options.p_scale) {
    case attention::PScale::kConstant:
      return PScale::kConstant;
    case attention::PScale::kBlockAmax:
      return PScale::kBlockAmax;
    case attention::PScale::kBlockRowMax:
      return PScale::kBlockRowMax;
  }
  refuse("p_scale", "one of its values", core::text(static_cast<std::int64_t>(options.p_scale)));
}

/// Of tensors that the copy engine reads or writes where they lie.
void check_token_stride(std::int64_t stride, DType dtype, std::string_view name) {
  const std::int64_t bytes = stride * static_cast<std::int64_t>(dtype_size(dtype));
  core::expect(bytes < device::kRaggedStrideEnd, name,
               "a stride of tokens below 2^34 bytes on Blackwell", core::later("{} bytes", bytes));
}

void check(const ForwardProblem& problem) {
  const attention::Options& options = problem.options;
  if (options.qk_bf16) unsupported("qk_bf16", "false on Blackwell", "true");
  if (options.dp_bf16) unsupported("dp_bf16", "false on Blackwell", "true");
  if (options.half_scores) unsupported("half_scores", "false on Blackwell", "true");
  if (options.leak_free && p_scale_of(options) != PScale::kConstant) {
    unsupported("p_scale", "constant where leak_free is set", "block scales");
  }
  const DeviceRows& o = problem.o;
  if (o.batch_stride != 0) {
    unsupported("o", "sequences side by side on Blackwell", "another batch stride");
  }
  if (o.dtype() == DType::kF32) {
    unsupported("o", "bf16 or e4m3 on Blackwell", dtype_name(o.dtype()));
  }
  core::expect(
      o.token_stride % 8 == 0 && o.head_stride % 8 == 0 &&
          reinterpret_cast<std::uintptr_t>(o.data()) % 16 == 0,
      "o", "strides that are multiples of 8 and an address on 16 bytes",
      core::later("strides {}, {}, address {}", o.token_stride, o.head_stride, fmt::ptr(o.data())));
  check_row_max(problem.args.row_max, problem.args.lse);
  check_token_stride(o.token_stride, o.dtype(), "o");
  const device::OperandsSpec& spec = problem.operands;
  for (const auto& [input, name] :
       {std::pair(&spec.q, "q"), std::pair(&spec.k, "k"), std::pair(&spec.v, "v")}) {
    if (input->dtype == DType::kE4M3) check_token_stride(input->token_stride, input->dtype, name);
  }
}

std::int64_t workspace_bytes(const ForwardProblem& problem) {
  return device::block_scaled_bytes(problem.operands) +
         sm100::forward::forward_workspace_bytes(problem.operands.k_sequences.batch);
}

void launch(const ForwardProblem& problem, const device::BlockScaledOperands& operands,
            void* workspace, device::Phase phase) {
  const attention::ForwardArgs& args = problem.args;
  const DeviceRows& o = problem.o;
  sm100::forward::ForwardCall call{.q = operands.q,
                                   .k = operands.k,
                                   .v = operands.v,
                                   .leak_free = problem.operands.leak_free,
                                   .broadcast_q = problem.operands.broadcast_q,
                                   .mask = problem.mask,
                                   .softmax_scale = problem.softmax_scale,
                                   .p_scale = p_scale_of(problem.options),
                                   .columns = problem.operands.head_dim,
                                   .lse = static_cast<float*>(args.lse.data),
                                   .row_max = static_cast<float*>(args.row_max.data),
                                   .lse_head_stride = args.lse.strides[0],
                                   .workspace = static_cast<std::byte*>(workspace) +
                                                device::block_scaled_bytes(problem.operands),
                                   .phase = phase};
  if (o.dtype() == DType::kE4M3) {
    call.o_mxfp8 = mxfp8_rows(o, problem.options.output_shape);
  } else {
    call.o = static_cast<std::uint16_t*>(o.data());
    call.o_token_stride = o.token_stride;
    call.o_head_stride = o.head_stride;
  }
  sm100::forward::attention_forward(problem.queue, call);
}

void prepare(const ForwardProblem& problem, void* workspace) {
  launch(problem, device::prepare_block_scaled(problem.queue, problem.operands, workspace),
         workspace, device::Phase::kPlan);
}

void attend(const ForwardProblem& problem, void* workspace,
            const device::ClearBehindParams& behind) {
  launch(problem, device::block_scaled_in(problem.operands, workspace), workspace,
         device::Phase::kAttend);
  device::clear_behind(problem.queue, behind);
}

}  // namespace

const ForwardKernels kSm100Forward{check, workspace_bytes, prepare, attend};

}  // namespace mxfa::dispatch
