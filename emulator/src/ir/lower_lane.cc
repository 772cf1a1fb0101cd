#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "exec/convert.h"
#include "exec/handlers.h"
#include "exec/perturb.h"
#include "ir/lowering.h"
#include "mem/shared.h"

namespace mxfa::emu::ir {
namespace {

using Kind = ptx::Operand::Kind;

std::vector<std::string_view> split_words(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const std::size_t end = text.find(' ');
    words.push_back(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
  }
  return words;
}

std::uint32_t token_bits(const LowerContext& c, std::string_view token) {
  if (token == "T") return c.opcode().type->bits;
  if (token == "U") return c.opcode().first_type->bits;
  if (token == "W") return c.opcode().type->bits * 2u;
  return ptx::find_type(token)->bits;
}

class SignatureLowering {
 public:
  SignatureLowering(LowerContext& c, ExecFn exec, Flow flow) : c_(c), exec_(exec), flow_(flow) {}

  void run() {
    tokens_ = split_words(c_.opcode().spec->operands);
    if (!tokens_.empty() && tokens_.back() == "*") tokens_.pop_back();
    std::size_t required = 0;
    for (const std::string_view token : tokens_) required += token[0] == '[' ? 0 : 1;
    const auto& operands = c_.operands();
    if (operands.size() < required || operands.size() > tokens_.size()) {
      c_.b.fail(fmt::format("expected {} operands, got {}", required, operands.size()));
    }
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const std::string_view token = strip(tokens_[i]);
      values_.push_back(is_value(token) ? c_.b.materialise(operands[i], token_bits(c_, token))
                                        : operands[i]);
    }
    c_.b.emit(exec_, flow_);
    for (std::size_t i = 0; i < values_.size(); ++i) place(strip(tokens_[i]), values_[i]);
  }

 private:
  static std::string_view strip(std::string_view token) {
    return token[0] == '[' ? token.substr(1, token.size() - 2) : token;
  }
  static bool is_value(std::string_view token) {
    return token[0] != '=' && token[0] != '@' && token[0] != 'v' && token != "pred" &&
           token != "imm" && token != "label";
  }

  void place(std::string_view token, const ptx::Operand& operand) {
    if (token == "pred") {
      c_.b.predicate_source(k_++, operand);
    } else if (token == "=pred") {
      c_.b.predicate_destination(k_++, operand);
    } else if (token == "=pred2") {
      place_pair(operand, 0);
    } else if (token.ends_with("|pred")) {
      place_pair(operand, token_bits(c_, token.substr(1, token.size() - 6)));
    } else if (token == "@") {
      c_.b.address(k_++, operand);
    } else if (token == "imm") {
      c_.b.last().imm = static_cast<std::int64_t>(c_.b.integer(operand, "a number"));
    } else if (token.starts_with("=v")) {
      c_.b.list_destination(operand, token_bits(c_, token.substr(2)));
      ++k_;
    } else if (token[0] == 'v') {
      c_.b.list_source(operand, token_bits(c_, token.substr(1)));
      ++k_;
    } else if (token[0] == '=') {
      c_.b.destination(k_++, operand, token_bits(c_, token.substr(1)));
    } else {
      c_.b.source(k_++, operand, token_bits(c_, token));
    }
  }

  // p|q, or d|p where `bits` is the width of d; the second one may be left out.
  void place_pair(const ptx::Operand& operand, std::uint32_t bits) {
    static const ptx::Operand kSink;
    const bool pair = operand.kind == Kind::kPair;
    const ptx::Operand& first = pair ? operand.parts[0] : operand;
    const ptx::Operand& second = pair ? operand.parts[1] : kSink;
    if (bits == 0) {
      c_.b.predicate_destination(k_++, first);
    } else {
      c_.b.destination(k_++, first, bits);
    }
    c_.b.predicate_destination(k_++, second);
  }

