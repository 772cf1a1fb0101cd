#pragma once

#include "dispatch/device_calls.h"
#include "dispatch/gpu/device_memory.h"
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

/// Every tensor that a call names. A member more does not compile.
template <class Visit>
bool all_views(const attention::ForwardArgs& args, Visit visit) {
  const auto& [q, k, v, cu_seqlens_q, cu_seqlens_k, o, lse, row_max] = args;
  for (const Tensor* const tensor : {&q, &k, &v, &o}) {
    if (!visit(tensor->values) || !visit(tensor->scales)) return false;
  }
  return visit(cu_seqlens_q) && visit(cu_seqlens_k) && visit(lse) && visit(row_max);
}
template <class Visit>
bool all_views(const attention::BackwardArgs& args, Visit visit) {
  const auto& [q, k, v, cu_seqlens_q, cu_seqlens_k, o, lse, row_max, dout, dq, dk, dv, dk_tiled,
               dv_tiled, delta, dq_seq, dq_overflows] = args;
  for (const Tensor* const tensor : {&q, &k, &v, &o, &dout, &dq, &dk, &dv}) {
    if (!visit(tensor->values) || !visit(tensor->scales)) return false;
  }
  for (const TensorView* const view :
       {&cu_seqlens_q, &cu_seqlens_k, &lse, &row_max, &dk_tiled.head_dim, &dk_tiled.tokens,
        &dv_tiled.head_dim, &dv_tiled.tokens, &delta, &dq_seq, &dq_overflows}) {
    if (!visit(*view)) return false;
  }
  return true;
}

/// Launches what a known call with these arguments launched, or runs `run`, and keeps what it
/// launches the second time. Where memory is no longer the device's, `run` says so.
template <class Args, class Run>
void run_prepared(KnownCalls<Args>& calls, const CallKey<Args>& key, Run run) {
  const driver::Device& device = key.options.device->state().device;
  const auto on_device = [&](const TensorView& view) { return is_on_device(device, view.data); };
  const auto known = calls.find(key);
  if (known != nullptr && all_views(key.args, on_device) &&
      is_on_device(device, key.workspace.data())) {
    return known->launches.replay(device, static_cast<CUstream>(key.options.stream));
  }
  if (known != nullptr || !calls.comes_again(key)) return run();
  driver::LaunchRecorder recorder;
  run();
  if (auto launches = std::move(recorder).take()) calls.keep(key, *std::move(launches));
}

}  // namespace mxfa::dispatch
