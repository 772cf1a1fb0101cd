#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "mxfa/attention.h"

/// Public calls whose options name a device. gpu/ has them; builds without device code have
/// cpu_only/, where no Device exists.
namespace mxfa::dispatch {

/// Which half of a call is launched.
struct Phases {
  bool prepare = true;
  bool attend = true;
};

std::int64_t device_forward_workspace_bytes(const attention::ForwardArgs& args,
                                            const attention::Options& options);
void device_forward(const attention::ForwardArgs& args, const attention::Options& options,
                    std::span<std::byte> workspace, const Phases& phases);

std::int64_t device_backward_workspace_bytes(const attention::BackwardArgs& args,
                                             const attention::Options& options);
void device_backward(const attention::BackwardArgs& args, const attention::Options& options,
                     std::span<std::byte> workspace, const Phases& phases);

}  // namespace mxfa::dispatch
