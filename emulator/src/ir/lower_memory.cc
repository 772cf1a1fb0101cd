#include <fmt/format.h>

#include "exec/handlers.h"
#include "ir/lowering.h"
#include "model/warp_matrix.h"

namespace mxfa::emu::ir {
namespace {

using exec::AccessFlags;
using exec::MemorySpace;
using Kind = ptx::Operand::Kind;

// The space that the opcode names; generic where it names none.
MemorySpace space_of(const ptx::Opcode& opcode) {
  switch (opcode.which({"global", "const", "shared", "shared::cta", "shared::cluster", "local",
                        "param", "param::entry", "param::func"})) {
    case 0:
      return MemorySpace::kGlobal;
    case 1:
      return MemorySpace::kConst;
    case 2:
    case 3:
    case 4:
      return MemorySpace::kShared;
    case 5:
      return MemorySpace::kLocal;
    case 6:
    case 7:
    case 8:
      return MemorySpace::kParam;
    default:
      return MemorySpace::kGeneric;
  }
}

// A variable's own space wins over none; a different one than the opcode's is an error, except that
// the slots of calls are param space that lies in local memory.
void set_space(LowerContext& c) {
  Inst& in = c.b.last();
  const MemorySpace named = space_of(c.opcode());
  if ((in.c & AccessFlags::kVariable) == 0) {
    in.a = static_cast<std::uint8_t>(named);
    return;
  }
  const auto own = static_cast<MemorySpace>(in.a);
  const bool call_slot = named == MemorySpace::kParam && own == MemorySpace::kLocal;
  if (named != MemorySpace::kGeneric && named != own && !call_slot) {
    c.b.fail("the variable lies in another state space");
  }
}

std::uint32_t vector_size(const ptx::Opcode& opcode) {
  const int which = opcode.which({"v2", "v4", "v8"});
  return which < 0 ? 1u : 2u << which;
}

const ptx::Operand& first_row(const ptx::Operand& operand) {
  return operand.kind == Kind::kVector && !operand.parts.empty() ? operand.parts[0] : operand;
}

// Memory order and scope, which only observers look at.
void set_order_flags(LowerContext& c) {
  Inst& in = c.b.last();
  const bool both = c.opcode().has("acq_rel");
  if (both || c.opcode().has("acquire")) in.c |= AccessFlags::kAcquire;
  if (both || c.opcode().has("release")) in.c |= AccessFlags::kRelease;
  if (c.opcode().has("cta")) in.c |= AccessFlags::kCtaScope;
}

void set_data_flags(LowerContext& c, const ptx::Operand& data, std::uint32_t bits) {
  Inst& in = c.b.last();
  const auto wide = [&](const ptx::Operand& row) {
    return c.b.is_register(row) && c.b.register_bits(row) == 64;
  };
  const bool is_wide = wide(first_row(data)) || bits == 64;
  for (const ptx::Operand& part : data.parts) {
    if (c.b.is_register(part) && wide(part) != is_wide) c.b.fail("registers of different widths");
  }
  if (is_wide) in.c |= AccessFlags::kWideData;
  if (c.opcode().which({"volatile", "relaxed", "acquire", "release"}) >= 0) {
    in.c |= AccessFlags::kStrong;
  }
  set_order_flags(c);
  if (c.opcode().type->is_signed()) in.c |= AccessFlags::kSigned;
  if (in.b != vector_size(c.opcode())) {
    c.b.fail(fmt::format("expected {} data registers, got {}", vector_size(c.opcode()),
                         static_cast<unsigned>(in.b)));
  }
}

ExecFn load_handler(std::uint32_t bytes) {
  switch (bytes) {
    case 1:
      return &exec::load<1>;
    case 2:
      return &exec::load<2>;
    case 4:
      return &exec::load<4>;
    case 8:
      return &exec::load<8>;
    default:
      return &exec::load<16>;
  }
}
ExecFn store_handler(std::uint32_t bytes) {
  switch (bytes) {
    case 1:
      return &exec::store<1>;
    case 2:
      return &exec::store<2>;
    case 4:
      return &exec::store<4>;
    case 8:
      return &exec::store<8>;
    default:
      return &exec::store<16>;
  }
}

exec::AtomicOp atomic_op(const ptx::Opcode& opcode) {
  return static_cast<exec::AtomicOp>(
      opcode.which({"add", "min", "max", "and", "or", "xor", "exch", "inc", "dec", "cas"}));
}

exec::AtomicType atomic_type(LowerContext& c) {
  using enum exec::AtomicType;
  const std::string_view name = c.opcode().type->name;
  constexpr std::pair<std::string_view, exec::AtomicType> kNames[] = {
      {"u32", kU32},       {"b32", kU32}, {"s32", kS32}, {"u64", kU64},     {"b64", kU64},
      {"s64", kS64},       {"b16", kB16}, {"f16", kF16}, {"f16x2", kF16x2}, {"bf16", kBF16},
      {"bf16x2", kBF16x2}, {"f32", kF32}, {"f64", kF64}};
  for (const auto& [text, type] : kNames) {
    if (text == name) return type;
  }
  c.b.fail("no such atomic type");
}

}  // namespace

void lower_load(LowerContext& c) {
  c.expect_operands(2, 3);
  const ptx::Type& type = *c.opcode().type;
  const ptx::Operand& data = c.operands()[0];
  c.b.emit(load_handler(type.bytes()));
  c.b.address(1, c.operands()[1]);
  c.b.list_destination(data, type.bits, false);
  set_space(c);
  set_data_flags(c, data, type.bits);
}

void lower_store(LowerContext& c) {
  c.expect_operands(2, 3);
  const ptx::Type& type = *c.opcode().type;
  const ptx::Operand data = c.b.materialise(c.operands()[1], type.bits);
  c.b.emit(store_handler(type.bytes()));
  c.b.address(1, c.operands()[0]);
  c.b.list_source(data, type.bits, false);
  set_space(c);
  set_data_flags(c, data, type.bits);
}

void lower_atomic(LowerContext& c) {
  const ptx::Opcode& opcode = c.opcode();
  const bool returns = opcode.spec->op == ptx::OpClass::kAtomic;
  const bool cas = atomic_op(opcode) == exec::AtomicOp::kCas;
  const std::size_t least = (returns ? 3u : 2u) + (cas ? 1u : 0u);
  c.expect_operands(least, least + 1);
  const std::uint32_t bits = opcode.type->bits;
  const std::size_t address = returns ? 1 : 0;
  const ptx::Operand value = c.b.materialise(c.operands()[address + 1], bits);
  c.b.emit(&exec::atomic);
  c.b.address(1, c.operands()[address]);
  c.b.list_source(value, bits);
  set_space(c);
  Inst& in = c.b.last();
  if (in.b != vector_size(opcode)) c.b.fail("wrong number of data registers");
  if (bits == 64) in.c |= AccessFlags::kWideData;
  in.c |= AccessFlags::kStrong;
  set_order_flags(c);
  in.extra = (in.extra << 16) | static_cast<std::uint32_t>(atomic_op(opcode)) |
             static_cast<std::uint32_t>(atomic_type(c)) << 8;
  if (c.b.lists.size() > 0xFFFF) c.b.fail("too many vector operands in this function");
  if (returns) c.b.destination(0, c.operands()[0], bits);
  if (cas) c.b.source(3, c.operands()[address + 2], bits);
}

void lower_matrix(LowerContext& c) {
  const ptx::Opcode& opcode = c.opcode();
  if (opcode.spec->op == ptx::OpClass::kMoveMatrix) {
    return lower_by_signature(c, &exec::move_matrix, Flow::kAligned);
  }
  const bool is_load = opcode.spec->op == ptx::OpClass::kLoadMatrix;
  c.expect_operands(2, 2);
  const ptx::Operand& data = c.operands()[is_load ? 0 : 1];
  const ptx::Operand& address = c.operands()[is_load ? 1 : 0];
  c.b.emit(is_load ? &exec::load_matrix : &exec::store_matrix, Flow::kAligned);
  c.b.address(1, address);
  if (is_load) {
    c.b.list_destination(data, 32);
  } else {
    c.b.list_source(data, 32);
  }
  using enum model::MatrixForm;
  const bool trans = opcode.has("trans");
  const model::MatrixForm form = opcode.has("m16n16")  ? kM16N16Trans
                                 : opcode.has("m16n8") ? kM16N8Trans
                                 : trans               ? kM8N8Trans
                                                       : kM8N8;
  const std::uint32_t count = 1u << opcode.which({"x1", "x2", "x4"});
  const std::uint32_t registers = model::matrix_registers(form, count);
  Inst& in = c.b.last();
  if (in.b != registers) c.b.fail(fmt::format("expected {} registers", registers));
  in.a = static_cast<std::uint8_t>(MemorySpace::kShared);
  in.op[2] = static_cast<std::int32_t>(form);
  in.op[3] = static_cast<std::int32_t>(count);
}

}  // namespace mxfa::emu::ir
