#include "ir/builder.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "exec/handlers.h"
#include "ir/special_registers.h"

namespace mxfa::emu::ir {
namespace {

using Kind = ptx::Operand::Kind;

RowClass row_of(const ptx::Type& type) {
  if (type.kind == ptx::TypeKind::kPred) return RowClass::kPredicate;
  if (type.bits == 128) return RowClass::kRow16;
  return type.bits == 64 ? RowClass::kRow8 : RowClass::kRow4;
}

exec::MemorySpace memory_space(ptx::Space space) {
  switch (space) {
    case ptx::Space::kGlobal:
      return exec::MemorySpace::kGlobal;
    case ptx::Space::kConst:
      return exec::MemorySpace::kConst;
    case ptx::Space::kShared:
      return exec::MemorySpace::kShared;
    case ptx::Space::kLocal:
      return exec::MemorySpace::kLocal;
    case ptx::Space::kParam:
      return exec::MemorySpace::kParam;
    default:
      return exec::MemorySpace::kGeneric;
  }
}

}  // namespace

Builder::Builder(const ptx::Module& module, const ptx::Function& function,
                 const Placement& placement)
    : module_(module), function_(function), placement_(placement) {
  registers.reserve(function.registers.size());
  for (const ptx::Register& reg : function.registers) {
    registers.push_back({reg.type->bits, row_of(*reg.type)});
  }
}

void Builder::begin(const ptx::Instruction& instruction, const ptx::Opcode& opcode) {
  instruction_ = &instruction;
  opcode_ = &opcode;
}

void Builder::fail(const std::string& reason) const {
  module_.source->fail(instruction_ == nullptr ? function_.line : instruction_->line, reason);
}

Inst& Builder::emit(ExecFn exec, Flow flow) {
  Inst& in = code.emplace_back();
  in.exec = exec;
  in.flow = flow;
  in.line = instruction_->line;
  for (std::int32_t& op : in.op) op = kNoOperand;
  if (instruction_->guard >= 0) {
    uses.push_back({static_cast<std::uint32_t>(code.size() - 1),
                    static_cast<std::uint32_t>(instruction_->guard), 0, RegisterUse::kGuard, false,
                    instruction_->guard_negated});
  }
  return in;
}

void Builder::use(int k, std::uint32_t reg, bool is_def, bool negated) {
  uses.push_back({static_cast<std::uint32_t>(code.size() - 1), reg, 0, static_cast<std::uint8_t>(k),
                  is_def, negated});
}

void Builder::drop_guard() {
  std::erase_if(uses, [&](const RegisterUse& use) {
    return use.inst + 1 == code.size() && use.where == RegisterUse::kGuard;
  });
}

void Builder::move_guard(int k) {
  if (instruction_->guard < 0) {
    last().op[k] = kTruePredicate;
    return;
  }
  drop_guard();
  use(k, static_cast<std::uint32_t>(instruction_->guard), false, instruction_->guard_negated);
  last().a = 1;
}

void Builder::guard_by(std::uint32_t predicate) {
  drop_guard();
  uses.push_back({static_cast<std::uint32_t>(code.size() - 1), predicate, 0, RegisterUse::kGuard,
                  false, false});
}

void Builder::use_list(std::uint32_t reg, bool is_def) {
  uses.push_back({static_cast<std::uint32_t>(code.size() - 1), reg,
                  static_cast<std::uint32_t>(lists.size()), RegisterUse::kList, is_def, false});
  lists.push_back(0);
}

std::uint32_t Builder::register_bits(const ptx::Operand& operand) const {
  return registers[operand.index].bits;
}

void Builder::check_register(const ptx::Operand& operand, std::uint32_t bits, bool exact) const {
  const VirtualRegister& reg = registers[operand.index];
  if (reg.row == RowClass::kPredicate) {
    fail(fmt::format("operand {}: expected {} bits, got a predicate", operand.name, bits));
  }
  // 8-bit values live in wider registers; loads, stores and conversions may use wider ones.
  if (bits == reg.bits || bits == 8 || (!exact && reg.bits > bits)) return;
  fail(fmt::format("operand {}: expected {} bits, got a register of {}", operand.name, bits,
                   reg.bits));
}

std::int32_t Builder::pool_row(std::uint64_t value, std::uint32_t slot) {
  const auto [it, is_new] = pool_rows_.try_emplace({value, slot}, 0);
  if (is_new) {
    pool_end_ -= static_cast<std::int32_t>(slot * 32);
    it->second = pool_end_;
    pool_order_.emplace_back(value, slot);
  }
  return it->second;
}

// One row for each offset; its value is patched at the launch.
std::int32_t Builder::param_row(std::uint64_t offset) {
  for (const ParamPatch& patch : patches) {
    if (patch.offset == offset) return patch.row;
  }
  pool_end_ -= 8 * 32;
  pool_order_.emplace_back(0, 8);
  patches.push_back({pool_end_, offset});
  return pool_end_;
}

std::vector<std::byte> Builder::take_pool() const {
  std::vector<std::byte> pool(static_cast<std::size_t>(-pool_end_));
  std::size_t at = pool.size();
  for (const auto& [value, slot] : pool_order_) {
    at -= std::size_t{slot} * 32;
    for (std::size_t lane = 0; lane < 32; ++lane) {
      std::memset(&pool[at + lane * slot], 0, slot);
      std::memcpy(&pool[at + lane * slot], &value, std::min<std::size_t>(slot, 8));
    }
  }
  return pool;
}

std::uint64_t Builder::immediate(const ptx::Operand& operand, std::uint32_t bits) const {
  const auto value = static_cast<std::uint64_t>(operand.value);
  switch (operand.kind) {
    case Kind::kInteger: {
      if (bits >= 64) return value;
      const std::int64_t low = -(std::int64_t{1} << (bits - 1));
      const std::int64_t high = (std::int64_t{1} << bits) - 1;
      if (operand.value < low || operand.value > high) {
        fail(fmt::format("immediate {} does not fit {} bits", operand.value, bits));
      }
      return value & ((std::uint64_t{1} << bits) - 1);
    }
    case Kind::kFloat32:
      if (bits == 32) return value;
      break;
    case Kind::kFloat64:
      if (bits == 64) return value;
      if (bits == 32) {
        return std::bit_cast<std::uint32_t>(
            static_cast<float>(std::bit_cast<double>(operand.value)));
      }
      break;
    default:
      break;
  }
  fail(fmt::format("expected an immediate of {} bits", bits));
}

std::int32_t Builder::immediate_row(const ptx::Operand& operand, std::uint32_t bits) {
  if (bits > 64) fail("immediates of 128 bits do not exist");
  return pool_row(immediate(operand, bits), bits == 64 ? 8 : 4);
}

void Builder::constant(int k, std::uint64_t value, std::uint32_t bits) {
  last().op[k] = pool_row(value, bits == 64 ? 8 : 4);
}

void Builder::source(int k, const ptx::Operand& operand, std::uint32_t bits) {
  if (operand.kind == Kind::kRegister) {
    check_register(operand, bits, true);
    if (operand.negated) fail("only predicates are negated");
    return use(k, operand.index, false, false);
  }
  if (operand.kind == Kind::kVariable) {
    const ptx::Variable& var = variable(operand);
    const std::uint64_t offset = variable_offset(operand);
    if (var.space == ptx::Space::kParam && operand.index < function_.num_params) {
      if (bits != 64) fail("the address of a parameter has 64 bits");
      last().op[k] = param_row(offset);
      return;
    }
    if (var.space == ptx::Space::kShared) fail("address of a shared variable in this place");
    if (bits != 64 && (var.space == ptx::Space::kGlobal || var.space == ptx::Space::kConst)) {
      fail(fmt::format("the address of {} has 64 bits", var.name));
    }
    last().op[k] = pool_row(offset, bits == 64 ? 8 : 4);
    return;
  }
  last().op[k] = immediate_row(operand, bits);
}

void Builder::destination(int k, const ptx::Operand& operand, std::uint32_t bits) {
  if (operand.kind == Kind::kSink) {
    last().op[k] = kSinkRow;
    return;
  }
  if (operand.kind != Kind::kRegister || operand.negated) fail("expected a destination register");
  check_register(operand, bits, true);
  use(k, operand.index, true, false);
}

void Builder::source_any(int k, const ptx::Operand& operand) {
  source(k, operand, is_register(operand) ? register_bits(operand) : 32);
}

void Builder::destination_any(int k, const ptx::Operand& operand) {
  destination(k, operand, is_register(operand) ? register_bits(operand) : 32);
}

void Builder::predicate_source(int k, const ptx::Operand& operand) {
  if (operand.kind == Kind::kInteger) {
    last().op[k] = operand.value != 0 ? 0 : 1;  // slot 0 is true
    return;
  }
  if (operand.kind != Kind::kRegister || registers[operand.index].row != RowClass::kPredicate) {
    fail("expected a predicate");
  }
  use(k, operand.index, false, operand.negated);
}

void Builder::predicate_destination(int k, const ptx::Operand& operand) {
  if (operand.kind == Kind::kSink) {
    last().op[k] = kSinkPredicate;
    return;
  }
  if (operand.kind != Kind::kRegister || operand.negated ||
      registers[operand.index].row != RowClass::kPredicate) {
    fail("expected a predicate as destination");
  }
  use(k, operand.index, true, false);
}

std::uint32_t Builder::rows(const ptx::Operand& operand, std::uint32_t bits, bool is_def,
                            bool exact) {
  if (operand.kind == Kind::kVector) {
    if (operand.parts.empty()) fail("empty vector");
    for (const ptx::Operand& part : operand.parts) {
      if (part.kind == Kind::kVector) fail("vector inside a vector");
      rows(part, bits, is_def, exact);
    }
    return static_cast<std::uint32_t>(operand.parts.size());
  }
  if (operand.kind == Kind::kRegister) {
    check_register(operand, bits, exact);
    use_list(operand.index, is_def);
  } else if (is_def) {
    if (operand.kind != Kind::kSink) fail("expected a destination register");
    lists.push_back(kSinkRow);
  } else {
    lists.push_back(immediate_row(operand, std::max(bits, 32u)));
  }
  return 1;
}

void Builder::list_source(const ptx::Operand& operand, std::uint32_t bits, bool exact) {
  last().extra = static_cast<std::uint32_t>(lists.size());
  const std::uint32_t count = rows(operand, bits, false, exact);
  last().b = static_cast<std::uint8_t>(count);
}

void Builder::list_destination(const ptx::Operand& operand, std::uint32_t bits, bool exact) {
  last().extra = static_cast<std::uint32_t>(lists.size());
  const std::uint32_t count = rows(operand, bits, true, exact);
  last().b = static_cast<std::uint8_t>(count);
}

void Builder::address(int k, const ptx::Operand& operand) {
  if (operand.kind != Kind::kAddress || operand.parts.size() != 1) fail("expected an address");
  const ptx::Operand& base = operand.parts[0];
  last().imm = operand.value;
  if (base.kind == Kind::kRegister) {
    const std::uint32_t bits = register_bits(base);
    if (bits != 32 && bits != 64) fail("expected an address register of 32 or 64 bits");
    source(k, base, bits);
    if (bits == 64) last().c |= exec::AccessFlags::kWideAddress;
  } else if (base.kind == Kind::kVariable) {
    last().imm += static_cast<std::int64_t>(variable_offset(base));
    last().c |= exec::AccessFlags::kVariable;
    last().a = static_cast<std::uint8_t>(memory_space(variable(base).space));
    if (variable(base).space == ptx::Space::kParam && base.index >= function_.num_params) {
      last().a = static_cast<std::uint8_t>(exec::MemorySpace::kLocal);
    }
  } else if (base.kind == Kind::kInteger) {
    constant(k, static_cast<std::uint64_t>(base.value), 64);
    last().c |= exec::AccessFlags::kWideAddress;
  } else {
    fail("expected a register or a variable in the address");
  }
}

const ptx::Variable& Builder::variable(const ptx::Operand& operand) const {
  return operand.module_scope ? module_.variables[operand.index]
                              : function_.variables[operand.index];
}

std::uint64_t Builder::variable_offset(const ptx::Operand& operand) const {
  std::uint64_t base = 0;
  if (!operand.module_scope) {
    base = placement_.local_offsets[operand.index];
  } else if (variable(operand).space == ptx::Space::kShared) {
    base = placement_.module_shared[operand.index];
  } else {
    base = placement_.module_addresses[operand.index];
  }
  return base + static_cast<std::uint64_t>(operand.value);
}

std::uint64_t Builder::integer(const ptx::Operand& operand, std::string_view what) const {
  if (operand.kind != Kind::kInteger || operand.value < 0) {
    fail(fmt::format("expected {} as a constant", what));
  }
  return static_cast<std::uint64_t>(operand.value);
}

void Builder::hold(const ptx::Operand& operand, RegisterOwner owner) {
  const auto at = static_cast<std::uint32_t>(code.size() - 1);
  if (operand.kind == Kind::kRegister) holds.push_back({at, owner, operand.index});
  for (const ptx::Operand& part : operand.parts) hold(part, owner);
}

void Builder::commit(RegisterOwner owner) {
  if (instruction_->guard >= 0) return;
  holds.push_back({static_cast<std::uint32_t>(code.size() - 1), owner, HoldEvent::kCommit});
}

void Builder::release(RegisterOwner owner) {
  // A guarded wait may not happen.
  if (instruction_->guard >= 0) return;
  holds.push_back({static_cast<std::uint32_t>(code.size() - 1), owner, HoldEvent::kAll});
}

void Builder::read_list(std::uint32_t index, const ptx::Operand& operand) {
  if (operand.kind != Kind::kRegister) return;
  uses.push_back({static_cast<std::uint32_t>(code.size() - 1), operand.index, index,
                  RegisterUse::kList, false, false});
}

std::uint32_t Builder::temporary(std::uint32_t bits, RowClass row) {
  registers.push_back({static_cast<std::uint16_t>(bits), row});
  return static_cast<std::uint32_t>(registers.size() - 1);
}

ptx::Operand Builder::materialise(const ptx::Operand& operand, std::uint32_t bits) {
  const bool shared =
      operand.kind == Kind::kVariable && variable(operand).space == ptx::Space::kShared;
  if (operand.kind != Kind::kSpecial && !shared) return operand;
  ptx::Operand result;
  result.kind = Kind::kRegister;
  result.name = operand.name;
  if (shared) {
    result.index = temporary(bits, bits == 64 ? RowClass::kRow8 : RowClass::kRow4);
    emit(&exec::shared_address).imm = static_cast<std::int64_t>(variable_offset(operand));
    last().a = bits == 64 ? 8 : 4;
  } else {
    const auto special = find_special_register(operand.name);
    if (!special) fail(fmt::format("unknown name {}", operand.name));
    if (special->bits != bits && !(special->bits == 32 && bits == 16)) {
      fail(fmt::format("{} has {} bits, expected {}", operand.name, special->bits, bits));
    }
    result.index = temporary(bits, bits == 64 ? RowClass::kRow8 : RowClass::kRow4);
    emit(&exec::read_special).imm = static_cast<std::int64_t>(special->id);
  }
  temporary_destination(0, result.index);
  return result;
}

}  // namespace mxfa::emu::ir
