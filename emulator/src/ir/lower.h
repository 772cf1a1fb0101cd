#pragma once

#include "exec/kernel_table.h"
#include "ir/kernel.h"
#include "ptx/module.h"
#include "ptx/opcode.h"

namespace mxfa::emu::ir {

/// Makes one entry executable. `module_addresses`: host addresses of the module's global and const
/// variables, by index. Throws PtxError for unknown opcodes, wrong operands and misused names.
Kernel lower(const ptx::Module& module, const ptx::Function& function,
             const std::vector<std::uint64_t>& module_addresses, const exec::KernelTable& kernels,
             ptx::OpcodeFinder& opcodes);

}  // namespace mxfa::emu::ir
