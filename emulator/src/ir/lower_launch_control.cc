#include "exec/handlers.h"
#include "ir/lowering.h"

/// clusterlaunchcontrol. PTX ISA 9.0, sections 9.7.13.17 and .18.
namespace mxfa::emu::ir {

void lower_launch_control(LowerContext& c) {
  const ptx::Opcode& opcode = c.opcode();
  const auto& operands = c.operands();
  c.expect_operands(2, 2);
  if (opcode.has("try_cancel")) {
    const AddressValue response = address_value(c, operands[0]);
    const AddressValue barrier = address_value(c, operands[1]);
    c.b.emit(&exec::cancel_launch, Flow::kBlocking);
    c.b.source(0, response.operand, response.bits);
    c.b.source(1, barrier.operand, barrier.bits);
    c.b.last().a = opcode.has("multicast::cluster::all") ? 1 : 0;
    c.b.last().b =
        static_cast<std::uint8_t>((response.bits == 64 ? 1 : 0) | (barrier.bits == 64 ? 2 : 0));
    return;
  }
  const bool asks = opcode.has("is_canceled");
  c.b.emit(&exec::query_cancel, Flow::kBlocking);
  c.b.source(1, operands[1], 128);
  if (asks) {
    c.b.predicate_destination(0, operands[0]);
    return;
  }
  c.b.list_destination(operands[0], 32);
  const int dimension =
      opcode.which({"get_first_ctaid::x", "get_first_ctaid::y", "get_first_ctaid::z"});
  if (c.b.last().b != (dimension < 0 ? 4 : 1)) c.b.fail("expected one register a dimension");
  c.b.last().a = 1;
  c.b.last().c = static_cast<std::uint8_t>(dimension < 0 ? 0 : dimension);
}

}  // namespace mxfa::emu::ir
