#include <fmt/format.h>

#include "exec/handlers.h"
#include "exec/observer.h"
#include "ir/lowering.h"

namespace mxfa::emu::ir {
namespace {

using Kind = ptx::Operand::Kind;

std::uint8_t mode(const ptx::Opcode& opcode, std::initializer_list<std::string_view> names) {
  return static_cast<std::uint8_t>(opcode.which(names));
}

// The last operand of the signature is the member mask.
void set_members(LowerContext& c, int k) { c.b.last().c = static_cast<std::uint8_t>(k); }

// bar{.cta}.{sync,arrive} id{, count};  bar.red.op d, id{, count}, p;
void lower_cta_barrier(LowerContext& c) {
  const ptx::Opcode& opcode = c.opcode();
  const bool red = opcode.has("red");
  const auto& operands = c.operands();
  c.expect_operands(red ? 3 : 1, red ? 4 : 2);
  const std::size_t id = red ? 1 : 0;
  const bool counted = operands.size() == (red ? 4u : 2u);
  const ptx::Operand id_operand = c.b.materialise(operands[id], 32);
  const ptx::Operand count = counted ? c.b.materialise(operands[id + 1], 32) : ptx::Operand{};
  const bool aligned = opcode.qualifiers[0] == "bar" || opcode.has("aligned");
  c.b.emit(&exec::cta_barrier, aligned ? Flow::kAligned : Flow::kBlocking);
  c.b.last().a = mode(opcode, {"sync", "arrive", "popc", "and", "or"});
  c.b.last().b = aligned ? 1 : 0;
  c.b.source(0, id_operand, 32);
  if (counted) c.b.source(1, count, 32);
  if (opcode.has("arrive") && !counted) c.b.fail("bar.arrive needs a thread count");
  if (!red) return;
  if (opcode.has("popc")) {
    c.b.destination(2, operands[0], 32);
  } else {
    c.b.predicate_destination(2, operands[0]);
  }
  c.b.predicate_source(3, operands.back());
}

void lower_set_max_registers(LowerContext& c) {
  lower_by_signature(c, &exec::set_max_registers, Flow::kAligned);
  const std::int64_t count = c.b.last().imm;
  if (count < 24 || count > 256 || count % 8 != 0) {
    c.b.fail("expected 24 to 256 registers, a multiple of 8");
  }
  c.b.last().a = c.opcode().has("inc") ? 1 : 0;
}

void lower_map_address(LowerContext& c) {
  lower_by_signature(c, &exec::map_address);
  c.b.last().a = c.opcode().type->bits == 64 ? 8 : 4;
  c.b.last().b = c.opcode().qualifiers[0] == "getctarank" ? 1 : 0;
  c.b.last().c = c.opcode().has("shared::cluster") ? 1 : 0;
}

void lower_fence(LowerContext& c) {
  using exec::FenceFlags;
  const ptx::Opcode& opcode = c.opcode();
  exec::FenceKind kind = exec::FenceKind::kThread;
  std::uint8_t flags = 0;
  if (opcode.has("proxy")) {
    const int space = opcode.which(
        {"global", "async.global", "shared::cta", "shared::cluster", "async.shared::cta"});
    const bool async = opcode.has("async") || opcode.qualifiers.back().starts_with("async.");
    kind = async ? exec::FenceKind::kProxyAsync : exec::FenceKind::kProxyOther;
    if (space < 0 || space >= 2) flags |= FenceFlags::kShared;
    if (space < 2) flags |= FenceFlags::kGlobal;
  } else if (opcode.has("mbarrier_init")) {
    kind = exec::FenceKind::kMbarrierInit;
  } else {
    if (!opcode.has("release")) flags |= FenceFlags::kAcquire;
    if (!opcode.has("acquire")) flags |= FenceFlags::kRelease;
    if (opcode.has("cta")) flags |= FenceFlags::kCtaScope;
  }
  Inst& in = c.b.emit(&exec::fence);
  in.a = static_cast<std::uint8_t>(kind);
  in.b = flags;
}

exec::MemorySpace tested_space(const ptx::Opcode& opcode) {
  switch (opcode.which({"global", "const", "shared", "shared::cta", "shared::cluster", "local"})) {
    case 0:
      return exec::MemorySpace::kGlobal;
    case 1:
      return exec::MemorySpace::kConst;
    case 5:
      return exec::MemorySpace::kLocal;
    case -1:
      return exec::MemorySpace::kParam;
    default:
      return exec::MemorySpace::kShared;
  }
}

}  // namespace

void lower_branch(LowerContext& c) {
  c.expect_operands(1, 1);
  if (c.operands()[0].kind != Kind::kLabel) c.b.fail("expected a label");
  c.b.emit(&exec::no_operation, Flow::kBranch).imm =
      static_cast<std::int64_t>(c.operands()[0].index);
}

// brx.idx index, list; the parser puts the labels of the list in its place. One comparison and one
// branch a target; an index that no target has is undefined behaviour, here an error.
void lower_indexed_branch(LowerContext& c) {
  const auto& operands = c.operands();
  if (operands.size() < 2) c.b.fail("expected an index and a list of targets");
  const ptx::Operand index = c.b.materialise(operands[0], 32);
  for (std::size_t i = 1; i < operands.size(); ++i) {
    if (operands[i].kind != Kind::kLabel) c.b.fail("expected a list of targets");
    const std::uint32_t taken = c.b.temporary(1, RowClass::kPredicate);
    c.b.emit(c.lane_kernel("setp.eq.u32"));
    c.b.temporary_destination(0, taken);
    c.b.last().op[1] = kSinkPredicate;
    c.b.source(2, index, 32);
    c.b.constant(3, i - 1, 32);
    c.b.move_guard(4);
    c.b.emit(&exec::no_operation, Flow::kBranch).imm = static_cast<std::int64_t>(operands[i].index);
    c.b.guard_by(taken);
  }
  c.b.emit(&exec::no_branch_target);
  c.b.source(0, index, 32);
}

// call (ret), name, (params): the two functions that device code of nvcc calls out to.
void lower_call(LowerContext& c) {
  const ptx::Operand* callee = nullptr;
  const ptx::Operand* params = nullptr;
  for (const ptx::Operand& operand : c.operands()) {
    if (operand.kind == Kind::kFunction) callee = &operand;
    if (operand.kind == Kind::kVector && callee != nullptr) params = &operand;
  }
  const std::string_view name = callee == nullptr ? "" : callee->name;
  const bool is_printf = name == "vprintf";
  const std::size_t count = is_printf ? 2 : 5;
  if (!is_printf && name != "__assertfail") {
    c.b.fail(fmt::format("call of '{}': only vprintf and __assertfail are known", name));
  }
  if (params == nullptr || params->parts.size() != count) {
    c.b.fail(fmt::format("expected {} parameters", count));
  }
  c.b.emit(is_printf ? &exec::call_printf : &exec::call_assert);
  c.b.last().extra = static_cast<std::uint32_t>(c.b.lists.size());
  c.b.last().b = static_cast<std::uint8_t>(count);
  for (const ptx::Operand& param : params->parts) {
    if (param.kind != Kind::kVariable || param.module_scope) c.b.fail("expected a parameter slot");
    c.b.lists.push_back(static_cast<std::int32_t>(c.b.variable_offset(param)));
  }
}

void lower_together(LowerContext& c) {
  const ptx::Opcode& opcode = c.opcode();
  switch (opcode.spec->op) {
    case ptx::OpClass::kShfl:
      lower_by_signature(c, c.lane_kernel(fmt::format("shfl.{}", opcode.qualifiers[2])),
                         Flow::kMembers);
      return set_members(c, 5);
    case ptx::OpClass::kVote:
      lower_by_signature(c, &exec::vote, Flow::kMembers);
      c.b.last().a = mode(opcode, {"all", "any", "uni", "ballot"});
      return set_members(c, 2);
    case ptx::OpClass::kMatch: {
      lower_by_signature(c, &exec::match, Flow::kMembers);
      const bool all = opcode.has("all");
      c.b.last().a = all ? 1 : 0;
      c.b.last().b = opcode.type->bits == 64 ? 8 : 4;
      return set_members(c, all ? 3 : 2);
    }
    case ptx::OpClass::kElect:
      lower_by_signature(c, &exec::elect, Flow::kMembers);
      return set_members(c, 2);
    case ptx::OpClass::kRedux: {
      lower_by_signature(c, &exec::redux, Flow::kMembers);
      c.b.last().a = mode(opcode, {"add", "min", "max", "and", "or", "xor"});
      std::uint8_t flags = 0;
      if (opcode.type->is_signed()) flags |= exec::ReduxFlags::kSigned;
      if (opcode.type->is_float()) flags |= exec::ReduxFlags::kFloat;
      if (opcode.has("abs")) flags |= exec::ReduxFlags::kAbs;
      if (opcode.has("NaN")) flags |= exec::ReduxFlags::kNan;
      c.b.last().b = flags;
      return set_members(c, 2);
    }
    default:
      return lower_by_signature(c, &exec::active_mask);
  }
}

void lower_barrier(LowerContext& c) {
  const ptx::Opcode& opcode = c.opcode();
  if (opcode.spec->op == ptx::OpClass::kCtaBarrier) return lower_cta_barrier(c);
  if (opcode.spec->op == ptx::OpClass::kWarpBarrier) {
    lower_by_signature(c, &exec::no_operation, Flow::kWarpBarrier);
    return set_members(c, 0);
  }
  const bool aligned = opcode.has("aligned");
  lower_by_signature(c, &exec::cluster_barrier, aligned ? Flow::kAligned : Flow::kBlocking);
  c.b.last().a = opcode.has("wait") ? 1 : 0;
  c.b.last().b = aligned ? 1 : 0;
  c.b.last().c = opcode.has("relaxed") ? 1 : 0;
}

void lower_control(LowerContext& c) {
  const ptx::Opcode& opcode = c.opcode();
  switch (opcode.spec->op) {
    case ptx::OpClass::kExit:
      return lower_by_signature(c, &exec::no_operation, Flow::kExit);
    case ptx::OpClass::kTrap:
      return lower_by_signature(c, &exec::trap);
    case ptx::OpClass::kFence:
      return c.opcode().has("tensormap::generic") ? lower_tensor_map_fence(c) : lower_fence(c);
    case ptx::OpClass::kHint:
      c.b.emit(&exec::no_operation);
      return;
    case ptx::OpClass::kSleep:
      return lower_by_signature(c, &exec::no_operation, Flow::kYield);
    case ptx::OpClass::kMapa:
      return lower_map_address(c);
    case ptx::OpClass::kIsSpace:
      lower_by_signature(c, &exec::is_space);
      c.b.last().a = static_cast<std::uint8_t>(tested_space(opcode));
      return;
    case ptx::OpClass::kSetMaxRegisters:
      return lower_set_max_registers(c);
    case ptx::OpClass::kGridDependency:
      lower_by_signature(c, &exec::grid_dependency);
      c.b.last().a = c.opcode().has("wait") ? 1 : 0;
      return;
    case ptx::OpClass::kCreatePolicy:
      // The policy is a hint: any number will do.
      if (c.operands().empty()) c.b.fail("expected a destination");
      c.b.emit(c.lane_kernel("mov.b64"));
      c.b.destination(0, c.operands()[0], 64);
      c.b.constant(1, 0, 64);
      return;
    default:
      c.b.fail("no lowering for this opcode");
  }
}

}  // namespace mxfa::emu::ir
