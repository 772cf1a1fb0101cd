#include "core/check.h"
#include "dispatch/gpu/architectures.h"
#include "dispatch/refuse.h"
#include "kernels/sm90/backward/launch.h"

namespace mxfa::dispatch {
namespace {

void check_rows(const DeviceRows& x, std::string_view name, int strides, int address) {
  if (!x.given()) return;
  if (x.dtype() != DType::kBF16) {
    unsupported(name, "bf16 in a backward on sm_90a", dtype_name(x.dtype()));
  }
  if (x.batch_stride != 0) {
    unsupported(name, "sequences side by side in a backward on sm_90a", "another batch stride");
  }
  core::expect(
      x.token_stride % strides == 0 && x.head_stride % strides == 0 &&
          reinterpret_cast<std::uintptr_t>(x.data()) % static_cast<unsigned>(address) == 0,
      name,
      core::later("strides that are multiples of {} and an address on {} bytes", strides, address),
      core::later("strides {}, {}, address {}", x.token_stride, x.head_stride, fmt::ptr(x.data())));
}

void check(const BackwardProblem& problem) {
  const attention::Options& options = problem.options;
  for (const auto& [set, name] :
       {std::pair(options.qk_bf16, "qk_bf16"), std::pair(options.leak_free, "leak_free"),
        std::pair(options.half_scores, "half_scores")}) {
    if (set) unsupported(name, "false in a backward on sm_90a", "true");
  }
  for (const auto& [tensor, name] :
       {std::pair(&problem.args.delta, "delta"), std::pair(&problem.args.dq_seq, "dq_seq")}) {
    if (tensor->rank > 0) {
      unsupported(name, "none in a backward on sm_90a", core::text(*tensor));
    }
  }
  core::expect(sm90::backward::is_dq_exponent(options.dq_exponent), "dq_exponent",
               sm90::backward::kDqExponents, options.dq_exponent);
  if (options.deterministic && !sm90::backward::dq_has_order(options.broadcast_q, problem.mask)) {
    unsupported("deterministic", "false on sm_90a where q is broadcast under a mask", "true");
  }
  core::expect(problem.args.row_max.rank > 0, "row_max", "the forward's, in the Hopper recipe",
               "none");
  check_row_max(problem.args.row_max, problem.args.lse);
  check_rows(problem.o, "o", 4, 8);
  check_rows(problem.dq, "dq", 2, 4);
  check_rows(problem.dk, "dk", 2, 4);
  check_rows(problem.dv, "dv", 2, 4);
}

sm90::backward::GradientOut gradient(const DeviceRows& x) {
  if (!x.given()) return {};
  return {.data = static_cast<std::uint16_t*>(x.data()),
          .token_stride = x.token_stride,
          .head_stride = x.head_stride};
}

/// `memory`: operands, then the kernels' own; null: for its size alone.
sm90::backward::BackwardCall call_of(const BackwardProblem& problem, void* memory) {
  const device::AttentionOperands operands = device::operands_in(problem.operands, memory);
  const attention::BackwardArgs& args = problem.args;
  const attention::Options& options = problem.options;
  return {
      .q = operands.q,
      .k = operands.k,
      .v = operands.v,
      .dout = operands.dout,
      .broadcast_q = problem.operands.broadcast_q,
      .mask = problem.mask,
      .softmax_scale = problem.softmax_scale,
      .o = static_cast<const std::uint16_t*>(problem.o.data()),
      .o_token_stride = problem.o.token_stride,
      .o_head_stride = problem.o.head_stride,
      .lse = static_cast<const float*>(args.lse.data),
      .row_max = static_cast<const float*>(args.row_max.data),
      .lse_head_stride = args.lse.strides[0],
      .columns = problem.operands.head_dim,
      .dq = gradient(problem.dq),
      .dk = gradient(problem.dk),
      .dv = gradient(problem.dv),
      .dq_sums = options.dq_accum == DType::kF16 ? sm90::backward::DqSums::kF16
                                                 : sm90::backward::DqSums::kF32,
      .dq_exponent = options.dq_exponent,
      .deterministic = options.deterministic,
      .dq_overflows = static_cast<unsigned long long*>(args.dq_overflows.data),
      .workspace = memory == nullptr ? nullptr : static_cast<std::byte*>(memory) + operands.bytes};
}

std::int64_t workspace_bytes(const BackwardProblem& problem) {
  return device::operands_bytes(problem.operands) +
         sm90::backward::backward_workspace_bytes(problem.queue.device, call_of(problem, nullptr));
}

void prepare(const BackwardProblem& problem, void* workspace) {
  device::prepare_operands(problem.queue, problem.operands, workspace);
}

void attend(const BackwardProblem& problem, void* workspace,
            const device::ClearBehindParams& behind) {
  sm90::backward::attention_backward(problem.queue, call_of(problem, workspace));
  device::clear_behind(problem.queue, behind);
}

}  // namespace

const BackwardKernels kSm90Backward{check, workspace_bytes, prepare, attend};

}  // namespace mxfa::dispatch
