#pragma once

#include "exec/lanes/sink.h"

/// Lane kernels that are compiled once, for any machine: they are rare or call library functions.
namespace mxfa::emu::exec {

void add_directed_kernels(const KernelSink& sink);  ///< rounding modes rz, rm, rp

}  // namespace mxfa::emu::exec
