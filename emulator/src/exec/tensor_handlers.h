#pragma once

#include <cstdint>

#include "exec/context.h"

/// Handlers of tcgen05, and what they read from an instruction; otherwise as exec/handlers.h.
namespace mxfa::emu::exec {

enum class TensorAllocOp : std::uint8_t { kAlloc, kDealloc, kRelinquish };
/// extra = TensorAllocOp, b = cta_group; op[1] = shared address (with a, c, imm), op[2] = columns,
/// op[3] = the tensor memory address of dealloc.
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

/// Travels in Inst::imm. op = {D, A (descriptor or tensor memory address), descriptor of B,
/// instruction descriptor, scales of A, scales of B, enable-input-d}; lists = b words of
/// disable-output-lane.
struct TensorMmaSpec {
  std::uint8_t kind = 0;  ///< model::MmaKind
  std::uint8_t cta_group = 1;
  std::uint8_t a_in_tmem = 0;
  std::uint8_t scale_input_d = 0;
  std::uint8_t collector = 0;  ///< CollectorOp
  std::uint8_t unused[3] = {};
};
static_assert(sizeof(TensorMmaSpec) == 8);
enum class CollectorOp : std::uint8_t { kDiscard, kFill, kUse, kLastUse };
void tensor_mma(Context& c, const ir::Inst& in, std::uint32_t mask);

/// op = {tensor memory address, descriptor}; a = model::CpShape, b = cta_group, imm =
/// model::CpFormat.
void tensor_copy(Context& c, const ir::Inst& in, std::uint32_t mask);

/// op[1] = mbarrier address (with c, imm), op[2] = CTA mask or none; a = MemorySpace, b =
/// cta_group.
void tensor_commit(Context& c, const ir::Inst& in, std::uint32_t mask);

/// Fails where one of the b registers in lists is held by asynchronous work. The first a of them
/// are read: one that a tcgen05.ld writes is waited for, since PTX respects true dependencies of
/// registers (9.7.16.6.4.5), which order no memory.
void check_held_registers(Context& c, const ir::Inst& in, std::uint32_t mask);

}  // namespace mxfa::emu::exec