  LowerContext& c_;
  ExecFn exec_;
  Flow flow_;
  std::vector<std::string_view> tokens_;
  std::vector<ptx::Operand> values_;
  int k_ = 0;
};

std::uint8_t bool_op(const ptx::Opcode& opcode) {
  return static_cast<std::uint8_t>(opcode.which({"and", "or", "xor"}) + 1);
}

exec::NumberFormat format_of(std::string_view name) {
  using F = exec::NumberFormat;
  constexpr std::pair<std::string_view, F> kNames[] = {
      {"u8", F::kU8},       {"u16", F::kU16},      {"u32", F::kU32},     {"u64", F::kU64},
      {"s8", F::kS8},       {"s16", F::kS16},      {"s32", F::kS32},     {"s64", F::kS64},
      {"f16", F::kF16},     {"bf16", F::kBF16},    {"tf32", F::kTF32},   {"f32", F::kF32},
      {"f64", F::kF64},     {"f16x2", F::kF16},    {"bf16x2", F::kBF16}, {"e4m3x2", F::kE4M3},
      {"e5m2x2", F::kE5M2}, {"e2m3x2", F::kE2M3},  {"e3m2x2", F::kE3M2}, {"e2m1x2", F::kE2M1},
      {"e4m3x4", F::kE4M3}, {"e5m2x4", F::kE5M2},  {"e2m3x4", F::kE2M3}, {"e3m2x4", F::kE3M2},
      {"e2m1x4", F::kE2M1}, {"ue8m0x2", F::kUE8M0}};
  for (const auto& [text, format] : kNames) {
    if (text == name) return format;
  }
  return F::kF32;
}

exec::Rounding rounding_of(const ptx::Opcode& opcode) {
  using enum exec::Rounding;
  switch (opcode.which({"rz", "rzi", "rm", "rmi", "rp", "rpi", "rna", "rs"})) {
    case 0:
    case 1:
      return kZero;
    case 2:
    case 3:
      return kDown;
    case 4:
    case 5:
      return kUp;
    case 6:
      return kNearestAway;
    case 7:
      return kStochastic;
    default:
      return kNearestEven;
  }
}

exec::ConvertSpec convert_spec(const ptx::Opcode& opcode) {
  exec::ConvertSpec spec;
  spec.to = format_of(opcode.first_type->name);
  spec.from = format_of(opcode.type->name);
  spec.mode = rounding_of(opcode);
  const bool integral = opcode.which({"rni", "rzi", "rmi", "rpi"}) >= 0;
  const auto flag = [&](bool on, std::uint8_t bit) {
    if (on) spec.flags |= bit;
  };
  flag(opcode.has("ftz"), exec::ConvertSpec::kFlush);
  flag(opcode.has("sat"), exec::ConvertSpec::kSaturate);
  flag(opcode.has("satfinite"), exec::ConvertSpec::kFinite);
  flag(opcode.has("relu"), exec::ConvertSpec::kRelu);
  flag(integral && !exec::is_integer(spec.to), exec::ConvertSpec::kIntegral);
  const bool to_pack = opcode.first_type->kind == ptx::TypeKind::kPacked;
  const bool from_pack = opcode.type->kind == ptx::TypeKind::kPacked;
  if (to_pack) {
    spec.shape = from_pack ? exec::ConvertShape::kEach : exec::ConvertShape::kJoin;
    if (opcode.first_type->name.ends_with("x4")) spec.shape = exec::ConvertShape::kFour;
  }
  // Float to integer without a mode does not exist; integer to integer truncates.
  return spec;
}

std::uint8_t slot_of(const LowerContext& c, const ptx::Operand& operand, std::uint32_t bits) {
  const bool is_register = operand.kind == Kind::kRegister;
  return (is_register ? c.b.register_bits(operand) : bits) == 64 ? 8 : 4;
}

}  // namespace

void lower_by_signature(LowerContext& c, ExecFn exec, Flow flow) {
  SignatureLowering(c, exec, flow).run();
}

void lower_lane(LowerContext& c) {
  const ptx::Opcode& opcode = c.opcode();
  std::string key = opcode.key;
  const std::string_view base = opcode.qualifiers[0];
  const std::string width = opcode.type != nullptr && opcode.type->bits == 64 ? "b64" : "b32";
  if (base == "selp") key = "selp." + width;
  if (base == "slct") {
    const std::string value = opcode.first_type->bits == 64 ? "b64." : "b32.";
    key = std::string(opcode.has("ftz") ? "slct.ftz." : "slct.") + value +
          std::string(opcode.type->name);
  }
  if ((base == "min" || base == "max") && c.operands().size() == 4)
    key = std::string(base) + "3" + key.substr(3);
  if (base == "shr" && opcode.type->kind == ptx::TypeKind::kBits) {
    key = fmt::format("shr.u{}", opcode.type->bits);
  }
  lower_by_signature(c, c.lane_kernel(key));
  c.b.last().a = exec::approximation(opcode.qualifiers[0], opcode.key, opcode.has("approx"),
                                     opcode.has("full"));
}

