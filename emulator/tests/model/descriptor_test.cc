#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "expect_fault.h"
#include "model/instruction_descriptor.h"
#include "model/smem_descriptor.h"

namespace mxfa::emu::model {
namespace {

// A CuTe-style layout ((a,b,..),(c,d,..)):((..),(..)) evaluated in elements, as the ISA's table of
// canonical layouts writes them; T elements make 16 bytes.
struct Mode {
  std::vector<std::uint32_t> shape;  // the last extent is unbounded
  std::vector<std::uint32_t> stride;
  std::uint32_t at(std::uint32_t index) const {
    std::uint32_t offset = 0;
    for (std::size_t i = 0; i < shape.size(); ++i) {
      const bool last = i + 1 == shape.size();
      offset += (last ? index : index % shape[i]) * stride[i];
      if (!last) index /= shape[i];
    }
    return offset;
  }
};
struct Canonical {
  Mode mn, k;
};

Canonical canonical(const MatrixDescriptor& d, Major major, std::uint32_t es) {
  const std::uint32_t t = 16 / es, lbo = d.lbo / es, sbo = d.sbo / es;
  const std::uint32_t w = swizzle_width(d.swizzle) / 16;  // 1, 2, 4, 8 chunks
  if (major == Major::kMN) {
    if (d.swizzle == Swizzle::kNone) return {{{t, 1, 0}, {1, t, sbo}}, {{8, 0}, {1 * t, lbo}}};
    return {{{t, w, 0}, {1, t, lbo}}, {{8, 0}, {w * t, sbo}}};
  }
  if (d.swizzle == Swizzle::kNone) return {{{8, 0}, {1 * t, sbo}}, {{t, 0}, {1, lbo}}};
  return {{{8, 0}, {w * t, sbo}}, {{t, 0}, {1, t}}};
}

// Swizzle<b,4,3> of CuTe on byte addresses.
std::uint32_t cute_swizzle(std::uint32_t address, int b) {
  const std::uint32_t mask = ((1u << b) - 1u) << 7;
  return address ^ ((address & mask) >> 3);
}
int swizzle_bits(Swizzle swizzle) {
  return swizzle == Swizzle::kNone  ? 0
         : swizzle == Swizzle::k32B ? 1
         : swizzle == Swizzle::k64B ? 2
                                    : 3;
}

TEST(ElementAddress, MatchesTheCanonicalLayoutsOfTheIsa) {
  const Swizzle swizzles[] = {Swizzle::kNone, Swizzle::k32B, Swizzle::k64B, Swizzle::k128B};
  for (const Swizzle swizzle : swizzles) {
    for (const Major major : {Major::kK, Major::kMN}) {
      for (const std::uint32_t es : {1u, 2u}) {
        MatrixDescriptor d;
        d.swizzle = swizzle;
        d.start = 2048;
        // K steps of 32 bytes inside the row where there is room.
        if (major == Major::kK && swizzle_width(swizzle) >= 64) d.start += 32;
        d.lbo = 6144;
        d.sbo = 1024;
        const OperandShape shape{major, 128, 32 / es, es};
        const Canonical layout = canonical(d, major, es);
        for (std::uint32_t i = 0; i < shape.mn * shape.k; ++i) {
          const std::uint32_t mn = i / shape.k, k = i % shape.k;
          const std::uint32_t linear = d.start + (layout.mn.at(mn) + layout.k.at(k)) * es;
          ASSERT_EQ(element_address(d, shape, mn, k), cute_swizzle(linear, swizzle_bits(swizzle)))
              << "swizzle " << static_cast<int>(swizzle) << " major " << static_cast<int>(major)
              << " es " << es << " mn " << mn << " k " << k;
        }
      }
    }
  }
}

// The examples of section 9.7.15.5.1.2.1.3, strides in elements as printed there.
TEST(ElementAddress, ExamplesOfTheIsa) {
  MatrixDescriptor d;
  d.lbo = 64 * 4;
  d.sbo = 32 * 4;
  // tf32 K-major, no swizzle: ((8,2),(4,4)):((4,32),(1,64))
  OperandShape shape{Major::kK, 16, 16, 4};
  EXPECT_EQ(element_address(d, shape, 3, 2), (3 * 4 + 2) * 4u);
  EXPECT_EQ(element_address(d, shape, 11, 7), (3 * 4 + 32 + 3 + 64) * 4u);
  // bf16 MN-major, no swizzle: ((8,1,2),(8,2)):((1,8,64),(8,128))
  d.lbo = 128 * 2;
  d.sbo = 64 * 2;
  shape = {Major::kMN, 16, 16, 2};
  EXPECT_EQ(element_address(d, shape, 9, 10), (1 + 64 + 2 * 8 + 128) * 2u);
  // bf16 MN-major, 64B: ((8,4,2),(8,2)):((1,8,256),(32,512)), Swizzle<2,4,3>
  d.lbo = 256 * 2;
  d.sbo = 512 * 2;
  d.swizzle = Swizzle::k64B;
  shape = {Major::kMN, 64, 16, 2};
  EXPECT_EQ(element_address(d, shape, 45, 13),
            cute_swizzle((5 + 8 * 1 + 256 + 32 * 5 + 512) * 2u, 2));
}

TEST(MatrixDescriptor, Tcgen05Constants) {
  const struct {
    std::uint64_t bits;
    Swizzle swizzle;
    std::uint32_t lbo, sbo;
  } table[] = {
      {0x4000404000000000, Swizzle::k128B, 0, 1024},
      {0x4000404000010000, Swizzle::k128B, 16, 1024},
      {0x8000402000000000, Swizzle::k64B, 0, 512},
      {0xC000401000000000, Swizzle::k32B, 0, 256},
      {0x0000400800800000, Swizzle::kNone, 2048, 128},
      {0x4000404004000000, Swizzle::k128B, 16384, 1024},
      {0x4000404002000000, Swizzle::k128B, 8192, 1024},
      {0x0000400800000000, Swizzle::kNone, 0, 128},
  };
  for (const auto& row : table) {
    const MatrixDescriptor d = decode_tcgen05_descriptor(row.bits | (0x12340 >> 4));
    EXPECT_EQ(d.start, 0x12340u);
    EXPECT_EQ(d.swizzle, row.swizzle) << std::hex << row.bits;
    EXPECT_EQ(d.lbo, row.lbo) << std::hex << row.bits;
    EXPECT_EQ(d.sbo, row.sbo) << std::hex << row.bits;
  }
}

TEST(MatrixDescriptor, Tcgen05InvalidBits) {
  const std::uint64_t good = 0x4000404000000000;
  for (int bit = 0; bit < 64; ++bit) {
    const std::string text = message_of([&] { decode_tcgen05_descriptor(good ^ (1ull << bit)); });
    // Free fields: start, LBO, SBO; the swizzle code 2 becomes 3 (61), 0 (62) or 6 (63).
    const bool free = bit < 14 || (bit >= 16 && bit < 30) || (bit >= 32 && bit < 46) || bit >= 62;
    EXPECT_EQ(text == "no error", free) << "bit " << bit << ": " << text;
  }
  expect_fault([&] { decode_tcgen05_descriptor(good | (1ull << 61)); },
               "swizzle: expected 0, 1, 2, 4 or 6, got 3");
  expect_fault([] { decode_tcgen05_descriptor(0); }, "bits 48:46: expected 0b001");
}

TEST(MatrixDescriptor, WgmmaFieldsAndInvalidBits) {
  const std::uint64_t good = (1ull << 62) | (64ull << 32) | (1ull << 16) | 0x123;
  const MatrixDescriptor d = decode_wgmma_descriptor(good | (5ull << 49));
  EXPECT_EQ(d.start, 0x1230u);
  EXPECT_EQ(d.lbo, 16u);
  EXPECT_EQ(d.sbo, 1024u);
  EXPECT_EQ(d.base_offset, 5u);
  EXPECT_EQ(d.swizzle, Swizzle::k128B);
  EXPECT_EQ(decode_wgmma_descriptor(2ull << 62).swizzle, Swizzle::k64B);
  EXPECT_EQ(decode_wgmma_descriptor(3ull << 62).swizzle, Swizzle::k32B);
  EXPECT_EQ(decode_wgmma_descriptor(0).swizzle, Swizzle::kNone);
  for (const int bit : {14, 15, 30, 31, 46, 47, 48, 52, 53, 57, 61}) {
    expect_fault([&] { decode_wgmma_descriptor(good | (1ull << bit)); }, "(reserved)");
  }
}

TEST(CheckOperand, FindsBadGeometry) {
  MatrixDescriptor d;
  d.swizzle = Swizzle::k128B;
  d.sbo = 1024;
  const OperandShape k_major{Major::kK, 128, 32, 1};
  const auto text = [&](const OperandShape& shape) {
    return message_of([&] { check_operand(d, shape, 32768); });
  };
  for (const std::uint32_t start : {0u, 32u, 64u, 96u, 1024u + 96u}) {
    d.start = start;
    EXPECT_EQ(text(k_major), "no error") << start;
  }
  d.start = 112;
  EXPECT_NE(text(k_major).find("32 bytes inside one row of 128"), std::string::npos);
  d.start = 128;
  EXPECT_NE(text(k_major).find("row 0 of the swizzle's pattern (1024 bytes), got 0x80, row 1"),
            std::string::npos);
  d.inner_start = true;
  EXPECT_EQ(text(k_major), "no error");
  d.inner_start = false;
  d.base_offset = 1;
  EXPECT_EQ(text(k_major), "no error");
  d.base_offset = 0;
  d.start = 32768 - 8192;
  EXPECT_NE(text(k_major).find("bytes below 0x8000"), std::string::npos);
  d.start = 0;
  d.swizzle = Swizzle::k128BAtom32;
  EXPECT_NE(text(k_major).find("32-byte atoms"), std::string::npos);
  EXPECT_EQ(text({Major::kMN, 32, 8, 4}), "no error");
  d.swizzle = Swizzle::k64B;
  EXPECT_NE(text({Major::kMN, 32, 8, 4}).find("32-byte atoms"), std::string::npos);
}

/// The fetched bytes are those at the elements' addresses, and the ranges cover these and no other.
void expect_fetch_and_ranges(const MatrixDescriptor& d, const OperandShape& shape,
                             std::span<const std::byte> smem) {
  std::vector<std::byte> got(shape.mn * 32);
  fetch_operand(d, shape, {smem}, got);
  std::set<std::uint32_t> want_bytes;
  for (std::uint32_t i = 0; i < shape.mn * shape.k; ++i) {
    const std::uint32_t address = element_address(d, shape, i / shape.k, i % shape.k);
    ASSERT_EQ(std::memcmp(&got[i * shape.elem_bytes], &smem[address], shape.elem_bytes), 0);
    for (std::uint32_t b = 0; b < shape.elem_bytes; ++b) want_bytes.insert(address + b);
  }
  std::set<std::uint32_t> got_bytes;
  std::uint64_t end = 0;
  for (const ByteRange& range : operand_ranges(d, shape)) {
    EXPECT_GT(range.begin, end) << "joined and ascending";
    end = range.begin + range.size;
    for (std::uint64_t b = range.begin; b < end; ++b) {
      got_bytes.insert(static_cast<std::uint32_t>(b));
    }
  }
  ASSERT_EQ(got_bytes, want_bytes);
}

TEST(Operand, FetchAndRangesAgreeWithTheAddresses) {
  std::mt19937 rng(2);
  std::vector<std::byte> smem(65536);
  for (auto& byte : smem) byte = static_cast<std::byte>(rng());
  const Swizzle swizzles[] = {Swizzle::kNone, Swizzle::k32B, Swizzle::k64B, Swizzle::k128B};
  for (const Swizzle swizzle : swizzles) {
    for (const Major major : {Major::kK, Major::kMN}) {
      for (const std::uint32_t es : {1u, 2u}) {
        for (const std::uint32_t mn : {8u, 24u, 64u}) {
          MatrixDescriptor d{4096, 2048, 1024, swizzle, 0};
          const OperandShape shape{major, mn, 32 / es, es};
          check_operand(d, shape, smem.size());
          expect_fetch_and_ranges(d, shape, smem);
        }
      }
    }
  }
}

// Section 3.6 of the design: one row-major tile is K-major and MN-major at once.
TEST(Operand, OnePayloadTwoUses) {
  std::mt19937 rng(3);
  std::vector<std::byte> smem(16384);
  for (auto& byte : smem) byte = static_cast<std::byte>(rng());
  MatrixDescriptor d{0, 16, 1024, Swizzle::k128B, 0};
  std::vector<std::byte> rows(128 * 32), columns(128 * 32);
  for (std::uint32_t step = 0; step < 4; ++step) {
    d.start = step * 32;
    fetch_operand(d, {Major::kK, 128, 32, 1}, {smem}, rows);
    for (std::uint32_t other = 0; other < 4; ++other) {
      d.start = other * 4096;
      fetch_operand(d, {Major::kMN, 128, 32, 1}, {smem}, columns);
      for (std::uint32_t r = 0; r < 32; ++r) {
        for (std::uint32_t c = 0; c < 32; ++c) {
          // Row 32*other + r, column 32*step + c of the tile, seen both ways.
          ASSERT_EQ(rows[(32 * other + r) * 32 + c], columns[(32 * step + c) * 32 + r]);
        }
      }
    }
  }
}

TEST(InstructionDescriptor, WorkedConstants) {
  const auto decode = [](MmaKind kind, std::uint32_t bits) {
    return decode_instruction_descriptor(kind, bits, 1);
  };
  auto d = decode(MmaKind::kMxF8F6F4, 0x08A00000);
  EXPECT_EQ(d.m, 128u);
  EXPECT_EQ(d.n, 128u);
  EXPECT_EQ(d.a, mx::MmaType::kE4M3);
  EXPECT_EQ(d.major_a, Major::kK);
  EXPECT_EQ(d.d, AccumulatorType::kF32);
  EXPECT_EQ(d.k(), 32u);
  d = decode(MmaKind::kMxF8F6F4, 0x08A10000);
  EXPECT_EQ(d.major_b, Major::kMN);
  EXPECT_EQ(d.major_a, Major::kK);
  d = decode(MmaKind::kMxF8F6F4, 0x08C18000 | 0x60000020);
  EXPECT_EQ(d.n, 256u);
  EXPECT_EQ(d.major_a, Major::kMN);
  EXPECT_EQ(d.sf_id_a, 3u);
  EXPECT_EQ(d.sf_id_b, 2u);
  d = decode(MmaKind::kF8F6F4, 0x08200010);
  EXPECT_EQ(d.n, 128u);
  EXPECT_EQ(d.d, AccumulatorType::kF32);
  d = decode(MmaKind::kF16, 0x08200490);
  EXPECT_EQ(d.a, mx::MmaType::kBF16);
  EXPECT_EQ(d.b, mx::MmaType::kBF16);
  EXPECT_EQ(d.k(), 16u);
  d = decode(MmaKind::kF16, 0x08410490);
  EXPECT_EQ(d.n, 256u);
  EXPECT_EQ(d.major_b, Major::kMN);
}

TEST(InstructionDescriptor, ReservedBits) {
  const struct {
    MmaKind kind;
    std::uint32_t good, free_bits;
  } cases[] = {{MmaKind::kMxF8F6F4, 0x08A00000u, 0x6001E430u},
               {MmaKind::kF8F6F4, 0x08200010u, 0x0001E490u}};
  for (const auto& one : cases) {
    for (int bit = 0; bit < 32; ++bit) {
      if (bit >= 17 && bit <= 22) continue;  // N
      if (bit >= 24 && bit <= 28) continue;  // M
      const std::uint32_t bits = one.good ^ (1u << bit);
      const std::string text =
          message_of([&] { decode_instruction_descriptor(one.kind, bits, 1); });
      // Format codes: flipping bit 0 gives E5M2, bit 1 the invalid code 2, bit 2 E3M2.
      const bool format_ok = bit == 7 || bit == 9 || bit == 10 || bit == 12;
      const bool ok = format_ok || ((one.free_bits >> bit) & 1u) != 0;
      EXPECT_EQ(text == "no error", ok)
          << mma_kind_name(one.kind) << " bit " << bit << ": " << text;
    }
  }
}

TEST(InstructionDescriptor, Shapes) {
  const auto ok = [](MmaKind kind, std::uint32_t m, std::uint32_t n, int group, bool trans_b) {
    const std::uint32_t type = kind == MmaKind::kMxF8F6F4 ? 1u << 23 : 1u << 4;
    const std::uint32_t bits = type | (n / 8) << 17 | (m / 16) << 24 | (trans_b ? 1u << 16 : 0u);
    return message_of([&] { decode_instruction_descriptor(kind, bits, group); }) == "no error";
  };
  EXPECT_TRUE(ok(MmaKind::kMxF8F6F4, 128, 8, 1, false));
  EXPECT_FALSE(ok(MmaKind::kMxF8F6F4, 128, 8, 1, true));
  EXPECT_TRUE(ok(MmaKind::kMxF8F6F4, 128, 16, 1, true));
  EXPECT_FALSE(ok(MmaKind::kMxF8F6F4, 64, 64, 1, false));
  EXPECT_FALSE(ok(MmaKind::kMxF8F6F4, 256, 64, 1, false));
  EXPECT_TRUE(ok(MmaKind::kMxF8F6F4, 256, 64, 2, false));
  EXPECT_FALSE(ok(MmaKind::kMxF8F6F4, 256, 48, 2, true));
  EXPECT_TRUE(ok(MmaKind::kF16, 64, 8, 1, true));
  EXPECT_FALSE(ok(MmaKind::kF16, 128, 8, 1, false));
  EXPECT_TRUE(ok(MmaKind::kF16, 128, 256, 1, false));
  EXPECT_FALSE(ok(MmaKind::kF16, 128, 264, 1, false));
  EXPECT_FALSE(ok(MmaKind::kF16, 32, 64, 1, false));
  EXPECT_FALSE(ok(MmaKind::kF16, 64, 64, 2, false));
  EXPECT_FALSE(ok(MmaKind::kF8F6F4, 128, 0, 1, false));
  expect_fault([] { decode_instruction_descriptor(MmaKind::kMxF8F6F4, 0x08200000, 1); },
               "scale type: expected 1 (UE8M0), got 0");
  expect_fault([] { decode_instruction_descriptor(MmaKind::kF16, 0x08200494, 1); },
               "not modelled: sparsity");
  expect_fault([] { decode_instruction_descriptor(MmaKind::kF16, 0x08200480, 1); },
               "format of D: expected 1 (f32) for bf16 and tf32 operands, got 0");
}

}  // namespace
}  // namespace mxfa::emu::model
