#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "device/clear_behind.h"
#include "dispatch/gpu/device_problem.h"
#include "driver/kernel.h"

/// Which kernels an architecture has. A kernel of an architecture is one entry of the table in
/// architectures.cc; everything above it (checks, workspaces, public calls) is the same for all.
namespace mxfa::dispatch {

/// They live as long as the arguments that they were made from.
struct ForwardProblem : DeviceProblem {
  const attention::ForwardArgs& args;
  DeviceRows o;
};
/// operands.dout is filled, operands.backward set.
struct BackwardProblem : DeviceProblem {
  const attention::BackwardArgs& args;
  DeviceRows o, dq, dk, dv;  ///< gradients that are not wanted: not given
};

/// One pass of attention. It runs in memory of workspace_bytes(), on 256 bytes.
template <class Problem>
struct PassKernels {
  /// Throws Error(kUnsupported) that names what the kernels do not have.
  void (*check)(const Problem& problem);
  std::int64_t (*workspace_bytes)(const Problem& problem);
  /// Launches what makes the operands in the workspace, and what else follows from lengths.
  void (*prepare)(const Problem& problem, void* workspace);
  /// Launches attention on what prepare left there, which stays as it is, and what clears rows that
  /// no sequence has.
  void (*attend)(const Problem& problem, void* workspace, const device::ClearBehindParams& behind);
};
using ForwardKernels = PassKernels<ForwardProblem>;
using BackwardKernels = PassKernels<BackwardProblem>;

struct Architecture {
  std::string_view arch;  ///< "sm_90a"
  attention::Recipe recipe = attention::Recipe::kBlackwell;
  std::span<const driver::KernelImage> (*images)() = nullptr;
  const ForwardKernels& forward;
  const BackwardKernels* backward = nullptr;  ///< null: not there
};

/// Null where no architecture of this name has kernels of its own.
const Architecture* find_architecture(std::string_view arch);

/// The architecture of the call's device, whose recipe is the call's. Throws Error(kUnsupported)
/// that names what was expected.
const Architecture& expect_architecture(const attention::Options& options, std::string_view call);

/// Hopper's, kernels/sm90.
extern const ForwardKernels kSm90Forward;
extern const BackwardKernels kSm90Backward;
/// Blackwell's, kernels/sm100.
extern const ForwardKernels kSm100Forward;
/// The plain kernel of options.exact, device/exact_attention.cu: on every architecture.
extern const ForwardKernels kExactForward;

}  // namespace mxfa::dispatch
