#pragma once

#include "exec/kernel_table.h"
#include "ir/builder.h"

/// Lowering of single instructions, one function a family; see lower.cc for the dispatch. Each one
/// emits the instruction that the builder stands at.
namespace mxfa::emu::ir {

struct LowerContext {
  Builder& b;
  const exec::KernelTable& kernels;

  const ptx::Instruction& instruction() const { return b.instruction(); }
  const ptx::Opcode& opcode() const { return b.opcode(); }
  const std::vector<ptx::Operand>& operands() const { return b.instruction().operands; }
  ExecFn lane_kernel(std::string_view key) const;
  /// Error unless there are `least` to `most` operands.
  void expect_operands(std::size_t least, std::size_t most) const;
};

/// The address that an operand like [r+8] or [symbol] stands for, as a register or constant.
struct AddressValue {
  ptx::Operand operand;
  std::uint32_t bits = 64;
};
/// Emits what is needed before the instruction itself.
AddressValue address_value(LowerContext& c, const ptx::Operand& operand);

/// Emits `exec` and fills op[] by the operand list of the opcode table.
void lower_by_signature(LowerContext& c, ExecFn exec, Flow flow = Flow::kPlain);

void lower_indexed_branch(LowerContext& c);
void lower_tensor_map(LowerContext& c);
void lower_tensor_map_fence(LowerContext& c);
void lower_lane(LowerContext& c);
void lower_setp(LowerContext& c);
void lower_set(LowerContext& c);
void lower_predicate_logic(LowerContext& c);
void lower_mov(LowerContext& c);
void lower_cvt(LowerContext& c);
void lower_cvta(LowerContext& c);

void lower_load(LowerContext& c);
void lower_store(LowerContext& c);
void lower_atomic(LowerContext& c);
void lower_matrix(LowerContext& c);

void lower_branch(LowerContext& c);
void lower_call(LowerContext& c);
void lower_together(LowerContext& c);  ///< shfl, vote, match, elect, redux
void lower_barrier(LowerContext& c);
void lower_control(LowerContext& c);  ///< the rest without results

void lower_mbarrier(LowerContext& c);
void lower_bulk_copy(LowerContext& c);    ///< cp.async.bulk, cp.reduce.async.bulk, st.async
void lower_async_group(LowerContext& c);  ///< their groups, and cp.async
void lower_wgmma(LowerContext& c);
void lower_tcgen05(LowerContext& c);
void lower_launch_control(LowerContext& c);

}  // namespace mxfa::emu::ir