void lower_setp(LowerContext& c) {
  lower_by_signature(c, c.lane_kernel(c.opcode().key));
  Inst& in = c.b.last();
  in.a = bool_op(c.opcode());
  if (c.opcode().qualifiers[0] == "testp") {
    // testp p, a: the comparison's layout is p, q, a, b, c.
    for (RegisterUse& use : c.b.uses) {
      if (use.inst + 1 == c.b.code.size() && use.where == 1) use.where = 2;
    }
    in.op[2] = in.op[1];
    in.op[1] = kSinkPredicate;
    in.op[3] = kSinkRow;
    in.op[4] = kTruePredicate;
    return;
  }
  if (in.a != 0 && c.operands().size() != 4) c.b.fail("expected a predicate to combine with");
  if (in.a == 0 && c.operands().size() == 4) c.b.fail("expected .and, .or or .xor");
  if (in.a == 0) in.op[4] = kTruePredicate;
}

// A comparison into a temporary predicate, expanded to all ones (1.0 for f32) or zero.
void lower_set(LowerContext& c) {
  c.expect_operands(3, 3);
  const ptx::Opcode& opcode = c.opcode();
  const std::uint32_t bits = opcode.type->bits;
  const ptx::Operand a = c.b.materialise(c.operands()[1], bits);
  const ptx::Operand b = c.b.materialise(c.operands()[2], bits);
  const std::string key = fmt::format("setp.{}{}.{}", opcode.qualifiers[1],
                                      opcode.has("ftz") ? ".ftz" : "", opcode.type->name);
  const std::uint32_t predicate = c.b.temporary(1, RowClass::kPredicate);
  c.b.emit(c.lane_kernel(key));
  c.b.temporary_destination(0, predicate);
  c.b.last().op[1] = kSinkPredicate;
  c.b.source(2, a, bits);
  c.b.source(3, b, bits);
  c.b.last().op[4] = kTruePredicate;
  c.b.emit(c.lane_kernel("set.expand")).imm =
      opcode.first_type->is_float() ? 0x3F800000 : 0xFFFFFFFF;
  c.b.destination(0, c.operands()[0], 32);
  c.b.temporary_source(1, predicate);
}

void lower_predicate_logic(LowerContext& c) {
  lower_by_signature(c, &exec::predicate_logic);
  c.b.last().a = static_cast<std::uint8_t>(c.opcode().which({"and", "or", "xor", "not", "mov"}));
}

namespace {

// Between a register and two halves of it that are registers, too.
bool lower_halves(LowerContext& c, const ptx::Operand& parts, const ptx::Operand& whole,
                  std::uint32_t bits, bool split) {
  const bool two = parts.parts.size() == 2 && (bits == 32 || bits == 64);
  const auto fits = [&](const ptx::Operand& part) {
    return c.b.is_register(part) || (split && part.kind == Kind::kSink);
  };
  if (!two || !std::ranges::all_of(parts.parts, fits)) return false;
  const std::uint32_t half = bits / 2;
  c.b.emit(c.lane_kernel(fmt::format("{}.{}x2", split ? "unpack" : "pack", half)));
  if (split) {
    c.b.source(2, whole, bits);
    for (int k : {0, 1}) c.b.destination(k, parts.parts[static_cast<std::size_t>(k)], half);
  } else {
    for (int k : {0, 1}) c.b.source(k + 1, parts.parts[static_cast<std::size_t>(k)], half);
    c.b.destination(0, whole, bits);
  }
  return true;
}

void lower_vector_mov(LowerContext& c, std::uint32_t bits, bool split) {
  const ptx::Operand& parts = c.operands()[split ? 0 : 1];
  const ptx::Operand& whole = c.operands()[split ? 1 : 0];
  const auto count = static_cast<std::uint32_t>(parts.parts.size());
  if (count == 0 || bits % count != 0) c.b.fail("vector does not divide the register");
  const std::uint32_t part_bits = bits / count;
  if (part_bits != 8 && part_bits != 16 && part_bits != 32 && part_bits != 64) {
    c.b.fail("vector does not divide the register");
  }
  if (lower_halves(c, parts, whole, bits, split)) return;
  c.b.emit(split ? &exec::unpack_rows : &exec::pack_rows);
  if (split) {
    c.b.list_destination(parts, part_bits);
    c.b.source(0, whole, bits);
  } else {
    c.b.list_source(parts, part_bits);
    c.b.destination(0, whole, bits);
  }
  c.b.last().a = static_cast<std::uint8_t>(part_bits);
  c.b.last().c = static_cast<std::uint8_t>(bits == 128 ? 16 : bits == 64 ? 8 : 4);
}

}  // namespace

