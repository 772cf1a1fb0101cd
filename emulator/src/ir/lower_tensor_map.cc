#include "exec/handlers.h"
#include "exec/observer.h"
#include "ir/lowering.h"
#include "model/tensor_map.h"

/// tensormap and the fences of its proxy. PTX ISA 9.0, sections 9.7.9.26, .27 and 9.7.13.4.
namespace mxfa::emu::ir {
namespace {

std::uint8_t wide_bits(const AddressValue& first, bool second) {
  return static_cast<std::uint8_t>((first.bits == 64 ? 1 : 0) | (second ? 2 : 0));
}

void expect_record_size(LowerContext& c, const ptx::Operand& operand) {
  if (c.b.integer(operand, "the size of a tensor map") != model::kTensorMapBytes) {
    c.b.fail("expected the size 128");
  }
}

// tensormap.replace.tile.FIELD{.ss}.b1024.type [map], {ordinal,} value;
void lower_replace(LowerContext& c) {
  const ptx::Opcode& opcode = c.opcode();
  const int field = opcode.which(
      {"global_address", "rank", "box_dim", "global_dim", "global_stride", "element_stride",
       "elemtype", "interleave_layout", "swizzle_mode", "swizzle_atomicity", "fill_mode"});
  const bool ordinal =
      opcode.which({"box_dim", "global_dim", "global_stride", "element_stride"}) >= 0;
  const std::size_t count = ordinal ? 3 : 2;
  c.expect_operands(count, count);
  const auto& operands = c.operands();
  const std::uint32_t bits = opcode.type->bits;
  const AddressValue map = address_value(c, operands[0]);
  const ptx::Operand value = c.b.materialise(operands.back(), bits);
  c.b.emit(&exec::replace_tensor_map, Flow::kBlocking);
  c.b.source(0, map.operand, map.bits);
  c.b.source(1, value, bits);
  Inst& in = c.b.last();
  in.a = static_cast<std::uint8_t>(field);
  in.b = wide_bits(map, bits == 64);
  const int space = opcode.which({"global", "shared::cta"});
  in.c = static_cast<std::uint8_t>(space == 0   ? exec::MapSpace::kGlobal
                                   : space == 1 ? exec::MapSpace::kShared
                                                : exec::MapSpace::kGeneric);
  if (ordinal) in.imm = static_cast<std::int64_t>(c.b.integer(operands[1], "an ordinal"));
}

}  // namespace

void lower_tensor_map(LowerContext& c) {
  if (c.opcode().has("replace")) return lower_replace(c);
  c.expect_operands(3, 3);
  const AddressValue to = address_value(c, c.operands()[0]);
  const AddressValue from = address_value(c, c.operands()[1]);
  expect_record_size(c, c.operands()[2]);
  c.b.emit(&exec::copy_tensor_map, Flow::kAligned);
  c.b.source(0, to.operand, to.bits);
  c.b.source(1, from.operand, from.bits);
  c.b.last().b = wide_bits(to, from.bits == 64);
}

void lower_tensor_map_fence(LowerContext& c) {
  const bool acquire = c.opcode().has("acquire");
  c.expect_operands(acquire ? 2 : 0, acquire ? 2 : 0);
  AddressValue map;
  if (acquire) {
    map = address_value(c, c.operands()[0]);
    expect_record_size(c, c.operands()[1]);
  }
  c.b.emit(&exec::fence_tensor_map, Flow::kBlocking);
  Inst& in = c.b.last();
  in.a = static_cast<std::uint8_t>(exec::FenceKind::kProxyOther);
  in.b = exec::FenceFlags::kGlobal;
  in.c = map.bits == 64 ? 1 : 0;
  if (acquire) c.b.source(0, map.operand, map.bits);
}

}  // namespace mxfa::emu::ir
