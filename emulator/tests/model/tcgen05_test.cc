#include "model/tcgen05_cp.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "expect_fault.h"
#include "model/tcgen05_mma.h"
#include "mx/bits.h"
#include "mx/fp8.h"
#include "mx/scale_layout.h"

namespace mxfa::emu::model {
namespace {

void copy(CpShape shape, std::uint32_t address, const MatrixDescriptor& source,
          std::span<const std::byte> smem, TensorMemory& tmem) {
  tcgen05_cp({shape, CpFormat::kPlain, address, source}, {smem}, tmem);
}
MmaReport multiply(const Tcgen05Mma& mma, std::span<const std::byte> smem, TensorMemory& tmem,
                   MmaUnit& unit) {
  const MmaCta cta{{smem}, &tmem};
  return tcgen05_mma(mma, {&cta, 1}, unit);
}

TEST(Tcgen05Cp, LanesOfEveryShape) {
  // Source rows by destination lane, written out from the names of the shapes.
  const auto row_of = [](CpShape shape, std::uint32_t lane) -> std::uint32_t {
    const std::uint32_t warp = lane / 32, within = lane % 32;
    switch (shape) {
      case CpShape::k32x128bWarpx4:
        return within;  // all the same
      case CpShape::k64x128bWarpx2_02_13:
        return (warp % 2) * 32 + within;  // 0,2 | 1,3
      case CpShape::k64x128bWarpx2_01_23:
        return (warp / 2) * 32 + within;  // 0,1 | 2,3
      default:
        return lane;
    }
  };
  for (const CpShape shape : {CpShape::k128x256b, CpShape::k128x128b, CpShape::k64x128bWarpx2_02_13,
                              CpShape::k64x128bWarpx2_01_23, CpShape::k32x128bWarpx4}) {
    std::set<std::uint32_t> reached;
    for (std::uint32_t row = 0; row < cp_rows(shape); ++row) {
      for (const std::uint32_t lane : cp_lanes(shape, row)) {
        EXPECT_EQ(row_of(shape, lane), row);
        reached.insert(lane);
      }
    }
    EXPECT_EQ(reached.size(), 128u);
  }
}

TEST(Tcgen05Cp, ScaleAtomLandsAsBlockScalingWantsIt) {
  std::mt19937 rng(1);
  std::vector<std::byte> smem(4096);
  for (auto& byte : smem) byte = static_cast<std::byte>(rng());
  TensorMemory tmem;
  tmem.alloc(32);
  const std::uint32_t atom = 1024;
  const auto desc = decode_tcgen05_descriptor(0x0000400800000000 | atom >> 4);
  copy(CpShape::k32x128bWarpx4, 8, desc, smem, tmem);
  const mx::TiledScaleLayout layout{128, 4};
  for (std::uint32_t row = 0; row < 128; ++row) {
    for (std::uint32_t block = 0; block < 4; ++block) {
      const auto want = smem[atom + static_cast<std::size_t>(layout.offset(row, block))];
      for (std::uint32_t quarter = 0; quarter < 4; ++quarter) {
        const std::uint32_t word = tmem.read(row % 32 + 32 * quarter, 8 + row / 32);
        ASSERT_EQ(static_cast<std::byte>(word >> (8 * block)), want);
      }
    }
  }
  EXPECT_EQ(cp_writes({CpShape::k32x128bWarpx4, CpFormat::kPlain, 8, desc}),
            (TmemRange{0, 128, 8, 4}));
  expect_fault([&] { copy(CpShape::k32x128bWarpx4, 6, desc, smem, tmem); }, "a multiple of 4");
  expect_fault([&] { copy(CpShape::k32x128bWarpx4, 1u << 21, desc, smem, tmem); }, "lane 0");
  expect_fault([&] { copy(CpShape::k32x128bWarpx4, 32, desc, smem, tmem); },
               "allocated tensor memory");
}

TEST(Tcgen05Cp, WideRows) {
  std::vector<std::byte> smem(8192);
  for (std::size_t i = 0; i < smem.size(); ++i) smem[i] = static_cast<std::byte>(i * 7 + i / 256);
  TensorMemory tmem;
  tmem.alloc(32);
  // No swizzle: 16-byte columns of all rows one after another, 2048 bytes apart.
  const auto desc = decode_tcgen05_descriptor(0x0000400800800000);
  copy(CpShape::k128x256b, 0, desc, smem, tmem);
  for (std::uint32_t row = 0; row < 128; ++row) {
    for (std::uint32_t byte = 0; byte < 32; ++byte) {
      const std::uint32_t word = tmem.read(row, byte / 4);
      ASSERT_EQ(static_cast<std::byte>(word >> (8 * (byte % 4))),
                smem[byte / 16 * 2048 + row * 16 + byte % 16]);
    }
  }
}

// ---- A whole tile, as in the worked example: S = Q K^T, then O = P V with P in tensor memory.

struct Tile {
  std::vector<std::uint8_t> codes;   // [128][128]
  std::vector<std::uint8_t> scales;  // [128][4], blocks of 32 along K
  explicit Tile(std::mt19937& rng) : codes(128 * 128), scales(128 * 4) {
    for (auto& code : codes) code = static_cast<std::uint8_t>(rng() % 0x60 | (rng() % 2) << 7);
    for (auto& scale : scales) scale = static_cast<std::uint8_t>(120 + rng() % 12);
  }
  double value(std::uint32_t row, std::uint32_t k) const {
    return std::ldexp(static_cast<double>(mx::decode_e4m3(codes[row * 128 + k])),
                      scales[row * 4 + k / 32] - 127);
  }
};

/// A row-major tile with a pitch of 128 bytes under the 128-byte swizzle, chunk ^= row % 8.
void store_tile(std::vector<std::byte>& smem, std::uint32_t base,
                const std::vector<std::uint8_t>& t) {
  for (std::uint32_t row = 0; row < 128; ++row) {
    for (std::uint32_t col = 0; col < 128; ++col) {
      smem[base + row * 128 + ((col / 16) ^ (row % 8)) * 16 + col % 16] =
          static_cast<std::byte>(t[row * 128 + col]);
    }
  }
}
void store_atom(std::vector<std::byte>& smem, std::uint32_t base,
                const std::vector<std::uint8_t>& s) {
  for (std::uint32_t row = 0; row < 128; ++row) {
    for (std::uint32_t block = 0; block < 4; ++block) {
      smem[base + row % 32 * 16 + row / 32 * 4 + block] =
          static_cast<std::byte>(s[row * 4 + block]);
    }
  }
}

constexpr std::uint32_t kQ = 0, kK = 16384, kSfQ = 32768, kSfK = 33792, kV = 49152;

TEST(Tcgen05Mma, WorkedExampleOfTheForwardPass) {
  std::mt19937 rng(2);
  const Tile q(rng), k(rng);
  std::vector<std::byte> smem(65536);
  store_tile(smem, kQ, q.codes);
  store_tile(smem, kK, k.codes);
  store_atom(smem, kSfQ, q.scales);
  store_atom(smem, kSfK, k.scales);
  TensorMemory tmem;
  tmem.alloc(512);
  MmaUnit unit(ArithmeticMode::kExact);
  const std::uint32_t d = 128, sfa = 0, sfb = 4;
  copy(CpShape::k32x128bWarpx4, sfa, decode_tcgen05_descriptor(0x0000400800000000 | kSfQ >> 4),
       smem, tmem);
  copy(CpShape::k32x128bWarpx4, sfb, decode_tcgen05_descriptor(0x0000400800000000 | kSfK >> 4),
       smem, tmem);
  for (std::uint32_t j = 0; j < 4; ++j) {
    Tcgen05Mma mma;
    mma.idesc = decode_instruction_descriptor(MmaKind::kMxF8F6F4, 0x08A00000 | j << 29 | j << 4, 1);
    mma.d = d;
    mma.a = decode_tcgen05_descriptor(0x4000404000000000 | ((kQ >> 4) + 2 * j));
    mma.b = decode_tcgen05_descriptor(0x4000404000000000 | ((kK >> 4) + 2 * j));
    mma.enable_input_d = j > 0;
    mma.sfa = sfa | j << 30;  // the two top bits do not count
    mma.sfb = sfb;
    EXPECT_FALSE(multiply(mma, smem, tmem, unit).nan_scale);
  }
  for (std::uint32_t m = 0; m < 128; ++m) {
    for (std::uint32_t n = 0; n < 128; ++n) {
      double want = 0;
      double size = 0;
      for (std::uint32_t i = 0; i < 128; ++i) {
        want += q.value(m, i) * k.value(n, i);
        size += std::fabs(q.value(m, i) * k.value(n, i));
      }
      // Four roundings of partial sums, each half an ulp of at most `size`.
      const double got = mx::bits_float(tmem.read(m, d + n));
      ASSERT_LE(std::fabs(got - want), 4 * 0x1p-24 * size) << m << "," << n;
    }
  }
}

TEST(Tcgen05Mma, PInTensorMemoryTimesRowMajorV) {
  std::mt19937 rng(3);
  const Tile p(rng);
  std::vector<std::uint8_t> v(128 * 128);  // [kv][d]
  for (auto& code : v) code = static_cast<std::uint8_t>(rng() % 0x60);
  std::vector<std::byte> smem(65536);
  store_tile(smem, kV, v);
  TensorMemory tmem;
  tmem.alloc(512);
  const std::uint32_t pa = 32, d = 256, sfa = 0, sfb = 4;
  for (std::uint32_t row = 0; row < 128; ++row) {
    for (std::uint32_t c = 0; c < 32; ++c) {
      std::uint32_t word;
      std::memcpy(&word, &p.codes[row * 128 + 4 * c], 4);
      tmem.write(row, pa + c, word);
    }
    for (std::uint32_t c = 0; c < 4; ++c) {
      tmem.write(row, sfa + c, 0x77777777);   // 2^-8 for all of P
      tmem.write(row, sfb + c, 0x7F7E807Fu);  // 2^0, 2^1, 2^-1, 2^0 along kv
    }
  }
  const int v_exponent[4] = {0, 1, -1, 0};
  MmaUnit unit(ArithmeticMode::kExact);
  for (std::uint32_t j = 0; j < 4; ++j) {
    Tcgen05Mma mma;
    mma.idesc = decode_instruction_descriptor(MmaKind::kMxF8F6F4, 0x08A10000 | j << 29 | j << 4, 1);
    mma.d = d;
    mma.a_tmem = pa + 8 * j;
    mma.b = decode_tcgen05_descriptor(0x4000404000000000 | ((kV >> 4) + 256 * j));
    mma.enable_input_d = j > 0;
    mma.sfa = sfa;
    mma.sfb = sfb;
    multiply(mma, smem, tmem, unit);
  }
  for (std::uint32_t m = 0; m < 128; ++m) {
    for (std::uint32_t n = 0; n < 128; ++n) {
      double want = 0, size = 0;
      for (std::uint32_t kv = 0; kv < 128; ++kv) {
        const double term = static_cast<double>(mx::decode_e4m3(p.codes[m * 128 + kv])) *
                            mx::decode_e4m3(v[kv * 128 + n]) *
                            std::ldexp(1.0, v_exponent[kv / 32] - 8);
        want += term;
        size += std::fabs(term);
      }
      ASSERT_LE(std::fabs(mx::bits_float(tmem.read(m, d + n)) - want), 4 * 0x1p-24 * size);
    }
  }
}

/// Descriptor of an unswizzled K-major bf16 or fp8 operand with `rows` rows at `base`.
MatrixDescriptor plain(std::uint32_t base, std::uint32_t rows) {
  return {base, rows * 16, 128, Swizzle::kNone, 0};
}
void store_plain(std::vector<std::byte>& smem, std::uint32_t base, std::uint32_t rows,
                 std::uint32_t row, std::uint32_t byte, std::uint8_t value) {
  smem[base + byte / 16 * rows * 16 + row * 16 + byte % 16] = static_cast<std::byte>(value);
}

TEST(Tcgen05Mma, Bf16WithM64UsesHalfOfTheLanes) {
  std::mt19937 rng(4);
  for (const std::uint32_t base_lane : {0u, 16u}) {
    for (const bool a_in_tmem : {false, true}) {
      std::vector<std::byte> smem(32768);
      std::vector<int> a(64 * 16), b(24 * 16);
      for (auto* matrix : {&a, &b}) {
        const std::uint32_t base = matrix == &a ? 0 : 16384;
        const std::uint32_t rows = static_cast<std::uint32_t>(matrix->size() / 16);
        for (std::uint32_t i = 0; i < matrix->size(); ++i) {
          (*matrix)[i] = static_cast<int>(rng() % 9) - 4;
          const std::uint16_t code = mx::encode_bf16(static_cast<float>((*matrix)[i]));
          store_plain(smem, base, rows, i / 16, i % 16 * 2, static_cast<std::uint8_t>(code));
          store_plain(smem, base, rows, i / 16, i % 16 * 2 + 1,
                      static_cast<std::uint8_t>(code >> 8));
        }
      }
      TensorMemory tmem;
      tmem.alloc(64);
      for (std::uint32_t lane = 0; lane < 128; ++lane) {
        for (std::uint32_t column = 0; column < 64; ++column) tmem.write(lane, column, 0x3F800000);
      }
      for (std::uint32_t m = 0; a_in_tmem && m < 64; ++m) {
        for (std::uint32_t c = 0; c < 8; ++c) {
          const std::uint32_t low = mx::encode_bf16(static_cast<float>(a[m * 16 + 2 * c]));
          const std::uint32_t high = mx::encode_bf16(static_cast<float>(a[m * 16 + 2 * c + 1]));
          tmem.write(base_lane + m % 16 + m / 16 * 32, 40 + c, low | high << 16);
        }
      }
      Tcgen05Mma mma;
      const std::uint32_t bits = 1u << 4 | 1u << 7 | 1u << 10 | 3u << 17 | 4u << 24;
      mma.idesc = decode_instruction_descriptor(MmaKind::kF16, bits, 1);
      mma.d = base_lane << 16 | 8;
      if (!a_in_tmem) mma.a = plain(0, 64);
      mma.a_tmem = base_lane << 16 | 40;
      mma.b = plain(16384, 24);
      mma.disable_lanes[2] = 1u << (base_lane + 3);  // row 35
      MmaUnit unit(ArithmeticMode::kBlackwell);
      multiply(mma, smem, tmem, unit);
      for (std::uint32_t cell = 0; cell < 128 * 24; ++cell) {
        const std::uint32_t lane = cell / 24, n = cell % 24, within = lane % 32;
        const bool used = within / 16 * 16 == base_lane;
        const std::uint32_t m = lane / 32 * 16 + within % 16;
        int want = 1;
        for (int i = 0; used && m != 35 && i < 16; ++i) want += a[m * 16 + i] * b[n * 16 + i];
        ASSERT_EQ(mx::bits_float(tmem.read(lane, 8 + n)), static_cast<float>(want))
            << "lane " << lane << " column " << 8 + n;
      }
    }
  }
}

TEST(Tcgen05Mma, HalfAccumulatorAndScaledInput) {
  std::vector<std::byte> smem(32768);
  for (std::uint32_t row = 0; row < 128; ++row) {
    for (std::uint32_t k = 0; k < 16; ++k) {
      store_plain(smem, 0, 128, row, 2 * k + 1, 0x3C);                   // 1.0 in f16
      if (row < 16) store_plain(smem, 16384, 16, row, 2 * k + 1, 0x40);  // 2.0
    }
  }
  for (const bool half : {true, false}) {
    TensorMemory tmem;
    tmem.alloc(32);
    for (std::uint32_t lane = 0; lane < 128; ++lane) {
      for (std::uint32_t column = 0; column < 16; ++column) {
        // Garbage in the upper half of an f16 word does not count.
        tmem.write(lane, column, half ? 0xABCD0000u | mx::encode_f16(8.0f) : mx::float_bits(8.0f));
      }
    }
    Tcgen05Mma mma;
    mma.idesc = decode_instruction_descriptor(
        MmaKind::kF16, (half ? 0u : 1u << 4) | 2u << 17 | 8u << 24 | 1u << 13, 1);
    mma.a = plain(0, 128);
    mma.b = plain(16384, 16);
    mma.scale_input_d = 2;
    MmaUnit unit(ArithmeticMode::kExact);
    multiply(mma, smem, tmem, unit);
    const float want = 8.0f / 4 - 16 * 2.0f;  // A is negated
    EXPECT_EQ(tmem.read(77, 9), half ? mx::encode_f16(want) : mx::float_bits(want));
  }
}

TEST(Tcgen05Mma, RangesAndMisuse) {
  std::vector<std::byte> smem(65536);
  TensorMemory tmem;
  tmem.alloc(256);
  for (std::uint32_t lane = 0; lane < 128; ++lane) {
    for (std::uint32_t column = 0; column < 16; ++column) tmem.write(lane, column, 0x7F7F7F7F);
  }
  Tcgen05Mma good;
  good.idesc = decode_instruction_descriptor(MmaKind::kMxF8F6F4, 0x08A00000, 1);
  good.d = 128;
  good.a = decode_tcgen05_descriptor(0x4000404000000000);
  good.b = decode_tcgen05_descriptor(0x4000404000000000 | 16384 >> 4);
  good.enable_input_d = false;
  good.sfa = 0;
  good.sfb = 4;
  EXPECT_EQ(mma_writes(good), (std::vector<TmemRange>{{0, 128, 128, 128}}));
  EXPECT_EQ(mma_reads(good), (std::vector<TmemRange>{{0, 128, 0, 4}, {0, 128, 4, 4}}));
  std::uint64_t bytes = 0;
  for (const ByteRange& range : mma_smem_reads(good)) bytes += range.size;
  EXPECT_EQ(bytes, 2u * 128 * 32) << "32 bytes of each row of A and B";
  MmaUnit unit(ArithmeticMode::kBlackwell);
  const auto run = [&](const std::function<void(Tcgen05Mma&)>& spoil) {
    Tcgen05Mma mma = good;
    spoil(mma);
    return message_of([&] { multiply(mma, smem, tmem, unit); });
  };
  EXPECT_EQ(run([](Tcgen05Mma&) {}), "no error");
  const struct {
    std::function<void(Tcgen05Mma&)> spoil;
    const char* message;
  } cases[] = {
      {[](Tcgen05Mma& m) { m.d = 144; }, "tcgen05.mma D: expected allocated"},
      {[](Tcgen05Mma& m) { m.d = 16u << 16 | 128; }, "address of D: expected lane 0, got 16"},
      {[](Tcgen05Mma& m) { m.sfa = 1; }, "address of scale A: expected lane 0 and an even column"},
      {[](Tcgen05Mma& m) { m.sfb = 130; }, "expected A and scales apart from D"},
      {[](Tcgen05Mma& m) {
         m.a.reset();
         m.a_tmem = 250;
       },
       "expected A and scales apart from D"},
      {[](Tcgen05Mma& m) { m.sfa = 14; }, "words written since their allocation"},
      {[](Tcgen05Mma& m) { m.disable_lanes[0] = 1; }, "disable-output-lane"},
      {[](Tcgen05Mma& m) { m.scale_input_d = 1; }, "scale-input-d"},
      {[](Tcgen05Mma& m) { m.b.start += 128; }, "row 0 of the swizzle's pattern"},
      {[](Tcgen05Mma& m) { m.a->start = 65536 - 4096; }, "bytes below"},
      {[](Tcgen05Mma& m) {
         m.a.reset();
         m.a_tmem = 16;
         m.idesc.major_a = Major::kMN;
       },
       "transpose of A"},
      {[](Tcgen05Mma& m) {
         m.idesc.m = 256;
         m.idesc.cta_group = 2;
       },
       "tcgen05.mma CTAs: expected 2, got 1"},
  };
  for (const auto& one : cases) {
    const std::string text = run(one.spoil);
    EXPECT_NE(text.find(one.message), std::string::npos) << text << "\nwanted " << one.message;
  }
  tmem.write(70, 5, 0x7F7F7F80);  // B row 38 in quarter 2 differs, in byte 0 only
  EXPECT_NE(run([](Tcgen05Mma&) {}).find("lane 6 column 5: 0x7f in quarter 0, 0x80 in quarter 2"),
            std::string::npos);
  EXPECT_EQ(run([](Tcgen05Mma& m) { m.idesc.sf_id_b = 1; }), "no error");
}

// All codes and scales, NaNs included, in tensor memory's own layout, against the definition of one
// element.
TEST(Tcgen05Mma, EveryModeEqualsTheScalarDefinition) {
  std::mt19937 rng(8);
  std::vector<std::byte> smem(65536);
  for (auto& byte : smem) byte = static_cast<std::byte>(rng() % 64 == 0 ? rng() : rng() % 0x70);
  for (const ArithmeticMode mode : {ArithmeticMode::kExact, ArithmeticMode::kBlackwell}) {
    for (const std::uint32_t m : {128u, 64u}) {
      const bool scaled = m == 128;
      TensorMemory tmem;
      tmem.alloc(128);
      for (std::uint32_t cell = 0; cell < 128 * 128; ++cell) {
        const std::uint32_t lane = cell / 128, column = cell % 128;
        std::uint32_t word = (110 + (lane % 32 * 7 + column) % 30) * 0x01010101u;
        if (column >= 64) word = (127 + rng() % 20) << 23 | (rng() & 0x807FFFFF);
        if (column == 70 && lane == 77) word = 0x7F800000;
        if (column == 3 && lane % 32 == 9) word = 0xFFFFFFFF;
        tmem.write(lane, column, word);
      }
      TensorMemory before = tmem;
      Tcgen05Mma mma;
      mma.idesc = decode_instruction_descriptor(
          scaled ? MmaKind::kMxF8F6F4 : MmaKind::kF8F6F4,
          1u << 10 | 4u << 17 | (m / 16) << 24 | (scaled ? 1u << 23 : 1u << 4), 1);  // N = 32
      mma.d = 64;
      mma.a = plain(0, m);
      mma.b = plain(32768, 32);
      mma.sfb = 4;
      MmaUnit unit(mode);
      multiply(mma, smem, tmem, unit);
      const auto codes = [&](std::uint32_t base, std::uint32_t rows, std::uint32_t row,
                             mx::MmaType type) {
        std::vector<std::byte> raw;
        for (std::uint32_t k = 0; k < 32; ++k) {
          raw.push_back(smem[base + k / 16 * rows * 16 + row * 16 + k % 16]);
        }
        Multiplicand one{type, 1, 32, {}};
        decode_multiplicand(raw, false, one);
        return one.values;
      };
      for (std::uint32_t i = 0; i < m * 32; ++i) {
        const std::uint32_t row = i / 32, n = i % 32;
        const std::uint32_t lane = m == 128 ? row : row % 16 + row / 16 * 32;
        mx::MmaElement one{mx::MmaType::kE4M3, mx::MmaType::kE5M2,
                           accumulator_rule(mode, mx::MmaType::kE4M3), 0};
        bool nan = false;
        if (scaled) {
          const std::uint32_t sa = before.read(row % 32, row / 32) & 0xFF;
          const std::uint32_t sb = before.read(n, 4) & 0xFF;
          nan = sa == 255 || sb == 255;
          one.scale_exponent = static_cast<int>(sa + sb) - 254;
        }
        const float c = mx::bits_float(before.read(lane, 64 + n));
        const float want = one.f32(codes(0, m, row, mx::MmaType::kE4M3),
                                   codes(32768, 32, n, mx::MmaType::kE5M2), c);
        ASSERT_EQ(tmem.read(lane, 64 + n), nan ? 0x7FFFFFFFu : mx::float_bits(want))
            << arithmetic_mode_name(mode) << " m " << row << " n " << n;
      }
    }
  }
}

TEST(Tcgen05Mma, NanScalesPoisonTheirRow) {
  std::vector<std::byte> smem(65536, static_cast<std::byte>(0x38));  // 1.0
  TensorMemory tmem;
  tmem.alloc(256);
  for (std::uint32_t lane = 0; lane < 128; ++lane) {
    for (std::uint32_t column = 0; column < 8; ++column) {
      // A row 40 = lane 8, column 1.
      tmem.write(lane, column, lane % 32 == 8 && column == 1 ? 0x7F7F7FFFu : 0x7F7F7F7Fu);
    }
  }
  Tcgen05Mma mma;
  mma.idesc = decode_instruction_descriptor(MmaKind::kMxF8F6F4, 0x08A00000, 1);
  mma.d = 128;
  mma.a = decode_tcgen05_descriptor(0x4000404000000000);
  mma.b = decode_tcgen05_descriptor(0x4000404000000000);
  mma.enable_input_d = false;
  mma.sfb = 4;
  MmaUnit unit(ArithmeticMode::kBlackwell);
  EXPECT_TRUE(multiply(mma, smem, tmem, unit).nan_scale);
  EXPECT_EQ(tmem.read(40, 130), 0x7FFFFFFFu);
  EXPECT_EQ(mx::bits_float(tmem.read(41, 130)), 32.0f);
}

}  // namespace
}  // namespace mxfa::emu::model
