#pragma once

#include "dispatch/device_calls.h"
#include "dispatch/gpu/device_problem.h"
#include "dispatch/overlap.h"
#include "dispatch/refuse.h"

/// What a forward and a backward on a device do alike. Kernels: ForwardKernels or BackwardKernels,
/// with the problem of their pass.
namespace mxfa::dispatch {

inline void refuse_block_scales() {
  unsupported("p_scale", "constant but on Blackwell", "block scales");
}

template <class Problem, class Kernels>
std::int64_t workspace_bytes(const Problem& problem, const Kernels& kernels) {
  return with_offsets_bytes(problem, kernels.workspace_bytes(problem));
}

/// behind_of(problem): rows that no sequence has.
template <class Problem, class Kernels, class BehindOf>
void run_phases(Problem& problem, const Kernels& kernels, std::span<std::byte> workspace,
                const Phases& phases, BehindOf behind_of) {
  const std::int64_t bytes = kernels.workspace_bytes(problem);
  check_workspace(problem, workspace, with_offsets_bytes(problem, bytes));
  check_overlaps(problem.args, workspace);
  narrow_offsets(problem, workspace.data(), bytes, phases.prepare);
  if (phases.prepare) kernels.prepare(problem, workspace.data());
  if (phases.attend) kernels.attend(problem, workspace.data(), behind_of(problem));
}

}  // namespace mxfa::dispatch
