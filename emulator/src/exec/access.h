#pragma once

#include <cstddef>
#include <cstdint>

#include "exec/handlers.h"
#include "exec/machine.h"

/// From the address operand of an instruction to host pointers, with all structural checks.
namespace mxfa::emu::exec {

enum class Access : std::uint8_t { kRead, kWrite, kReadWrite };

struct LanePointers {
  std::byte* lane[kLanes];  ///< of the active lanes
  bool contiguous = false;  ///< all 32 lanes are active, one element after the other
};

/// Resolves `bytes` bytes an active lane. Errors: outside of every buffer, misaligned, read-only,
/// or never written. Writes mark their bytes as initialised.
void resolve(Warp& warp, const ir::Inst& in, std::uint32_t mask, std::uint32_t bytes, Access access,
             LanePointers& out);

/// The address operand of each active lane, imm added, in the instruction's space.
void lane_addresses(const Warp& warp, const ir::Inst& in, std::uint64_t (&address)[kLanes]);

/// The CTA's (or cluster's) shared memory at a 32-bit shared address; checks bounds. Null where
/// the rank or the range is wrong.
std::byte* shared_pointer(Cta& cta, std::uint64_t address, std::uint32_t bytes);

}  // namespace mxfa::emu::exec
