#pragma once

#include <vector>

#include "ir/allocate.h"
#include "ir/builder.h"

namespace mxfa::emu::ir {

/// Registers in flight: inserts a check before each instruction that may touch, on some path, a
/// register which asynchronous work owns and nobody has waited for. Right programs rarely have such
/// instructions, so that they pay nothing. Branches hold indices of instructions.
/// Returns for which instructions each of these registers may be owned.
std::vector<HeldRange> protect_held_registers(Builder& builder);

}  // namespace mxfa::emu::ir
