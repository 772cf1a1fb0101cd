#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>

#include "exec/handlers.h"
#include "ir/lowering.h"
#include "model/reduction.h"
#include "model/wgmma.h"

namespace mxfa::emu::ir {
namespace {

using Kind = ptx::Operand::Kind;

/// Collects the rows of a bulk instruction before it is emitted.
class BulkLowering {
 public:
  explicit BulkLowering(LowerContext& c) : c_(c) {}

  void run() {
    const ptx::Opcode& opcode = c_.opcode();
    spec_.rank = static_cast<std::uint8_t>(1 + opcode.which({"1d", "2d", "3d", "4d", "5d"}));
    if (opcode.qualifiers[0] == "st") {
      store_async();
    } else if (opcode.has("global") && opcode.has("bulk_group")) {
      to_global();
    } else if (opcode.has("global")) {
      from_global();
    } else {
      within_cluster();
    }
    if (opcode.qualifiers[1] == "reduce") set_reduction();
    emit();
  }

 private:
  struct Row {
    ptx::Operand operand;
    std::uint32_t bits = 0;
  };

  const ptx::Operand& next() {
    if (at_ >= c_.operands().size()) c_.b.fail("too few operands");
    return c_.operands()[at_++];
  }

  void take_address(int k) { set(k, address_value(c_, next())); }
  void set(int k, const AddressValue& value) { rows_[k] = {value.operand, value.bits}; }
  void take_value(int k, std::uint32_t bits) { rows_[k] = {c_.b.materialise(next(), bits), bits}; }

  // [address] or, for tensors, [map, {coordinates}].
  void take_global(int k) {
    const ptx::Operand& operand = next();
    set(k, address_value(c_, operand));
    if (spec_.rank == 0) return;
    if (operand.parts.size() != 2 || operand.parts[1].kind != Kind::kVector ||
        operand.parts[1].parts.size() != spec_.rank) {
      c_.b.fail(fmt::format("expected a tensor map and {} coordinates", spec_.rank));
    }
    list_ = operand.parts[1];
  }

  void skip_policy() {
    if (c_.opcode().has("L2::cache_hint")) next();
  }

  void from_global() {
    spec_.kind = exec::BulkKind::kLoad;
    spec_.pair = c_.opcode().has("cta_group::2") ? 1 : 0;
    take_address(0);
    take_global(1);
    if (spec_.rank == 0) take_value(3, 32);
    take_address(2);
    if (c_.opcode().has("multicast::cluster")) {
      spec_.masked = 1;
      take_value(4, 16);
    }
    skip_policy();
  }

  void to_global() {
    spec_.kind = exec::BulkKind::kStore;
    take_global(1);
    take_address(0);
    if (spec_.rank == 0) take_value(3, 32);
    skip_policy();
    if (c_.opcode().has("cp_mask")) {
      spec_.masked = 1;
      take_value(4, 16);
    }
  }

  void within_cluster() {
    spec_.kind = exec::BulkKind::kShared;
    take_address(0);
    take_address(1);
    take_value(3, 32);
    take_address(2);
  }

  void store_async() {
    spec_.kind = exec::BulkKind::kStoreAsync;
    spec_.value_bytes = static_cast<std::uint8_t>(c_.opcode().type->bytes());
    take_address(0);
    list_ = c_.b.materialise(next(), c_.opcode().type->bits);
    take_address(2);
  }

  void set_reduction() {
    const ptx::Opcode& opcode = c_.opcode();
    spec_.kind = spec_.kind == exec::BulkKind::kShared ? exec::BulkKind::kReduceShared
                                                       : exec::BulkKind::kReduce;
    spec_.reduce_op = static_cast<std::uint8_t>(
        opcode.which({"add", "min", "max", "inc", "dec", "and", "or", "xor"}));
    if (opcode.type != nullptr) {
      const auto type = static_cast<std::uint8_t>(
          opcode.which({"u32", "s32", "u64", "s64", "b32", "b64", "f16", "bf16", "f32", "f64"}));
      spec_.reduce_type = type;
      model::check_reduction(
          spec_.kind == exec::BulkKind::kReduceShared ? model::ReduceTarget::kSharedCluster
                                                      : model::ReduceTarget::kGlobal,
          static_cast<model::ReduceOp>(spec_.reduce_op), static_cast<model::ReduceType>(type));
    }
  }

