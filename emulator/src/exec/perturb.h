#pragma once

#include <cstdint>
#include <string_view>

#include "exec/kernel_table.h"
#include "ir/kernel.h"

/// Approximate functions of FP32 with the errors that the ISA allows: results that a program must
/// not lean on.
namespace mxfa::emu::exec {

/// Inst::a of an instruction whose result the ISA bounds only, 0 for all others. `key` is the
/// opcode's; `approx` and `full` say whether it has these qualifiers.
std::uint8_t approximation(std::string_view base, std::string_view key, bool approx, bool full);

/// A copy in which these instructions go to approximate().
ir::Kernel with_perturbation(const ir::Kernel& kernel, const KernelTable& kernels);

}  // namespace mxfa::emu::exec
