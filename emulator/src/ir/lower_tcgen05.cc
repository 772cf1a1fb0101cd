#include <fmt/format.h>

#include <bit>
#include <charconv>

#include "exec/handlers.h"
#include "exec/tensor_handlers.h"
#include "ir/lowering.h"
#include "model/tmem.h"

/// tcgen05. PTX ISA 9.0, section 9.7.16.
namespace mxfa::emu::ir {
namespace {

using Kind = ptx::Operand::Kind;

void require_target(LowerContext& c, bool sm_103_only) {
  const std::string_view target = c.b.target();
  const bool blackwell = target.starts_with("sm_100") || target.starts_with("sm_103");
  if (!blackwell) c.b.fail(fmt::format("tcgen05 needs .target sm_100a or sm_103a, got {}", target));
  if (sm_103_only && !target.starts_with("sm_103")) {
    c.b.fail(fmt::format("this form needs .target sm_103a, got {}", target));
  }
}

/// 1 or 2; all instructions of a kernel must agree.
std::uint8_t cta_group(LowerContext& c) {
  const std::uint32_t group = c.opcode().has("cta_group::2") ? 2 : 1;
  if (c.b.cta_group == 0) c.b.cta_group = group;
  if (c.b.cta_group != group) {
    c.b.fail(
        fmt::format("cta_group::{} in a kernel that uses cta_group::{}", group, c.b.cta_group));
  }
  return static_cast<std::uint8_t>(group);
}

/// [taddr], [taddr+n] or [n].
ptx::Operand tensor_address(LowerContext& c, const ptx::Operand& operand) {
  if (operand.kind != Kind::kAddress || operand.parts.size() != 1) {
    c.b.fail("expected a tensor memory address in brackets");
  }
  if (operand.parts[0].kind == Kind::kInteger) {
    ptx::Operand constant = operand.parts[0];
    constant.value += operand.value;
    return constant;
  }
  const AddressValue value = address_value(c, operand);
  if (value.bits != 32) c.b.fail("tensor memory addresses have 32 bits");
  return value.operand;
}

void lower_alloc(LowerContext& c) {
  const auto op = static_cast<exec::TensorAllocOp>(
      c.opcode().which({"alloc", "dealloc", "relinquish_alloc_permit"}));
  const auto& operands = c.operands();
  const bool has_columns = op != exec::TensorAllocOp::kRelinquish;
  c.expect_operands(has_columns ? 2 : 0, has_columns ? 2 : 0);
  const std::uint8_t group = cta_group(c);
  const ptx::Operand columns = has_columns ? c.b.materialise(operands[1], 32) : ptx::Operand{};
  const ptx::Operand address =
      op == exec::TensorAllocOp::kDealloc ? c.b.materialise(operands[0], 32) : ptx::Operand{};
  c.b.emit(&exec::tensor_alloc, Flow::kAligned);
  if (op == exec::TensorAllocOp::kAlloc) c.b.address(1, operands[0]);
  if (op == exec::TensorAllocOp::kDealloc) c.b.source(3, address, 32);
  if (has_columns) c.b.source(2, columns, 32);
  Inst& in = c.b.last();
  const bool variable = (in.c & exec::AccessFlags::kVariable) != 0;
  if (variable && in.a != static_cast<std::uint8_t>(exec::MemorySpace::kShared)) {
    c.b.fail("expected an address in shared memory");
  }
  // The handler resolves shared addresses only.
  in.a = static_cast<std::uint8_t>(op);
  in.b = group;
}

exec::TensorAccessSpec access_spec(LowerContext& c) {
  const ptx::Opcode& opcode = c.opcode();
  exec::TensorAccessSpec spec;
  spec.shape = static_cast<std::uint8_t>(
      opcode.which({"32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2"}));
  for (const std::string_view word : opcode.qualifiers) {
    if (word[0] != 'x') continue;
    std::uint32_t num = 0;
    std::from_chars(word.data() + 1, word.data() + word.size(), num);
    if (num > 128) c.b.fail("expected .x1 to .x128");
    spec.num = static_cast<std::uint8_t>(num);
  }
  spec.pack = opcode.has("pack::16b") || opcode.has("unpack::16b") ? 1 : 0;
  const auto flag = [&](std::string_view name, std::uint8_t bit) {
    if (opcode.has(name)) spec.reduce |= bit;
  };
  flag("min", exec::TensorAccessSpec::kMin);
  flag("max", exec::TensorAccessSpec::kMax);
  flag("abs", exec::TensorAccessSpec::kAbs);
  flag("NaN", exec::TensorAccessSpec::kNan);
  flag("u32", exec::TensorAccessSpec::kU32);
  flag("s32", exec::TensorAccessSpec::kS32);
  return spec;
}

void lower_access(LowerContext& c) {
  const bool load = c.opcode().has("ld");
  const bool reduces = c.opcode().has("red");
  require_target(c, reduces);
  exec::TensorAccessSpec spec = access_spec(c);
  const bool split = static_cast<model::TmemShape>(spec.shape) == model::TmemShape::k16x32bx2;
  const std::size_t count = 2 + (reduces ? 1u : 0u) + (split ? 1u : 0u);
  c.expect_operands(count, count);
  if (reduces && spec.num < 2) c.b.fail("a reduction needs at least .x2");
  // ld r, {redval,} [taddr] {, split};   st [taddr] {, split}, r;
  const auto& operands = c.operands();
  const std::size_t at = load ? (reduces ? 2 : 1) : 0;
  if (split) {
    const std::uint64_t offset = c.b.integer(operands[at + 1], "the second access's offset");
    if (offset >= model::kTmemColumns) c.b.fail("expected an offset of less than 512 columns");
    spec.half_split = static_cast<std::uint16_t>(offset);
  }
  const ptx::Operand address = tensor_address(c, operands[at]);
  c.b.emit(load ? &exec::tensor_load : &exec::tensor_store, Flow::kAligned);
  c.b.source(0, address, 32);
  const ptx::Operand& data = load ? operands[0] : operands.back();
  if (load) {
    c.b.list_destination(data, 32);
    c.b.hold(data, RegisterOwner::kTensorLoad);
    if (reduces) {
      c.b.destination(2, operands[1], 32);
      c.b.hold(operands[1], RegisterOwner::kTensorLoad);
    }
  } else {
    c.b.list_source(data, 32);
  }
  const model::TmemAccess access{static_cast<model::TmemShape>(spec.shape), spec.num, false, 0};
  const std::uint32_t wanted = model::tmem_registers(access);
  const std::size_t given = data.kind == Kind::kVector ? data.parts.size() : 1;
  if (given != wanted) c.b.fail(fmt::format("expected {} registers, got {}", wanted, given));
  c.b.last().imm = std::bit_cast<std::int64_t>(spec);
}

}  // namespace

void lower_tcgen05(LowerContext& c) {
  require_target(c, false);
  const std::string_view name = c.opcode().qualifiers[1];
  if (name == "ld" || name == "st") return lower_access(c);
  if (name.starts_with("wait::")) {
    lower_by_signature(c, &exec::tensor_wait, Flow::kAligned);
    c.b.last().a = name == "wait::ld" ? 0 : 1;
    if (name == "wait::ld") c.b.release(RegisterOwner::kTensorLoad);
    return;
  }
  if (name.starts_with("fence::")) {
    lower_by_signature(c, &exec::tensor_fence, Flow::kBlocking);
    c.b.last().a = name == "fence::before_thread_sync" ? 0 : 1;
    return;
  }
  lower_alloc(c);
}

}  // namespace mxfa::emu::ir