  void emit() {
    if (at_ != c_.operands().size()) c_.b.fail("too many operands");
    c_.b.emit(&exec::bulk_copy, Flow::kBlocking);
    for (int k = 0; k < 5; ++k) {
      if (rows_[k].bits == 0) continue;
      c_.b.source(k, rows_[k].operand, rows_[k].bits);
      if (rows_[k].bits == 64) spec_.wide |= static_cast<std::uint8_t>(1u << k);
    }
    if (list_.kind != Kind::kSink) {
      const bool values = spec_.kind == exec::BulkKind::kStoreAsync;
      c_.b.list_source(list_, values ? c_.opcode().type->bits : 32);
    }
    c_.b.last().imm = std::bit_cast<std::int64_t>(spec_);
  }

  LowerContext& c_;
  exec::BulkSpec spec_;
  Row rows_[5];
  ptx::Operand list_;
  std::size_t at_ = 0;
};

model::WgmmaType matrix_type(LowerContext& c, std::string_view name) {
  using enum model::WgmmaType;
  constexpr std::pair<std::string_view, model::WgmmaType> kNames[] = {
      {"f16", kF16},   {"bf16", kBF16}, {"tf32", kTF32}, {"e4m3", kE4M3},
      {"e5m2", kE5M2}, {"s8", kS8},     {"u8", kU8}};
  for (const auto& [text, type] : kNames) {
    if (text == name) return type;
  }
  c.b.fail("no such matrix type");
}

// 1 or -1: the sign; 0 or 1: the transposition.
bool choice(LowerContext& c, const ptx::Operand& operand, std::int64_t off, std::int64_t on) {
  if (operand.kind != Kind::kInteger || (operand.value != off && operand.value != on)) {
    c.b.fail(fmt::format("expected the constant {} or {}", off, on));
  }
  return operand.value == on;
}

model::WgmmaOp wgmma_op(LowerContext& c, bool registers_a) {
  const ptx::Opcode& opcode = c.opcode();
  const std::size_t last = opcode.qualifiers.size() - 1;
  model::WgmmaOp op;
  op.a = matrix_type(c, opcode.qualifiers[last - 1]);
  op.b = matrix_type(c, opcode.qualifiers[last]);
  const std::string_view d = opcode.qualifiers[last - 2];
  op.d = d == "f16"   ? model::AccumulatorType::kF16
         : d == "s32" ? model::AccumulatorType::kS32
                      : model::AccumulatorType::kF32;
  op.saturate = opcode.has("satfinite");
  const std::string_view size = *std::ranges::find_if(
      opcode.qualifiers, [](std::string_view word) { return word.starts_with("m64n"); });
  std::from_chars(size.data() + 4, size.data() + size.size(), op.n);
  const auto& operands = c.operands();
  const bool integer = op.d == model::AccumulatorType::kS32;
  const bool short_floats = op.a == model::WgmmaType::kF16 || op.a == model::WgmmaType::kBF16;
  const std::size_t transposes = short_floats ? (registers_a ? 1u : 2u) : 0u;
  c.expect_operands(integer ? 4 : 6 + transposes, integer ? 4 : 6 + transposes);
  if (integer) return op;
  op.negate_a = choice(c, operands[4], 1, -1);
  op.negate_b = choice(c, operands[5], 1, -1);
  if (transposes == 2 && choice(c, operands[6], 0, 1)) op.major_a = model::Major::kMN;
  if (transposes > 0 && choice(c, operands[5 + transposes], 0, 1)) op.major_b = model::Major::kMN;
  return op;
}

exec::WgmmaSpec encode(const model::WgmmaOp& op, bool registers_a) {
  exec::WgmmaSpec spec;
  spec.a = static_cast<std::uint8_t>(op.a);
  spec.b = static_cast<std::uint8_t>(op.b);
  spec.d = static_cast<std::uint8_t>(op.d);
  spec.n8 = static_cast<std::uint8_t>(op.n / 8);
  const auto flag = [&](bool on, std::uint8_t bit) {
    if (on) spec.flags |= bit;
  };
  flag(registers_a, exec::WgmmaSpec::kRegistersA);
  flag(op.negate_a, exec::WgmmaSpec::kNegateA);
  flag(op.negate_b, exec::WgmmaSpec::kNegateB);
  flag(op.major_a == model::Major::kMN, exec::WgmmaSpec::kTransposeA);
  flag(op.major_b == model::Major::kMN, exec::WgmmaSpec::kTransposeB);
  flag(op.saturate, exec::WgmmaSpec::kSaturate);
  return spec;
}

// Registers of D and A belong to the matrix unit until a wait.
void lower_wgmma_mma(LowerContext& c) {
  c.expect_operands(4, 8);
  const auto& operands = c.operands();
  const bool registers_a = operands[1].kind == Kind::kVector;
  const model::WgmmaOp op = wgmma_op(c, registers_a);
  model::check_wgmma(op);
  c.b.emit(&exec::wgmma_mma, Flow::kAligned);
  c.b.last().imm = std::bit_cast<std::int64_t>(encode(op, registers_a));
  c.b.last().extra = static_cast<std::uint32_t>(c.b.lists.size());
  const std::uint32_t count = c.b.rows(operands[0], 32, true, true);
  if (count != model::wgmma_d_regs(op)) {
    c.b.fail(fmt::format("expected {} registers of D, got {}", model::wgmma_d_regs(op), count));
  }
  c.b.last().b = static_cast<std::uint8_t>(count);
  for (std::uint32_t i = 0; i < count; ++i) {  // the old accumulator
    c.b.read_list(c.b.last().extra + i, operands[0].parts[i]);
  }
  c.b.hold(operands[0], RegisterOwner::kWgmma);
  if (registers_a) {
    c.b.hold(operands[1], RegisterOwner::kWgmma);
    if (c.b.rows(operands[1], 32, false, true) != 4) c.b.fail("expected 4 registers of A");
  } else {
    c.b.source(0, operands[1], 64);
  }
  c.b.source(1, operands[2], 64);
  c.b.predicate_source(2, operands[3]);
}

}  // namespace

AddressValue address_value(LowerContext& c, const ptx::Operand& operand) {
  if (operand.kind != Kind::kAddress) c.b.fail("expected an address");
  const ptx::Operand& base = operand.parts[0];
  if (base.kind == Kind::kVariable) {
    ptx::Operand moved = base;
    moved.value += operand.value;
    const bool shared = c.b.variable(base).space == ptx::Space::kShared;
    return {c.b.materialise(moved, shared ? 32 : 64), shared ? 32u : 64u};
  }
  if (!c.b.is_register(base)) c.b.fail("expected a register or a variable in the address");
  const std::uint32_t bits = c.b.register_bits(base);
  if (bits != 32 && bits != 64) c.b.fail("expected an address register of 32 or 64 bits");
  if (operand.value == 0) return {base, bits};
  const std::uint32_t sum = c.b.temporary(bits, bits == 64 ? RowClass::kRow8 : RowClass::kRow4);
  c.b.emit(c.lane_kernel(bits == 64 ? "add.u64" : "add.u32"));
  c.b.temporary_destination(0, sum);
  c.b.source(1, base, bits);
  const auto offset = static_cast<std::uint64_t>(operand.value);
  c.b.constant(2, bits == 64 ? offset : offset & 0xFFFFFFFFu, bits);
  ptx::Operand result;
  result.kind = Kind::kRegister;
  result.index = sum;
  return {result, bits};
}

void lower_mbarrier(LowerContext& c) {
  const ptx::Opcode& opcode = c.opcode();
  using enum exec::MbarrierOp;
  constexpr exec::MbarrierOp kOps[] = {kInit,   kInval, kExpectTx, kCompleteTx,  kArrive,
                                       kArrive, kWait,  kWait,     kPendingCount};
  // expect_tx is an operation of its own and a modifier of arrive.
  const std::string_view name = opcode.qualifiers[1];
  constexpr std::string_view kNames[] = {"init",        "inval",    "expect_tx",
                                         "complete_tx", "arrive",   "arrive_drop",
                                         "test_wait",   "try_wait", "pending_count"};
  std::size_t which = 0;
  while (kNames[which] != name) ++which;
  const exec::MbarrierOp op = kOps[which];
  std::uint32_t flags = 0;
  const auto flag = [&](bool on, std::uint8_t bit) { flags |= on ? bit : 0u; };
  flag(name == "arrive_drop", exec::MbarrierFlags::kDrop);
  flag(op == kArrive && opcode.has("expect_tx"), exec::MbarrierFlags::kExpect);
  flag(opcode.has("noComplete"), exec::MbarrierFlags::kNoComplete);
  flag(opcode.has("parity"), exec::MbarrierFlags::kParity);
  flag(name == "try_wait", exec::MbarrierFlags::kTry);
  flag(opcode.has("relaxed"), exec::MbarrierFlags::kRelaxed);
  const auto& operands = c.operands();
  const bool has_result = op == kArrive || op == kWait || op == kPendingCount;
  const std::size_t address = has_result ? 1 : 0;
  const bool has_address = op != kPendingCount;
  const std::size_t value = has_address ? address + 1 : 1;
  c.expect_operands(value, value + (op == kWait ? 2 : 1));
  const bool needs_value =
      op == kInit || op == kExpectTx || op == kCompleteTx || op == kWait || op == kPendingCount ||
      (flags & (exec::MbarrierFlags::kExpect | exec::MbarrierFlags::kNoComplete)) != 0;
  if (needs_value && operands.size() <= value) c.b.fail("too few operands");
  const std::uint32_t value_bits =
      op == kPendingCount || (op == kWait && !opcode.has("parity")) ? 64 : 32;
  ptx::Operand operand;
  if (operands.size() > value) operand = c.b.materialise(operands[value], value_bits);
  c.b.emit(&exec::mbarrier, Flow::kBlocking);
  if (has_address) c.b.address(1, operands[address]);
  c.b.last().a = static_cast<std::uint8_t>(exec::MemorySpace::kShared);
  c.b.last().extra = static_cast<std::uint32_t>(op) | flags << 8;
  if (op == kWait) {
    c.b.predicate_destination(0, operands[0]);
  } else if (has_result) {
    c.b.destination(0, operands[0], op == kArrive ? 64 : 32);
  }
  if (operands.size() > value) c.b.source(2, operand, value_bits);
}

void lower_bulk_copy(LowerContext& c) { BulkLowering(c).run(); }

void lower_async_group(LowerContext& c) {
  const ptx::Opcode& opcode = c.opcode();
  const bool bulk = opcode.spec->op == ptx::OpClass::kBulkGroup;
  if (opcode.has("mbarrier")) {
    lower_by_signature(c, &exec::copy_async_arrive, Flow::kBlocking);
    c.b.last().op[1] = c.b.last().op[0];
    for (RegisterUse& use : c.b.uses) {
      if (use.inst + 1 == c.b.code.size() && use.where == 0) use.where = 1;
    }
    c.b.last().a = static_cast<std::uint8_t>(exec::MemorySpace::kShared);
    c.b.last().b = opcode.has("noinc") ? 1 : 0;
    return;
  }
  if (opcode.has("commit_group") || opcode.has("wait_group") || opcode.has("wait_all")) {
    if (opcode.has("wait_all")) {  // also what is not committed yet
      c.b.emit(&exec::async_group, Flow::kBlocking).b = 1;
    }
    lower_by_signature(c, &exec::async_group, Flow::kBlocking);
    Inst& in = c.b.last();
    in.a = opcode.has("commit_group") ? 0 : opcode.has("read") ? 2 : 1;
    in.b = bulk ? 0 : 1;
    return;
  }
  c.expect_operands(3, 5);
  const AddressValue to = address_value(c, c.operands()[0]);
  const AddressValue from = address_value(c, c.operands()[1]);
  const std::uint64_t bytes = c.b.integer(c.operands()[2], "a size");
  if (bytes != 4 && bytes != 8 && bytes != 16) c.b.fail("expected a size of 4, 8 or 16");
  const bool sized = c.operands().size() > (opcode.has("L2::cache_hint") ? 4u : 3u);
  const ptx::Operand size = sized ? c.b.materialise(c.operands()[3], 32) : ptx::Operand{};
  c.b.emit(&exec::copy_async, Flow::kBlocking).imm = static_cast<std::int64_t>(bytes);
  c.b.source(0, to.operand, to.bits);
  c.b.source(1, from.operand, from.bits);
  if (sized) c.b.source(3, size, 32);
  c.b.last().b = static_cast<std::uint8_t>((to.bits == 64 ? 1 : 0) | (from.bits == 64 ? 2 : 0));
}

void lower_wgmma(LowerContext& c) {
  const ptx::Opcode& opcode = c.opcode();
  if (opcode.has("mma_async")) return lower_wgmma_mma(c);
  lower_by_signature(c, &exec::wgmma_group, Flow::kAligned);
  c.b.last().a = static_cast<std::uint8_t>(opcode.which({"fence", "commit_group", "wait_group"}));
  if (opcode.has("commit_group")) c.b.commit(RegisterOwner::kWgmma);
  if (opcode.has("wait_group") && c.b.last().imm == 0) c.b.release(RegisterOwner::kWgmma);
}

}  // namespace mxfa::emu::ir
