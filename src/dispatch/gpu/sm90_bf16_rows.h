#pragma once

#include <string_view>

#include "device/operands.h"
#include "kernels/sm90/common/operand_maps.h"

/// Operands of products in BF16 on Hopper: read where they lie.
namespace mxfa::dispatch {

/// Throws Error(kUnsupported) naming the argument and the option that wants it so.
void check_bf16_rows(const device::OperandInput& x, std::string_view name,
                     const device::Sequences& sequences, std::string_view option);

sm90::Bf16Rows bf16_rows(const device::OperandInput& x);

}  // namespace mxfa::dispatch
