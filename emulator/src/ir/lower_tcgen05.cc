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
  in.a = static_cast<std::uint8_t>(exec::MemorySpace::kShared);
  in.b = group;
  in.extra = static_cast<std::uint32_t>(op);
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

// cp [taddr], descriptor;
void lower_copy(LowerContext& c) {
  const ptx::Opcode& opcode = c.opcode();
  c.expect_operands(2, 2);
  const std::uint8_t group = cta_group(c);
  const ptx::Operand address = tensor_address(c, c.operands()[0]);
  const ptx::Operand source = c.b.materialise(c.operands()[1], 64);
  c.b.emit(&exec::tensor_copy, Flow::kBlocking);
  c.b.source(0, address, 32);
  c.b.source(1, source, 64);
  Inst& in = c.b.last();
  const int shape =
      opcode.which({"128x256b", "128x128b", "warpx2::02_13", "warpx2::01_23", "warpx4"});
  in.a = static_cast<std::uint8_t>(shape);
  in.b = group;
  in.imm = 1 + opcode.which({"b4x16_p64", "b6x16_p32"});
}

/// Operands of an mma in the order of the handler, made before it is emitted.
class MmaLowering {
 public:
  explicit MmaLowering(LowerContext& c) : c_(c) {}

  void run() {
    set_spec();
    const auto& operands = c_.operands();
    const bool scaled = c_.opcode().has("block_scale");
    const std::size_t least = scaled ? 7 : 5;
    c_.expect_operands(least, 7);
    rows_[0] = {tensor_address(c_, operands[0]), 32};
    spec_.a_in_tmem = operands[1].kind == Kind::kAddress ? 1 : 0;
    rows_[1] = spec_.a_in_tmem != 0 ? Row{tensor_address(c_, operands[1]), 32}
                                    : Row{c_.b.materialise(operands[1], 64), 64};
    rows_[2] = {c_.b.materialise(operands[2], 64), 64};
    rows_[3] = {c_.b.materialise(operands[3], 32), 32};
    std::size_t at = 4;
    if (scaled) {
      rows_[4] = {tensor_address(c_, operands[4]), 32};
      rows_[5] = {tensor_address(c_, operands[5]), 32};
      at = 6;
    } else if (operands[at].kind == Kind::kVector) {
      masks_ = &operands[at++];
    }
    if (at >= operands.size()) c_.b.fail("expected a predicate");
    const ptx::Operand& enable = operands[at++];
    if (at < operands.size()) set_scale_input(operands[at++]);
    if (at != operands.size()) c_.b.fail("too many operands");
    emit(enable);
  }

 private:
  struct Row {
    ptx::Operand operand;
    std::uint32_t bits = 0;
  };

  void set_spec() {
    const ptx::Opcode& opcode = c_.opcode();
    spec_.kind = static_cast<std::uint8_t>(
        opcode.which({"kind::f16", "kind::tf32", "kind::f8f6f4", "kind::mxf8f6f4"}));
    spec_.cta_group = cta_group(c_);
    const int collector = opcode.which({"collector::a::discard", "collector::a::fill",
                                        "collector::a::use", "collector::a::lastuse"});
    spec_.collector = static_cast<std::uint8_t>(collector < 0 ? 0 : collector);
  }

  void set_scale_input(const ptx::Operand& operand) {
    const std::uint64_t scale = c_.b.integer(operand, "scale-input-d");
    const bool has = c_.opcode().has("kind::f16") || c_.opcode().has("kind::tf32");
    if (scale > 15 || !has) c_.b.fail("scale-input-d: expected 0..15 and kind::f16 or kind::tf32");
    spec_.scale_input_d = static_cast<std::uint8_t>(scale);
  }

  void emit(const ptx::Operand& enable) {
    c_.b.emit(&exec::tensor_mma, Flow::kBlocking);
    for (int k = 0; k < 6; ++k) {
      if (rows_[k].bits != 0) c_.b.source(k, rows_[k].operand, rows_[k].bits);
    }
    c_.b.predicate_source(6, enable);
    if (masks_ != nullptr) {
      c_.b.list_source(*masks_, 32);
      const std::size_t wanted = 4u * spec_.cta_group;
      if (masks_->parts.size() != wanted) {
        c_.b.fail(fmt::format("disable-output-lane: expected {} words, got {}", wanted,
                              masks_->parts.size()));
      }
    }
    c_.b.last().imm = std::bit_cast<std::int64_t>(spec_);
  }

  LowerContext& c_;
  exec::TensorMmaSpec spec_;
  Row rows_[6];
  const ptx::Operand* masks_ = nullptr;
};

// commit [mbarrier] {, mask};
void lower_commit(LowerContext& c) {
  const bool multicast = c.opcode().has("multicast::cluster");
  c.expect_operands(multicast ? 2 : 1, multicast ? 2 : 1);
  const std::uint8_t group = cta_group(c);
  const ptx::Operand mask = multicast ? c.b.materialise(c.operands()[1], 16) : ptx::Operand{};
  c.b.emit(&exec::tensor_commit, Flow::kBlocking);
  c.b.address(1, c.operands()[0]);
  c.b.last().a = static_cast<std::uint8_t>(exec::MemorySpace::kShared);
  c.b.last().b = group;
  if (multicast) c.b.source(2, mask, 16);
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
  if (name == "cp") return lower_copy(c);
  if (name == "mma") return MmaLowering(c).run();
  if (name == "commit") return lower_commit(c);
  lower_alloc(c);
}

}  // namespace mxfa::emu::ir
