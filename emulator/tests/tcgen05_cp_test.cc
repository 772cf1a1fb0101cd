#include "tcgen05_mma_harness.h"

/// tcgen05.cp: every shape, format and CTA group against the lanes that its name spells out.
namespace mxfa::emu::test {
namespace {

struct CopyShape {
  const char* name;
  U32 rows;
  U32 bytes;  ///< of a row
  /// The source row of a lane.
  U32 (*row)(U32 lane);
};
const CopyShape kShapes[] = {
    {"128x256b", 128, 32, [](U32 lane) { return lane; }},
    {"128x128b", 128, 16, [](U32 lane) { return lane; }},
    {"64x128b.warpx2::02_13", 64, 16, [](U32 lane) { return lane % 64; }},
    {"64x128b.warpx2::01_23", 64, 16, [](U32 lane) { return lane / 64 * 32 + lane % 32; }},
    {"32x128b.warpx4", 32, 16, [](U32 lane) { return lane % 32; }},
    {"warpx4.32x128b", 32, 16, [](U32 lane) { return lane % 32; }},
};

SmemLayout source_layout(U32 swizzle, U32 rows) {
  SmemLayout layout;
  layout.swizzle = swizzle;
  layout.start = 4096 + (swizzle == 128 ? 32 : 0);  // an advance inside the row of 128 bytes
  layout.sbo = swizzle == 0 ? 256 : 8 * swizzle + 1024;
  layout.lbo = swizzle == 0 ? rows / 8 * 256 : 0;
  return layout;
}

void check_copy(const CopyShape& shape, U32 swizzle, U32 group, std::mt19937& rng) {
  const SmemLayout layout = source_layout(swizzle, shape.rows);
  std::vector<std::vector<std::uint8_t>> smem(group);
  for (auto& bytes : smem) {
    bytes.resize(kSharedBytes);
    for (auto& byte : bytes) byte = static_cast<std::uint8_t>(rng());
  }
  PairKernel kernel;
  kernel.ctas = group;
  kernel.issue = fmt::format(
      "  add.u32 %r0, %tmem, 8;\n  mov.b64 %d0, {};\n  tcgen05.cp.cta_group::{}.{} [%r0+4], "
      "%d0;\n",
      layout.descriptor(), group, shape.name);
  const auto images = run_pair(kernel, smem);
  for (U32 cta = 0; cta < group; ++cta) {
    TensorImage want = initial_image();
    for (U32 i = 0; i < 128 * shape.bytes; ++i) {
      const U32 lane = i / shape.bytes, byte = i % shape.bytes;
      auto* bytes = reinterpret_cast<std::uint8_t*>(&want[lane * 512 + 12]);
      bytes[byte] = smem[cta][layout.address(shape.row(lane), byte, 1)];
    }
    ASSERT_EQ(images[cta], want) << shape.name << " swizzle " << swizzle << " group " << group;
  }
}

TEST(Tcgen05Copy, EveryShape) {
  std::mt19937 rng(1);
  for (const CopyShape& shape : kShapes) {
    for (const U32 swizzle : {0u, 32u, 64u, 128u}) {
      for (const U32 group : {1u, 2u}) check_copy(shape, swizzle, group, rng);
    }
  }
}

TEST(Tcgen05Copy, NarrowTypesLandInTheMiddleOfTheirBytes) {
  std::mt19937 rng(2);
  for (const Type type : {Type::kE2M1, Type::kE3M2, Type::kE2M3}) {
    const Format& f = format_of(type);
    const SmemLayout layout = source_layout(64, 128);
    std::vector<std::uint8_t> smem(kSharedBytes, 0xA5);
    std::vector<U32> codes(128 * 32);
    for (U32 i = 0; i < codes.size(); ++i) {
      codes[i] = static_cast<U32>(rng()) & ((1u << f.bits()) - 1u);
      put_element(smem, layout, f, i / 32, i % 32, codes[i]);
    }
    PairKernel kernel;
    kernel.issue = fmt::format(
        "  mov.b64 %d0, {};\n  tcgen05.cp.cta_group::1.128x256b.b8x16.{} [%tmem], %d0;\n",
        layout.descriptor(), type == Type::kE2M1 ? "b4x16_p64" : "b6x16_p32");
    const auto images = run_pair(kernel, {smem});
    TensorImage want = initial_image();
    for (U32 i = 0; i < codes.size(); ++i) {
      const U32 shift = type == Type::kE2M1 ? 2 : 1;
      reinterpret_cast<std::uint8_t*>(&want[i / 32 * 512])[i % 32] =
          static_cast<std::uint8_t>(codes[i] << shift);
    }
    ASSERT_EQ(images[0], want) << f.name;
  }
}

TEST(Tcgen05Copy, Misuse) {
  const auto message = [](const std::string& issue) {
    PairKernel kernel;
    kernel.issue = issue;
    return error_of([&] { run_pair(kernel, {std::vector<std::uint8_t>(kSharedBytes)}); });
  };
  const auto expect = [&](const std::string& issue, const char* text) {
    const std::string got = message(issue);
    EXPECT_NE(got.find(text), std::string::npos) << "no '" << text << "' in: " << got;
  };
  const std::string atom = "  mov.b64 %d0, 0x0000400800000000;\n";
  expect(atom + "  tcgen05.cp.cta_group::1.4x256b [%tmem], %d0;\n", "unknown opcode or qualifier");
  expect(atom + "  tcgen05.cp.cta_group::1.32x128b [%tmem], %d0;\n", "unknown opcode or qualifier");
  expect(atom + "  tcgen05.cp.cta_group::2.32x128b.warpx4 [%tmem], %d0;\n",
         "cta_group::2 in a kernel that uses cta_group::1");
  expect(atom + "  tcgen05.cp.cta_group::1.32x128b.warpx4 [%tmem+2], %d0;\n", "multiple of 4");
  expect(
      "  mov.b64 %d0, 0x0000000800000000;\n"
      "  tcgen05.cp.cta_group::1.32x128b.warpx4 [%tmem], %d0;\n",
      "bits 48:46: expected 0b001");
  expect(
      "  mov.b64 %d0, 0x6000400800000000;\n"
      "  tcgen05.cp.cta_group::1.32x128b.warpx4 [%tmem], %d0;\n",
      "swizzle: expected 0, 1, 2, 4 or 6, got 3");
  // Beyond the dynamic shared memory.
  expect(
      "  mov.b64 %d0, 0x0000400800003FFF;\n"
      "  tcgen05.cp.cta_group::1.32x128b.warpx4 [%tmem], %d0;\n",
      "bytes below");
}

}  // namespace
}  // namespace mxfa::emu::test
