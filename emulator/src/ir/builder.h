#pragma once

#include <map>
#include <string_view>
#include <vector>

#include "ir/kernel.h"
#include "ptx/module.h"
#include "ptx/opcode.h"

namespace mxfa::emu::ir {

/// Where a virtual register stands in the code: liveness reads these, allocation patches them.
struct RegisterUse {
  static constexpr std::uint8_t kGuard = 8;
  static constexpr std::uint8_t kList = 9;
  std::uint32_t inst = 0;
  std::uint32_t reg = 0;
  std::uint32_t list_index = 0;
  std::uint8_t where = 0;  ///< 0..7 for op[where], or kGuard, or kList
  bool is_def = false;
  bool negated = false;
};

enum class RowClass : std::uint8_t { kPredicate, kRow4, kRow8, kRow16 };
inline constexpr std::uint32_t slot_bytes(RowClass row) {
  return row == RowClass::kRow16 ? 16 : row == RowClass::kRow8 ? 8 : 4;
}

struct VirtualRegister {
  std::uint16_t bits = 32;
  RowClass row = RowClass::kRow4;
};

/// An instruction whose asynchronous work owns a register from then on, or (without a register)
/// waits for all such work of an owner.
struct HoldEvent {
  static constexpr std::uint32_t kAll = UINT32_MAX;         ///< waited for, if committed
  static constexpr std::uint32_t kCommit = UINT32_MAX - 1;  ///< of wgmma: a wait may count on it
  std::uint32_t inst = 0;
  RegisterOwner owner = RegisterOwner::kNone;
  std::uint32_t reg = kAll;

  bool is_register() const { return reg < kCommit; }
};

/// Where the variables that a function can name lie.
struct Placement {
  std::vector<std::uint64_t> module_addresses;  ///< of global and const variables, by index
  std::vector<std::uint64_t> module_shared;     ///< offsets of shared ones, by index
  std::vector<std::uint64_t> local_offsets;     ///< by index in Function::variables
};

/// Collects the instructions of one function with virtual registers in place of rows.
class Builder {
 public:
  Builder(const ptx::Module& module, const ptx::Function& function, const Placement& placement);

  /// The PTX instruction that what follows belongs to.
  void begin(const ptx::Instruction& instruction, const ptx::Opcode& opcode);
  const ptx::Instruction& instruction() const { return *instruction_; }
  const ptx::Opcode& opcode() const { return *opcode_; }

  /// A new executable instruction with the current line and guard. The reference is valid until
  /// the next emit().
  Inst& emit(ExecFn exec, Flow flow = Flow::kPlain);
  Inst& last() { return code.back(); }

  // Operands of the last instruction. `bits` is the width that the opcode asks for.
  void source(int k, const ptx::Operand& operand, std::uint32_t bits);
  void destination(int k, const ptx::Operand& operand, std::uint32_t bits);
  void source_any(int k, const ptx::Operand& operand);  ///< a register of whatever width
  void destination_any(int k, const ptx::Operand& operand);
  void predicate_source(int k, const ptx::Operand& operand);
  void predicate_destination(int k, const ptx::Operand& operand);
  void list_source(const ptx::Operand& operand, std::uint32_t bits, bool exact = true);
  void list_destination(const ptx::Operand& operand, std::uint32_t bits, bool exact = true);
  /// The operand's rows in a list: a vector of them or a single one. Returns how many.
  std::uint32_t rows(const ptx::Operand& operand, std::uint32_t bits, bool is_def, bool exact);
  /// [register + offset] or [variable + offset]: op[k], imm and the address bits of c.
  void address(int k, const ptx::Operand& operand);
  void constant(int k, std::uint64_t value, std::uint32_t bits);
  /// The last instruction runs for all lanes and takes the guard as predicate op[k] instead, by
  /// Inst::a = and; or runs for the lanes of another predicate.
  void move_guard(int k);
  void guard_by(std::uint32_t predicate);
  void temporary_source(int k, std::uint32_t reg) { use(k, reg, false, false); }
  void temporary_destination(int k, std::uint32_t reg) { use(k, reg, true, false); }

  /// Special registers and shared addresses are first read into a register of their own; to be
  /// called before emit() for each operand that may be one. Returns the operand to use.
  ptx::Operand materialise(const ptx::Operand& operand, std::uint32_t bits);
  std::uint32_t temporary(std::uint32_t bits, RowClass row);
  std::uint32_t register_bits(const ptx::Operand& operand) const;
  bool is_register(const ptx::Operand& operand) const {
    return operand.kind == ptx::Operand::Kind::kRegister;
  }
  const ptx::Variable& variable(const ptx::Operand& operand) const;
  std::uint64_t variable_offset(const ptx::Operand& operand) const;
  std::uint64_t integer(const ptx::Operand& operand, std::string_view what) const;
  /// The last instruction's asynchronous work owns the registers of the operand until a wait.
  void hold(const ptx::Operand& operand, RegisterOwner owner);
  /// What the owner holds so far belongs to a group that can be waited for.
  void commit(RegisterOwner owner);
  /// The last instruction waits for all work of this owner.
  void release(RegisterOwner owner);
  [[noreturn]] void fail(const std::string& reason) const;

  std::vector<Inst> code;
  std::vector<std::int32_t> lists;
  std::vector<RegisterUse> uses;
  std::vector<VirtualRegister> registers;
  std::vector<ParamPatch> patches;
  std::vector<HoldEvent> holds;  ///< in the order of the code
  std::uint32_t cta_group = 0;   ///< of tcgen05, one for the whole function; 0 until the first
  std::vector<std::byte> take_pool() const;
  std::string_view target() const { return module_.target; }

  /// List entry `index` is also read, where rows() took it for a destination.
  void read_list(std::uint32_t index, const ptx::Operand& operand);

 private:
  void use(int k, std::uint32_t reg, bool is_def, bool negated);
  void use_list(std::uint32_t reg, bool is_def);
  void drop_guard();
  std::int32_t pool_row(std::uint64_t value, std::uint32_t slot);
  std::int32_t param_row(std::uint64_t offset);
  std::uint64_t immediate(const ptx::Operand& operand, std::uint32_t bits) const;
  void check_register(const ptx::Operand& operand, std::uint32_t bits, bool exact) const;
  std::int32_t immediate_row(const ptx::Operand& operand, std::uint32_t bits);

  const ptx::Module& module_;
  const ptx::Function& function_;
  const Placement& placement_;
  const ptx::Instruction* instruction_ = nullptr;
  const ptx::Opcode* opcode_ = nullptr;
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::int32_t> pool_rows_;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> pool_order_;
  std::int32_t pool_end_ = 0;
};

}  // namespace mxfa::emu::ir
