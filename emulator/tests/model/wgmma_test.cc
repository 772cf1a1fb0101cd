#include "model/wgmma.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <random>
#include <set>
#include <vector>

#include "expect_fault.h"
#include "mx/bits.h"
#include "mx/fp8.h"

namespace mxfa::emu::model {
namespace {

/// Registers of a warpgroup, [warp][reg][lane].
struct Registers {
  std::uint32_t count;
  std::vector<std::array<std::uint32_t, 32>> rows;
  std::vector<std::uint32_t*> pointers;
  explicit Registers(std::uint32_t registers) : count(registers), rows(4 * registers) {
    for (auto& row : rows) pointers.push_back(row.data());
  }
  std::uint32_t& at(std::uint32_t warp, std::uint32_t reg, std::uint32_t lane) {
    return rows[warp * count + reg][lane];
  }
  RegisterRows view() { return pointers; }
  ConstRegisterRows const_view() const {
    return {const_cast<const std::uint32_t* const*>(pointers.data()), pointers.size()};
  }
};

// The pictures in words: a warp owns 16 rows; a group of four lanes owns rows g and g+8; D comes
// in 8-column blocks of (two columns, two rows).
TEST(WgmmaFragments, DLayout) {
  for (std::uint32_t n = 8; n <= 256; n += 8) {
    std::set<std::pair<std::uint32_t, std::uint32_t>> seen;
    for (std::uint32_t thread = 0; thread < 128; ++thread) {
      const std::uint32_t warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
      std::uint32_t reg = 0;
      for (std::uint32_t block = 0; block < n / 8; ++block) {
        for (std::uint32_t i = 0; i < 4; ++i) {
          const std::uint32_t down = i / 2 * 8, right = i % 2;
          const FragmentCoord at = wgmma_d_coord(thread, reg++);
          EXPECT_EQ(at.row, warp * 16 + g + down);
          EXPECT_EQ(at.col, block * 8 + 2 * t + right);
          seen.insert({at.row, at.col});
        }
      }
      EXPECT_EQ(reg, n / 2);
    }
    EXPECT_EQ(seen.size(), 64u * n);
  }
}

// A as in mma.m16n8k16 / k32 / k8: registers (g, low k), (g+8, low k), (g, high k), (g+8, high k).
TEST(WgmmaFragments, ALayout) {
  for (const std::uint32_t es : {1u, 2u, 4u}) {
    const std::uint32_t per_reg = 4 / es, k = 32 / es;
    std::set<std::pair<std::uint32_t, std::uint32_t>> seen;
    for (std::uint32_t thread = 0; thread < 128; ++thread) {
      const std::uint32_t warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
      const std::uint32_t rows[4] = {g, g + 8, g, g + 8};
      const std::uint32_t first_k[4] = {0, 0, k / 2, k / 2};
      for (std::uint32_t reg = 0; reg < 4; ++reg) {
        for (std::uint32_t e = 0; e < per_reg; ++e) {
          const FragmentCoord at = wgmma_a_coord(thread, reg, e, es);
          EXPECT_EQ(at.row, warp * 16 + rows[reg]);
          EXPECT_EQ(at.col, first_k[reg] + t * per_reg + e);
          seen.insert({at.row, at.col});
        }
      }
    }
    EXPECT_EQ(seen.size(), 64u * k);
  }
}

struct Case {
  WgmmaType a, b;
  AccumulatorType d;
};
constexpr Case kCases[] = {
    {WgmmaType::kF16, WgmmaType::kF16, AccumulatorType::kF32},
    {WgmmaType::kF16, WgmmaType::kF16, AccumulatorType::kF16},
    {WgmmaType::kBF16, WgmmaType::kBF16, AccumulatorType::kF32},
    {WgmmaType::kTF32, WgmmaType::kTF32, AccumulatorType::kF32},
    {WgmmaType::kE4M3, WgmmaType::kE4M3, AccumulatorType::kF32},
    {WgmmaType::kE4M3, WgmmaType::kE5M2, AccumulatorType::kF32},
    {WgmmaType::kE5M2, WgmmaType::kE4M3, AccumulatorType::kF16},
    {WgmmaType::kS8, WgmmaType::kU8, AccumulatorType::kS32},
    {WgmmaType::kU8, WgmmaType::kS8, AccumulatorType::kS32},
};

std::uint32_t encode_small(WgmmaType type, int value) {
  const float x = static_cast<float>(value);
  switch (type) {
    case WgmmaType::kF16:
      return mx::encode_f16(x);
    case WgmmaType::kBF16:
      return mx::encode_bf16(x);
    case WgmmaType::kTF32:
      return mx::float_bits(x);
    case WgmmaType::kE4M3:
      return mx::encode_e4m3(x);
    case WgmmaType::kE5M2:
      return mx::encode_e5m2(x);
    default:
      return static_cast<std::uint8_t>(value);
  }
}
/// Powers of two and small integers that every type holds.
int small_value(WgmmaType type, std::mt19937& rng) {
  const int value = static_cast<int>(rng() % 5);
  return type == WgmmaType::kU8 || rng() % 2 == 0 ? value : -value;
}

/// Where the tile's byte lies, from the words of the ISA: rows (or k lines) of W bytes in groups
/// of eight, chunk numbers exchanged by the line number.
std::uint32_t place(Swizzle swizzle, Major major, std::uint32_t base, std::uint32_t extent_bytes,
                    std::uint32_t outer, std::uint32_t byte) {
  const std::uint32_t w = swizzle == Swizzle::k128B  ? 128
                          : swizzle == Swizzle::k64B ? 64
                          : swizzle == Swizzle::k32B ? 32
                                                     : 16;
  // Blocks of (8 rows x W bytes); along the contiguous direction blocks lie one after another,
  // groups of eight rows after all of them.
  const std::uint32_t blocks = (extent_bytes + w - 1) / w;
  std::uint32_t address = base + (outer / 8) * blocks * 8 * w + byte / w * 8 * w + outer % 8 * w;
  const std::uint32_t line = address / 128;
  std::uint32_t chunk = byte % w / 16;
  std::uint32_t in_line = (address % 128) / 16 + chunk;
  if (swizzle == Swizzle::k128B) in_line ^= line % 8;
  if (swizzle == Swizzle::k64B) in_line ^= line % 4;
  if (swizzle == Swizzle::k32B) in_line ^= line % 2;
  (void)major;
  return line * 128 + in_line * 16 + byte % 16;
}

struct Matrix {
  std::vector<int> values;  // [mn][k]
  MatrixDescriptor desc;
};

Matrix random_matrix(const OperandShape& shape, WgmmaType type, Swizzle swizzle, std::uint32_t base,
                     std::vector<std::byte>& smem, std::mt19937& rng) {
  Matrix m;
  const std::uint32_t es = shape.elem_bytes;
  const bool k_major = shape.major == Major::kK;
  // K-major tiles are one swizzle row wide (K bytes beyond 32 belong to other instructions).
  const std::uint32_t w = swizzle_width(swizzle);
  const std::uint32_t extent = k_major ? std::max(w, 32u) : shape.mn * es;
  const std::uint32_t blocks = (extent + w - 1) / w;
  m.desc = {base, 0, 0, swizzle, 0};
  const std::uint32_t along = 8 * w, across = blocks * 8 * w;
  const bool plain_mn = !k_major && swizzle == Swizzle::kNone;
  m.desc.lbo = plain_mn ? across : along;
  m.desc.sbo = plain_mn ? along : across;
  for (std::uint32_t mn = 0; mn < shape.mn; ++mn) {
    for (std::uint32_t k = 0; k < shape.k; ++k) {
      const int value = small_value(type, rng);
      m.values.push_back(value);
      const std::uint32_t code = encode_small(type, value);
      const std::uint32_t outer = k_major ? mn : k, inner = k_major ? k : mn;
      for (std::uint32_t b = 0; b < es; ++b) {
        smem.at(place(swizzle, shape.major, base, extent, outer, inner * es + b)) =
            static_cast<std::byte>(code >> (8 * b));
      }
    }
  }
  return m;
}

std::int64_t read_d(Registers& regs, const WgmmaOp& op, std::uint32_t thread, std::uint32_t i) {
  if (op.d == AccumulatorType::kF16) {
    const std::uint32_t word = regs.at(thread / 32, i / 2, thread % 32);
    return static_cast<std::int64_t>(
        mx::decode_f16(static_cast<std::uint16_t>(word >> (16 * (i % 2)))));
  }
  const std::uint32_t word = regs.at(thread / 32, i, thread % 32);
  if (op.d == AccumulatorType::kS32) return static_cast<std::int32_t>(word);
  return static_cast<std::int64_t>(mx::bits_float(word));
}

void run_case(const WgmmaOp& op, Swizzle swizzle, bool a_in_regs, ArithmeticMode mode,
              std::mt19937& rng) {
  std::vector<std::byte> smem(131072);
  const Matrix b = random_matrix(wgmma_b_shape(op), op.b, swizzle, 65536, smem, rng);
  Matrix a = random_matrix(wgmma_a_shape(op), op.a, swizzle, 8192, smem, rng);
  Registers a_regs(4), d(wgmma_d_regs(op));
  const std::uint32_t k = wgmma_k(op), es = wgmma_elem_bytes(op.a);
  if (a_in_regs) {
    for (std::uint32_t thread = 0; thread < 128; ++thread) {
      for (std::uint32_t reg = 0; reg < 4; ++reg) {
        std::uint32_t word = 0;
        for (std::uint32_t e = 0; e < 4 / es; ++e) {
          const FragmentCoord at = wgmma_a_coord(thread, reg, e, es);
          const std::uint32_t code = encode_small(op.a, a.values[at.row * k + at.col]);
          word |= code << (8 * es * e);
        }
        a_regs.at(thread / 32, reg, thread % 32) = word;
      }
    }
  }
  const int old = 3;
  for (auto& row : d.rows) {
    const std::uint32_t half = mx::encode_f16(3.0f);
    row.fill(op.d == AccumulatorType::kS32   ? 3u
             : op.d == AccumulatorType::kF32 ? mx::float_bits(3.0f)
                                             : half | half << 16);
  }
  WgmmaOperands operands;
  if (!a_in_regs) operands.a = a.desc;
  operands.a_regs = a_regs.const_view();
  operands.b = b.desc;
  operands.smem = smem;
  MmaUnit unit(mode);
  wgmma(op, operands, unit, d.const_view(), d.view());
  for (std::uint32_t thread = 0; thread < 128; ++thread) {
    for (std::uint32_t i = 0; i < op.n / 2; ++i) {
      const FragmentCoord at = wgmma_d_coord(thread, i);
      int want = 0;
      for (std::uint32_t q = 0; q < k; ++q) {
        want += a.values[at.row * k + q] * b.values[at.col * k + q];
      }
      if (op.negate_a != op.negate_b) want = -want;
      if (op.scale_d) want += old;
      ASSERT_EQ(read_d(d, op, thread, i), want)
          << "row " << at.row << " col " << at.col << " n " << op.n << " swizzle "
          << static_cast<int>(swizzle) << " a in regs " << a_in_regs;
    }
  }
}

TEST(Wgmma, SmallIntegersAreExactInEveryTypeAndLayout) {
  std::mt19937 rng(1);
  const Swizzle swizzles[] = {Swizzle::kNone, Swizzle::k32B, Swizzle::k64B, Swizzle::k128B};
  for (const Case& types : kCases) {
    for (const Swizzle swizzle : swizzles) {
      for (const bool regs : {false, true}) {
        WgmmaOp op;
        op.a = types.a;
        op.b = types.b;
        op.d = types.d;
        op.n = swizzle == Swizzle::kNone ? 8 : swizzle == Swizzle::k64B ? 48 : 128;
        const bool ints = types.d == AccumulatorType::kS32;
        op.scale_d = rng() % 2 == 0;
        op.negate_a = !ints && rng() % 2 == 0;
        op.negate_b = !ints && rng() % 2 == 0;
        run_case(op, swizzle, regs, ArithmeticMode::kHopper, rng);
      }
    }
  }
}

TEST(Wgmma, Transposes) {
  std::mt19937 rng(2);
  const Swizzle swizzles[] = {Swizzle::kNone, Swizzle::k32B, Swizzle::k64B, Swizzle::k128B};
  for (const WgmmaType type : {WgmmaType::kF16, WgmmaType::kBF16}) {
    for (const Swizzle swizzle : swizzles) {
      for (const std::uint32_t n : {64u, 128u, 256u}) {
        for (const Major a : {Major::kK, Major::kMN}) {
          WgmmaOp op;
          op.a = op.b = type;
          op.n = n;
          op.major_a = a;
          op.major_b = Major::kMN;
          run_case(op, swizzle, false, ArithmeticMode::kExact, rng);
        }
      }
    }
  }
}

TEST(Wgmma, EveryN) {
  std::mt19937 rng(3);
  for (std::uint32_t n = 8; n <= 256; n += 8) {
    WgmmaOp op;
    op.a = op.b = WgmmaType::kE4M3;
    op.n = n;
    run_case(op, Swizzle::k128B, n % 16 == 0, ArithmeticMode::kHopper, rng);
  }
}

TEST(Wgmma, HopperArithmeticReachesTheRegisters) {
  // C = 1 and 32 products of 2^-14: lost in the FP8 accumulator, kept in exact mode.
  std::vector<std::byte> smem(8192, static_cast<std::byte>(mx::encode_e4m3(0x1p-7f)));
  WgmmaOp op;
  op.a = op.b = WgmmaType::kE4M3;
  WgmmaOperands operands;
  operands.a = MatrixDescriptor{0, 128, 256, Swizzle::kNone, 0};
  operands.b = MatrixDescriptor{4096, 128, 256, Swizzle::kNone, 0};
  operands.smem = smem;
  for (const bool hopper : {true, false}) {
    Registers d(4);
    for (auto& row : d.rows) row.fill(mx::float_bits(1.0f));
    MmaUnit unit(hopper ? ArithmeticMode::kHopper : ArithmeticMode::kExact);
    wgmma(op, operands, unit, d.const_view(), d.view());
    EXPECT_EQ(mx::bits_float(d.at(2, 3, 17)), hopper ? 1.0f : 1.0f + 32 * 0x1p-14f);
  }
}

TEST(Wgmma, RangesCoverBothOperands) {
  WgmmaOp op;
  op.a = op.b = WgmmaType::kE4M3;
  op.n = 16;
  WgmmaOperands operands;
  operands.a = MatrixDescriptor{0, 0, 1024, Swizzle::k128B, 0};
  operands.b = MatrixDescriptor{16384, 0, 1024, Swizzle::k128B, 0};
  std::uint64_t bytes = 0;
  for (const ByteRange& range : wgmma_smem_ranges(op, operands)) bytes += range.size;
  EXPECT_EQ(bytes, (64u + 16u) * 32u);
}

TEST(Wgmma, Misuse) {
  const auto text = [](const std::function<void(WgmmaOp&)>& spoil) {
    WgmmaOp op;
    spoil(op);
    return message_of([&] { check_wgmma(op); });
  };
  EXPECT_EQ(text([](WgmmaOp&) {}), "no error");
  EXPECT_NE(text([](WgmmaOp& op) { op.b = WgmmaType::kF16; }).find("got f32.bf16.f16"),
            std::string::npos);
  EXPECT_NE(text([](WgmmaOp& op) { op.d = AccumulatorType::kF16; }).find("wgmma types"),
            std::string::npos);
  EXPECT_NE(text([](WgmmaOp& op) { op.d = AccumulatorType::kS32; }).find("wgmma types"),
            std::string::npos);
  EXPECT_NE(text([](WgmmaOp& op) { op.n = 12; }).find("n: expected 8..256"), std::string::npos);
  EXPECT_NE(text([](WgmmaOp& op) { op.n = 264; }).find("n: expected"), std::string::npos);
  const auto ints = [](WgmmaOp& op) {
    op.a = op.b = WgmmaType::kS8;
    op.d = AccumulatorType::kS32;
  };
  EXPECT_NE(text([&](WgmmaOp& op) {
              ints(op);
              op.n = 40;
            }).find("steps of 16"),
            std::string::npos);
  EXPECT_EQ(text([&](WgmmaOp& op) {
              ints(op);
              op.n = 24;
              op.saturate = true;
            }),
            "no error");
  EXPECT_NE(text([&](WgmmaOp& op) {
              ints(op);
              op.negate_a = true;
            }).find("imm-scale"),
            std::string::npos);
  EXPECT_NE(text([](WgmmaOp& op) { op.saturate = true; }).find(".satfinite"), std::string::npos);
  EXPECT_NE(text([](WgmmaOp& op) {
              op.a = op.b = WgmmaType::kE4M3;
              op.major_b = Major::kMN;
            }).find("imm-trans"),
            std::string::npos);
}

}  // namespace
}  // namespace mxfa::emu::model
