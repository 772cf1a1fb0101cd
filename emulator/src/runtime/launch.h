#pragma once

#include <functional>
#include <memory>
#include <span>

#include "ir/kernel.h"
#include "mem/global.h"
#include "mxemu/emulator.h"

namespace mxfa::emu::exec {
class Observer;
}

namespace mxfa::emu::runtime {

struct LaunchRequest {
  std::shared_ptr<const ir::Kernel> kernel;
  std::shared_ptr<const mem::RegionTable> memory;
  const LaunchConfig& config;
  std::span<const std::byte> params;
  /// For tests of the checker: returns who hears in its place; may be empty.
  std::function<exec::Observer*(exec::Observer*)> filter;
};

/// Throws where the kernel cannot be launched so.
void check_launch(const ir::Kernel& kernel, const LaunchConfig& config);

/// Checks the configuration against the kernel, runs all blocks and returns when they have exited.
LaunchStats launch(const LaunchRequest& request, const LaunchOptions& options);

}  // namespace mxfa::emu::runtime
