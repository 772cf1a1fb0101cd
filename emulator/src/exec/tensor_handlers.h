#pragma once

#include <cstdint>

#include "exec/context.h"

/// Handlers of tcgen05, and what they read from an instruction; otherwise as exec/handlers.h.
namespace mxfa::emu::exec {

enum class TensorAllocOp : std::uint8_t { kAlloc, kDealloc, kRelinquish };
/// a = TensorAllocOp, b = cta_group; op[1] = shared address (with c), op[2] = columns, op[3] = the
/// tensor memory address of dealloc.
void tensor_alloc(Context& c, const ir::Inst& in, std::uint32_t mask);

/// Travels in Inst::imm. op[0] = tensor memory address, op[2] = result of the reduction; lists = b
/// rows of data.
struct TensorAccessSpec {
  std::uint8_t shape = 0;  ///< model::TmemShape
  std::uint8_t num = 1;
  std::uint8_t pack = 0;
  std::uint8_t reduce = 0;  ///< flags
  std::uint16_t half_split = 0;
  std::uint16_t unused = 0;
  static constexpr std::uint8_t kMin = 1;
  static constexpr std::uint8_t kMax = 2;
  static constexpr std::uint8_t kAbs = 4;
  static constexpr std::uint8_t kNan = 8;
  static constexpr std::uint8_t kU32 = 16;
  static constexpr std::uint8_t kS32 = 32;
};
static_assert(sizeof(TensorAccessSpec) == 8);
void tensor_load(Context& c, const ir::Inst& in, std::uint32_t mask);
void tensor_store(Context& c, const ir::Inst& in, std::uint32_t mask);
void tensor_wait(Context& c, const ir::Inst& in, std::uint32_t mask);   ///< a: 0 loads, 1 stores
void tensor_fence(Context& c, const ir::Inst& in, std::uint32_t mask);  ///< a: 0 before, 1 after

/// Fails where one of the b registers in lists is held by asynchronous work.
void check_held_registers(Context& c, const ir::Inst& in, std::uint32_t mask);

}  // namespace mxfa::emu::exec
