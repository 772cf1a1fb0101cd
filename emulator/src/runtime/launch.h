#pragma once

#include <memory>
#include <span>

#include "ir/kernel.h"
#include "mem/global.h"
#include "mxemu/emulator.h"

namespace mxfa::emu::runtime {

struct LaunchRequest {
  std::shared_ptr<const ir::Kernel> kernel;
  std::shared_ptr<const mem::RegionTable> memory;
  const LaunchConfig& config;
  std::span<const std::byte> params;
};

/// Checks the configuration against the kernel, runs all blocks and returns when they have exited.
LaunchStats launch(const LaunchRequest& request, const LaunchOptions& options);

}  // namespace mxfa::emu::runtime
