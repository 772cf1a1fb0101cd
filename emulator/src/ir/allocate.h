#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/builder.h"

namespace mxfa::emu::ir {

/// The rows of a warp after allocation.
struct Allocation {
  std::vector<std::int32_t> place;  ///< by register: byte offset of its row, or predicate slot
  std::uint32_t register_bytes = 0;
  std::uint32_t predicates = 0;
};

/// From instruction `begin` to `end`, asynchronous work may own the register: nobody may share its
/// row.
struct HeldRange {
  std::uint32_t reg = 0;
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

/// Shares rows between virtual registers that are never live at the same time. PTX is close to
/// static single assignment: thousands of registers shrink to a few kilobytes a warp.
Allocation allocate_registers(std::span<const Inst> code, std::span<const RegisterUse> uses,
                              std::span<const VirtualRegister> registers,
                              std::span<const HeldRange> held = {});

}  // namespace mxfa::emu::ir
