#include "core/check.h"
#include "dispatch/device_calls.h"
#include "dispatch/gpu/architectures.h"
#include "dispatch/gpu/behind.h"
#include "dispatch/gpu/phases.h"

namespace mxfa::dispatch {
namespace {

ForwardProblem make_problem(const attention::ForwardArgs& args, const attention::Options& options) {
  ForwardProblem problem{make_device_problem({.q = args.q,
                                              .k = args.k,
                                              .v = args.v,
                                              .cu_seqlens_q = args.cu_seqlens_q,
                                              .cu_seqlens_k = args.cu_seqlens_k},
                                             options),
                         args,
                         {}};
  core::expect(args.o.given(), "o", "a tensor", "none");
  problem.o = device_rows(args.o, "o", problem, Side::kO);
  check_row_values(args.lse, "lse", problem);
  if (args.row_max.rank != 0) check_row_values(args.row_max, "row_max", problem);
  return problem;
}

const ForwardKernels& kernels_of(const ForwardProblem& problem) {
  const attention::Options& options = problem.options;
  const ForwardKernels& kernels =
      options.exact ? kExactForward : expect_architecture(options, "attention").forward;
  if (options.p_scale != attention::PScale::kConstant && &kernels != &kSm100Forward) {
    refuse_block_scales();
  }
  kernels.check(problem);
  return kernels;
}

device::ClearBehindParams behind_of(const ForwardProblem& problem) {
  const attention::ForwardArgs& args = problem.args;
  Behind behind(problem);
  behind.add_rows(problem.o, Side::kO);
  behind.add_row_values(args.lse);
  if (args.row_max.rank != 0) behind.add_row_values(args.row_max);
  return behind.params();
}

}  // namespace

std::int64_t device_forward_workspace_bytes(const attention::ForwardArgs& args,
                                            const attention::Options& options) {
  const driver::CurrentDevice current(options.device->state().device);
  const ForwardProblem problem = make_problem(args, options);
  return workspace_bytes(problem, kernels_of(problem));
}

void device_forward(const attention::ForwardArgs& args, const attention::Options& options,
                    std::span<std::byte> workspace, const Phases& phases) {
  internal::DeviceState& state = options.device->state();
  const driver::CurrentDevice current(state.device);
  const auto run = [&] {
    ForwardProblem problem = make_problem(args, options);
    run_phases(problem, kernels_of(problem), workspace, phases, behind_of);
  };
  if (phases.prepare) return run();
  run_prepared(state.forwards, {args, options, workspace}, run);
}

}  // namespace mxfa::dispatch
