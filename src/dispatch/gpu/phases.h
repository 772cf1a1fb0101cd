#pragma once

#include "dispatch/device_calls.h"
#include "dispatch/gpu/device_problem.h"
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

/// clear_behind(problem): once the kernels have been launched.
template <class Problem, class Kernels, class ClearBehind>
void run_phases(Problem& problem, const Kernels& kernels, std::span<std::byte> workspace,
                const Phases& phases, ClearBehind clear_behind) {
  const std::int64_t bytes = kernels.workspace_bytes(problem);
  check_workspace(problem, workspace, with_offsets_bytes(problem, bytes));
  narrow_offsets(problem, workspace.data(), bytes, phases.prepare);
  if (phases.prepare) kernels.prepare(problem, workspace.data());
  if (!phases.attend) return;
  kernels.attend(problem, workspace.data());
  clear_behind(problem);
}

}  // namespace mxfa::dispatch
