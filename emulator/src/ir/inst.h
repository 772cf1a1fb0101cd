#pragma once

#include <cstdint>

/// The executable form of one PTX instruction. Plain data: the lane kernels, which are compiled
/// for several instruction sets, include this file.
namespace mxfa::emu::exec {
struct Context;
}

namespace mxfa::emu::ir {

struct Inst;
using ExecFn = void (*)(exec::Context&, const Inst&, std::uint32_t mask);

/// Whose asynchronous work holds a register: see exec/held_registers.h.
enum class RegisterOwner : std::uint8_t { kNone, kTensorLoad, kWgmma };

/// What the interpreter does around the handler.
enum class Flow : std::uint8_t {
  kPlain,   ///< handler, then the next instruction
  kBranch,  ///< to `imm`
  kExit,
  kMembers,      ///< the lanes in the mask operand op[member] meet here, then as kPlain
  kAligned,      ///< all live lanes of the warp meet here, then as kPlain
  kWarpBarrier,  ///< bar.warp.sync: meets across different instructions
  kBlocking,     ///< the handler may park the lanes (barriers)
  kYield,        ///< as kPlain, but other warps should run next (polls, sleep)
};

inline constexpr int kMaxInstOperands = 8;

/// Operands are byte offsets of rows: of 32 lanes x 4 bytes (types of up to 32 bits), x 8 or x 16.
/// Offsets >= 0 lie in the warp's registers, offsets < 0 in the constant pool, counted from its
/// end. Predicates are 2 * slot + negated, each slot a 32-bit mask; slot 0 is true for all lanes.
struct Inst {
  ExecFn exec = nullptr;
  std::uint32_t line = 0;
  std::uint32_t guard = 0;  ///< predicate
  std::int32_t op[kMaxInstOperands] = {};
  std::int64_t imm = 0;  ///< branch target, address offset, or what the handler says
  /// First entry in Kernel::lists; of a branch back in a loop within a loop, the end of the latter.
  std::uint32_t extra = 0;
  Flow flow = Flow::kPlain;
  std::uint8_t a = 0;  ///< meanings of a, b, c are the handler's
  std::uint8_t b = 0;
  std::uint8_t c = 0;
};
static_assert(sizeof(Inst) == 64);

inline constexpr std::uint32_t kTruePredicate = 0;
inline constexpr std::int32_t kSinkPredicate = 2;  ///< slot 1 is never read
inline constexpr std::int32_t kSinkRow = 0;        ///< the first 512 register bytes are never read
inline constexpr std::uint32_t kSinkBytes = 512;
inline constexpr std::int32_t kNoOperand = INT32_MIN;

}  // namespace mxfa::emu::ir