void lower_mov(LowerContext& c) {
  c.expect_operands(2, 2);
  const ptx::Operand& to = c.operands()[0];
  const std::uint32_t bits = c.opcode().type->bits;
  const bool split = to.kind == Kind::kVector;
  const ptx::Operand& from = c.operands()[1];
  if (split || from.kind == Kind::kVector) return lower_vector_mov(c, bits, split);
  const ptx::Operand source = c.b.materialise(from, bits);
  c.b.emit(bits == 128 ? &exec::move_128 : c.lane_kernel(bits == 64 ? "mov.b64" : "mov.b32"));
  c.b.destination(0, to, bits);
  c.b.source(1, source, bits);
}

void lower_cvt(LowerContext& c) {
  const ptx::Opcode& opcode = c.opcode();
  exec::ConvertSpec spec = convert_spec(opcode);
  const bool float_to_int = !exec::is_integer(spec.from) && exec::is_integer(spec.to);
  if (float_to_int && opcode.which({"rni", "rzi", "rmi", "rpi"}) < 0) {
    c.b.fail("float to integer needs rni, rzi, rmi or rpi");
  }
  std::vector<ptx::Operand> operands(c.operands().begin(), c.operands().end());
  if (operands.size() < 2) c.b.fail("expected a destination and a source");
  if (spec.shape == exec::ConvertShape::kFour) {
    if (operands[1].kind != Kind::kVector || operands[1].parts.size() != 4) {
      c.b.fail("expected a vector of four");
    }
    const ptx::Operand vector = operands[1];
    operands.erase(operands.begin() + 1);
    operands.insert(operands.begin() + 1, vector.parts.begin(), vector.parts.end());
  }
  const bool stochastic = spec.mode == exec::Rounding::kStochastic;
  const std::size_t sources = (spec.shape == exec::ConvertShape::kFour   ? 4u
                               : spec.shape == exec::ConvertShape::kJoin ? 2u
                                                                         : 1u) +
                              (stochastic ? 1u : 0u);
  if (operands.size() != sources + 1) c.b.fail(fmt::format("expected {} sources", sources));
  const std::uint32_t from_bits = opcode.type->bits;
  const std::uint32_t to_bits = opcode.first_type->bits;
  for (std::size_t i = 1; i <= sources; ++i) operands[i] = c.b.materialise(operands[i], from_bits);
  spec.from_slot = slot_of(c, operands[1], from_bits);
  spec.to_slot = slot_of(c, operands[0], to_bits);
  const ExecFn fast = c.kernels.find(opcode.key);
  const bool natural =
      spec.from_slot == (from_bits == 64 ? 8 : 4) && spec.to_slot == (to_bits == 64 ? 8 : 4);
  c.b.emit(fast != nullptr && natural ? fast : &exec::convert_lanes);
  c.b.last().imm = std::bit_cast<std::int64_t>(spec);
  const auto check = [&](const ptx::Operand& operand, std::uint32_t bits) {
    if (c.b.is_register(operand) && c.b.register_bits(operand) < bits && bits > 16) {
      c.b.fail(fmt::format("operand {}: expected {} bits or more", operand.name, bits));
    }
  };
  check(operands[0], to_bits);
  c.b.destination_any(0, operands[0]);
  for (std::size_t i = 1; i <= sources; ++i) {
    check(operands[i], stochastic && i == sources ? 32 : from_bits);
    const int k = stochastic && i == sources && spec.shape == exec::ConvertShape::kJoin
                      ? 3
                      : static_cast<int>(i);
    if (c.b.is_register(operands[i])) {
      c.b.source_any(k, operands[i]);
    } else {
      c.b.source(k, operands[i], std::max(from_bits, 32u));
    }
  }
}

void lower_cvta(LowerContext& c) {
  c.expect_operands(2, 2);
  const ptx::Opcode& opcode = c.opcode();
  const bool to = opcode.has("to");
  mem::Window window = mem::Window::kGlobal;
  if (opcode.which({"shared", "shared::cta", "shared::cluster"}) >= 0) {
    window = mem::Window::kShared;
  } else if (opcode.has("local")) {
    window = mem::Window::kLocal;
  }
  const ptx::Operand source = c.b.materialise(c.operands()[1], 64);
  if (window == mem::Window::kGlobal) {
    c.b.emit(c.lane_kernel("mov.b64"));
  } else {
    c.b.emit(c.lane_kernel(to ? "and.b64" : "or.b64"));
    c.b.constant(2, to ? ~(std::uint64_t{0xFF} << 56) : mem::window_base(window), 64);
  }
  c.b.destination(0, c.operands()[0], 64);
  c.b.source(1, source, 64);
}

}  // namespace mxfa::emu::ir
