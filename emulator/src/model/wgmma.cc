#include "model/wgmma.h"

#include <bit>
#include <cstring>
#include <string>
#include <string_view>

#include "model/fault.h"

namespace mxfa::emu::model {
namespace {

constexpr std::uint32_t kM = 64;
constexpr std::uint32_t kThreads = 128;
constexpr std::uint32_t kKBytes = 32;

std::string_view type_name(WgmmaType type) {
  constexpr std::string_view kNames[] = {"f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8"};
  return kNames[static_cast<int>(type)];
}
std::string_view accumulator_name(AccumulatorType type) {
  constexpr std::string_view kNames[] = {"f16", "f32", "s32"};
  return kNames[static_cast<int>(type)];
}
bool is_int(WgmmaType type) { return type == WgmmaType::kS8 || type == WgmmaType::kU8; }
bool is_fp8(WgmmaType type) { return type == WgmmaType::kE4M3 || type == WgmmaType::kE5M2; }

mx::MmaType mma_type(WgmmaType type) {
  switch (type) {
    case WgmmaType::kF16:
      return mx::MmaType::kF16;
    case WgmmaType::kBF16:
      return mx::MmaType::kBF16;
    case WgmmaType::kTF32:
      return mx::MmaType::kTF32;
    case WgmmaType::kE4M3:
      return mx::MmaType::kE4M3;
    default:
      return mx::MmaType::kE5M2;
  }
}

bool types_match(const WgmmaOp& op) {
  if (is_int(op.a)) return is_int(op.b) && op.d == AccumulatorType::kS32;
  if (op.d == AccumulatorType::kS32) return false;
  if (is_fp8(op.a)) return is_fp8(op.b);
  return op.a == op.b && (op.a == WgmmaType::kF16 || op.d == AccumulatorType::kF32);
}

void check_registers(std::string_view what, std::size_t got, std::size_t want) {
  if (got != want) {
    fault(fmt::format("wgmma registers of {}", what), fmt::format("{} rows", want),
          static_cast<std::int64_t>(got));
  }
}

/// A or B, [rows][k] raw elements.
std::vector<std::byte> fetch(const MatrixDescriptor& desc, const OperandShape& shape,
                             std::span<const std::byte> smem) {
  check_operand(desc, shape, smem.size());
  std::vector<std::byte> raw(std::size_t{shape.mn} * kKBytes);
  fetch_operand(desc, shape, {smem}, raw);
  return raw;
}

std::vector<std::byte> fetch_a(const WgmmaOp& op, const WgmmaOperands& operands) {
  if (operands.a) return fetch(*operands.a, wgmma_a_shape(op), operands.smem);
  if (op.major_a != Major::kK) fault("wgmma imm-trans-a", "0 for A in registers", 1);
  std::vector<std::byte> raw(std::size_t{kM} * kKBytes);
  gather_a(operands.a_regs, wgmma_elem_bytes(op.a), raw);
  return raw;
}

void multiply_ints(const WgmmaOp& op, std::span<const std::byte> a, std::span<const std::byte> b,
                   ConstRegisterRows d_in, RegisterRows d_out) {
  std::vector<std::uint32_t> bits(std::size_t{kM} * op.n);
  gather_d(d_in, op.n, bits);
  std::vector<std::int32_t> d(bits.begin(), bits.end());
  mma_s32({a, op.a == WgmmaType::kS8, kM, kKBytes}, {b, op.b == WgmmaType::kS8, op.n, kKBytes},
          op.scale_d, op.saturate, d);
  bits.assign(d.begin(), d.end());
  scatter_d(bits, op.n, d_out);
}

}  // namespace

std::uint32_t wgmma_elem_bytes(WgmmaType type) {
  switch (type) {
    case WgmmaType::kF16:
    case WgmmaType::kBF16:
      return 2;
    case WgmmaType::kTF32:
      return 4;
    default:
      return 1;
  }
}

std::uint32_t wgmma_k(const WgmmaOp& op) { return kKBytes / wgmma_elem_bytes(op.a); }

std::uint32_t wgmma_d_regs(const WgmmaOp& op) {
  return op.d == AccumulatorType::kF16 ? op.n / 4 : op.n / 2;
}

void check_wgmma(const WgmmaOp& op) {
  if (!types_match(op)) {
    fault("wgmma types", "a combination of the ISA's table",
          fmt::format("{}.{}.{}", accumulator_name(op.d), type_name(op.a), type_name(op.b)));
  }
  // s32 results come in steps of 16 above 32.
  const std::uint32_t step = is_int(op.a) && op.n > 32 ? 16 : 8;
  if (op.n < 8 || op.n > 256 || op.n % step != 0) {
    fault("wgmma n", fmt::format("8..256 in steps of {}", step), op.n);
  }
  const bool wide = wgmma_elem_bytes(op.a) == 2;
  if (!wide && (op.major_a == Major::kMN || op.major_b == Major::kMN)) {
    fault("wgmma imm-trans", "0 unless the types are f16 or bf16", std::string(type_name(op.a)));
  }
  if (is_int(op.a) && (op.negate_a || op.negate_b)) {
    fault("wgmma imm-scale", "none for integers", "-1");
  }
  if (op.saturate && !is_int(op.a)) {
    fault("wgmma .satfinite", "integer types", std::string(type_name(op.a)));
  }
}

void gather_d(ConstRegisterRows regs, std::uint32_t n, std::span<std::uint32_t> d) {
  const std::uint32_t count = n / 2;
  check_registers("D", regs.size(), std::size_t{4} * count);
  for (std::uint32_t thread = 0; thread < kThreads; ++thread) {
    for (std::uint32_t i = 0; i < count; ++i) {
      const FragmentCoord at = wgmma_d_coord(thread, i);
      d[std::size_t{at.row} * n + at.col] = regs[thread / 32 * count + i][thread % 32];
    }
  }
}

void scatter_d(std::span<const std::uint32_t> d, std::uint32_t n, RegisterRows regs) {
  const std::uint32_t count = n / 2;
  check_registers("D", regs.size(), std::size_t{4} * count);
  for (std::uint32_t thread = 0; thread < kThreads; ++thread) {
    for (std::uint32_t i = 0; i < count; ++i) {
      const FragmentCoord at = wgmma_d_coord(thread, i);
      regs[thread / 32 * count + i][thread % 32] = d[std::size_t{at.row} * n + at.col];
    }
  }
}

void gather_d16(ConstRegisterRows regs, std::uint32_t n, std::span<std::uint16_t> d) {
  const std::uint32_t count = n / 4;
  check_registers("D", regs.size(), std::size_t{4} * count);
  for (std::uint32_t thread = 0; thread < kThreads; ++thread) {
    for (std::uint32_t i = 0; i < 2 * count; ++i) {
      const FragmentCoord at = wgmma_d_coord(thread, i);
      const std::uint32_t word = regs[thread / 32 * count + i / 2][thread % 32];
      d[std::size_t{at.row} * n + at.col] = static_cast<std::uint16_t>(word >> (16 * (i % 2)));
    }
  }
}

void scatter_d16(std::span<const std::uint16_t> d, std::uint32_t n, RegisterRows regs) {
  const std::uint32_t count = n / 4;
  check_registers("D", regs.size(), std::size_t{4} * count);
  for (std::uint32_t thread = 0; thread < kThreads; ++thread) {
    for (std::uint32_t i = 0; i < count; ++i) {
      // Both halves are neighbouring columns of one row.
      const FragmentCoord at = wgmma_d_coord(thread, 2 * i);
      const std::size_t index = std::size_t{at.row} * n + at.col;
      regs[thread / 32 * count + i][thread % 32] =
          d[index] | static_cast<std::uint32_t>(d[index + 1]) << 16;
    }
  }
}

void gather_a(ConstRegisterRows regs, std::uint32_t elem_bytes, std::span<std::byte> out) {
  check_registers("A", regs.size(), 16);
  for (std::uint32_t thread = 0; thread < kThreads; ++thread) {
    for (std::uint32_t reg = 0; reg < 4; ++reg) {
      const std::uint32_t word = regs[thread / 32 * 4 + reg][thread % 32];
      const FragmentCoord at = wgmma_a_coord(thread, reg, 0, elem_bytes);
      // The elements of a register are neighbours along K.
      std::memcpy(out.data() + std::size_t{at.row} * kKBytes + std::size_t{at.col} * elem_bytes,
                  &word, sizeof word);
    }
  }
}

OperandShape wgmma_a_shape(const WgmmaOp& op) {
  return {op.major_a, kM, wgmma_k(op), wgmma_elem_bytes(op.a)};
}
OperandShape wgmma_b_shape(const WgmmaOp& op) {
  return {op.major_b, op.n, wgmma_k(op), wgmma_elem_bytes(op.b)};
}

std::vector<ByteRange> wgmma_smem_ranges(const WgmmaOp& op, const WgmmaOperands& operands) {
  std::vector<ByteRange> ranges = operand_ranges(operands.b, wgmma_b_shape(op));
  if (operands.a) {
    for (const ByteRange& range : operand_ranges(*operands.a, wgmma_a_shape(op))) {
      ranges.push_back(range);
    }
  }
  return ranges;
}

void wgmma(const WgmmaOp& op, const WgmmaOperands& operands, MmaUnit& unit, ConstRegisterRows d_in,
           RegisterRows d_out) {
  check_wgmma(op);
  const std::vector<std::byte> raw_a = fetch_a(op, operands);
  const std::vector<std::byte> raw_b = fetch(operands.b, wgmma_b_shape(op), operands.smem);
  if (is_int(op.a)) {
    multiply_ints(op, raw_a, raw_b, d_in, d_out);
    return;
  }
  Multiplicand a{mma_type(op.a), kM, wgmma_k(op), {}};
  Multiplicand b{mma_type(op.b), op.n, wgmma_k(op), {}};
  decode_multiplicand(raw_a, op.negate_a, a);
  decode_multiplicand(raw_b, op.negate_b, b);
  if (op.d == AccumulatorType::kF16) {
    std::vector<std::uint16_t> d(std::size_t{kM} * op.n);
    gather_d16(d_in, op.n, d);
    unit.f16(a, b, op.scale_d, d);
    scatter_d16(d, op.n, d_out);
    return;
  }
  std::vector<std::uint32_t> bits(std::size_t{kM} * op.n);
  gather_d(d_in, op.n, bits);
  std::vector<float> d(bits.size());
  std::memcpy(d.data(), bits.data(), bits.size() * sizeof(float));
  unit.f32(a, b, op.scale_d, d);
  std::memcpy(bits.data(), d.data(), bits.size() * sizeof(float));
  scatter_d(bits, op.n, d_out);
}

}  // namespace mxfa::emu::model
