#include "core/check.h"
#include "dispatch/attention_problem.h"
#include "dispatch/device_calls.h"
#include "dispatch/gpu/architectures.h"
#include "dispatch/gpu/behind.h"
#include "dispatch/gpu/device_memory.h"
#include "dispatch/gpu/phases.h"
#include "dispatch/refuse.h"
#include "dispatch/validate.h"

namespace mxfa::dispatch {
namespace {

void check_overflows(const TensorView& x, const driver::Device& device) {
  if (x.rank == 0) return;
  check_output(x, "dq_overflows");
  check_dtype(x, "dq_overflows", {DType::kI64});
  check_shape(x, "dq_overflows", std::array{std::int64_t{1}});
  expect_on_device(device, x.data, "dq_overflows");
}

BackwardProblem make_problem(const attention::BackwardArgs& args,
                             const attention::Options& options) {
  core::expect(options.dq_accum == DType::kF32 || options.dq_accum == DType::kF16, "dq_accum",
               "f32 or f16", dtype_name(options.dq_accum));
  check_dq_exponent(options);
  BackwardProblem problem{make_device_problem({.q = args.q,
                                               .k = args.k,
                                               .v = args.v,
                                               .cu_seqlens_q = args.cu_seqlens_q,
                                               .cu_seqlens_k = args.cu_seqlens_k},
                                              options),
                          args,
                          {},
                          {},
                          {},
                          {}};
  device::OperandsSpec& spec = problem.operands;
  spec.forward = false;
  spec.backward = true;
  spec.bf16_dp = options.dp_bf16;
  check_tensor(args.dout.values, "dout");
  spec.dout = device_input(args.dout, "dout", problem, Side::kO, attention::dout_shape(options));
  core::expect(args.o.given(), "o", "the forward's", "none");
  problem.o = device_rows(args.o, "o", problem, Side::kO);
  check_row_values(args.lse, "lse", problem);
  if (args.row_max.rank != 0) check_row_values(args.row_max, "row_max", problem);
  problem.dq = device_rows(args.dq, "dq", problem, Side::kQ);
  problem.dk = device_rows(args.dk, "dk", problem, Side::kK);
  problem.dv = device_rows(args.dv, "dv", problem, Side::kK);
  check_tiled_scales(args.dk_tiled, args.dk, "dk", problem, Side::kK);
  check_tiled_scales(args.dv_tiled, args.dv, "dv", problem, Side::kK);
  check_overflows(args.dq_overflows, problem.queue.device);
  return problem;
}

const BackwardKernels& kernels_of(const BackwardProblem& problem) {
  const attention::Options& options = problem.options;
  if (options.exact) unsupported("exact", "false in a backward", "true");
  const Architecture& own = expect_architecture(options, "attention");
  if (own.backward == nullptr) {
    unsupported("device", "an architecture that has attention::backward (sm_90a)", own.arch);
  }
  if (options.p_scale != attention::PScale::kConstant) {
    refuse_block_scales();
  }
  own.backward->check(problem);
  return *own.backward;
}

device::ClearBehindParams behind_of(const BackwardProblem& problem) {
  Behind behind(problem);
  behind.add_rows(problem.dq, Side::kQ);
  behind.add_rows(problem.dk, Side::kK);
  behind.add_rows(problem.dv, Side::kK);
  return behind.params();
}

}  // namespace

std::int64_t device_backward_workspace_bytes(const attention::BackwardArgs& args,
                                             const attention::Options& options) {
  const driver::CurrentDevice current(options.device->state().device);
  const BackwardProblem problem = make_problem(args, options);
  return workspace_bytes(problem, kernels_of(problem));
}

void device_backward(const attention::BackwardArgs& args, const attention::Options& options,
                     std::span<std::byte> workspace, const Phases& phases) {
  internal::DeviceState& state = options.device->state();
  const driver::CurrentDevice current(state.device);
  const auto run = [&] {
    BackwardProblem problem = make_problem(args, options);
    run_phases(problem, kernels_of(problem), workspace, phases, behind_of);
  };
  if (phases.prepare) return run();
  run_prepared(state.backwards, {args, options, workspace}, run);
}

}  // namespace mxfa::dispatch
