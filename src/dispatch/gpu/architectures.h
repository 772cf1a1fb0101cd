#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "dispatch/gpu/forward_problem.h"
#include "driver/kernel.h"

/// Which kernels an architecture has. A kernel of an architecture is one entry of the table in
/// architectures.cc; everything above it (checks, workspaces, public calls) is the same for all.
namespace mxfa::dispatch {

/// An attention forward. It runs in memory of workspace_bytes(), on 256 bytes.
struct ForwardKernels {
  /// Throws Error(kUnsupported) that names what the kernels do not have.
  void (*check)(const ForwardProblem& problem);
  std::int64_t (*workspace_bytes)(const ForwardProblem& problem);
  /// Launches what makes the operands in the workspace.
  void (*prepare)(const ForwardProblem& problem, void* workspace);
  /// Launches attention on the operands that prepare left there.
  void (*attend)(const ForwardProblem& problem, void* workspace);
};

struct Architecture {
  std::string_view arch;  ///< "sm_90a"
  attention::Recipe recipe = attention::Recipe::kBlackwell;
  std::span<const driver::KernelImage> (*images)() = nullptr;
  const ForwardKernels* forward = nullptr;  ///< null: not there
};

/// Null where no architecture of this name has kernels of its own.
const Architecture* find_architecture(std::string_view arch);

/// Throws Error(kUnsupported) that names the device's architecture and those that have kernels.
const Architecture& expect_architecture(std::string_view arch, std::string_view call);

/// Hopper's, kernels/sm90.
extern const ForwardKernels kSm90Forward;
/// Blackwell's, kernels/sm100.
extern const ForwardKernels kSm100Forward;
/// The plain kernel of options.exact, device/exact_attention.cu: on every architecture.
extern const ForwardKernels kExactForward;

}  // namespace mxfa::dispatch
