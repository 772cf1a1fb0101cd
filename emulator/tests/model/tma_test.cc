#include "model/tma.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <vector>

#include "expect_fault.h"

namespace mxfa::emu::model {
namespace {

constexpr std::uint64_t kGmemBase = 0x700000000000;

// The tables of PTX ISA 9.0, section 5.5.7: entry [line][position] is the 16-byte chunk found
// there; the pattern starts at an aligned address and repeats.
constexpr int kTable32[2][8] = {{0, 1, 2, 3, 4, 5, 6, 7}, {1, 0, 3, 2, 5, 4, 7, 6}};
constexpr int kTable64[4][8] = {{0, 1, 2, 3, 4, 5, 6, 7},
                                {1, 0, 3, 2, 5, 4, 7, 6},
                                {2, 3, 0, 1, 6, 7, 4, 5},
                                {3, 2, 1, 0, 7, 6, 5, 4}};
constexpr int kTable128[8][8] = {{0, 1, 2, 3, 4, 5, 6, 7}, {1, 0, 3, 2, 5, 4, 7, 6},
                                 {2, 3, 0, 1, 6, 7, 4, 5}, {3, 2, 1, 0, 7, 6, 5, 4},
                                 {4, 5, 6, 7, 0, 1, 2, 3}, {5, 4, 7, 6, 1, 0, 3, 2},
                                 {6, 7, 4, 5, 2, 3, 0, 1}, {7, 6, 5, 4, 3, 2, 1, 0}};
constexpr int kTableAtom32[4][8] = {{0, 1, 2, 3, 4, 5, 6, 7},
                                    {2, 3, 0, 1, 6, 7, 4, 5},
                                    {4, 5, 6, 7, 0, 1, 2, 3},
                                    {6, 7, 4, 5, 2, 3, 0, 1}};
constexpr int kTableAtom64[2][8] = {{0, 1, 2, 3, 4, 5, 6, 7}, {4, 5, 6, 7, 0, 1, 2, 3}};

int chunk_at(Swizzle swizzle, std::uint32_t line, int position) {
  switch (swizzle) {
    case Swizzle::kNone:
      return position;
    case Swizzle::k32B:
      return kTable32[line % 2][position];
    case Swizzle::k64B:
      return kTable64[line % 4][position];
    case Swizzle::k128B:
      return kTable128[line % 8][position];
    case Swizzle::k128BAtom32:
      return kTableAtom32[line % 4][position];
    case Swizzle::k128BAtom64:
      return kTableAtom64[line % 2][position];
  }
  return -1;
}

std::uint32_t lookup(Swizzle swizzle, std::uint32_t address) {
  for (int position = 0; position < 8; ++position) {
    if (chunk_at(swizzle, address / 128, position) == static_cast<int>(address % 128 / 16)) {
      return address / 128 * 128 + static_cast<std::uint32_t>(position) * 16 + address % 16;
    }
  }
  ADD_FAILURE() << "no position";
  return 0;
}

constexpr Swizzle kSwizzles[] = {Swizzle::kNone, Swizzle::k32B,        Swizzle::k64B,
                                 Swizzle::k128B, Swizzle::k128BAtom32, Swizzle::k128BAtom64};

TEST(Swizzle, MatchesTheTablesOfTheIsa) {
  for (const Swizzle swizzle : kSwizzles) {
    for (std::uint32_t address = 0; address < 4096; ++address) {
      ASSERT_EQ(swizzled(swizzle, address), lookup(swizzle, address))
          << "mode " << static_cast<int>(swizzle) << " address " << address;
    }
    EXPECT_EQ(swizzled(swizzle, swizzle_period(swizzle) + 5), swizzle_period(swizzle) + 5);
  }
}

struct World {
  std::vector<std::byte> gmem_bytes;
  std::vector<std::byte> smem_bytes;
  explicit World(std::size_t gmem_size, std::mt19937& rng)
      : gmem_bytes(gmem_size), smem_bytes(65536) {
    for (auto& byte : gmem_bytes) byte = static_cast<std::byte>(rng());
    for (auto& byte : smem_bytes) byte = static_cast<std::byte>(rng());
  }
  SpanMemory gmem() { return {kGmemBase, gmem_bytes}; }
  SpanMemory smem() { return {0, smem_bytes}; }
};

struct Geometry {
  TensorMap map;
  std::vector<std::int32_t> coords;
  std::uint32_t smem_address = 0;
  std::size_t gmem_size = 0;
};

Geometry random_geometry(std::mt19937& rng, TensorType type, bool negative) {
  Geometry g;
  const auto pick = [&rng](std::uint32_t low, std::uint32_t high) {
    return low + static_cast<std::uint32_t>(rng() % (high - low + 1));
  };
  g.map.type = type;
  g.map.rank = static_cast<int>(pick(1, 5));
  g.map.swizzle = kSwizzles[pick(0, 5)];
  g.map.address = kGmemBase + 16 * pick(0, 3);
  const std::uint32_t es = static_cast<std::uint32_t>(tensor_type_bits(type) / 8);
  const std::uint32_t width = g.map.swizzle == Swizzle::kNone ? 160 : swizzle_width(g.map.swizzle);
  const std::uint32_t chunks = width / 16;
  const std::uint32_t inner = 16 * pick(1, chunks);
  g.map.strides[0] = es;
  g.map.box[0] = inner / es;
  g.map.steps.fill(1);
  g.map.dims[0] = pick(1, 300 / es);
  std::uint64_t stride = (g.map.dims[0] * es + 15) / 16 * 16 + 16 * pick(0, 2);
  for (int i = 1; i < g.map.rank; ++i) {
    g.map.dims[i] = pick(1, 6);
    g.map.box[i] = pick(1, i == 1 ? 9 : 3);
    g.map.steps[i] = pick(1, 3);
    g.map.strides[i] = stride;
    stride = stride * g.map.dims[i] + 16 * pick(0, 2);
  }
  for (int i = 0; i < g.map.rank; ++i) {
    const auto dim = static_cast<std::int32_t>(g.map.dims[i]);
    const std::int32_t low = negative ? -static_cast<std::int32_t>(g.map.box[i]) - 2 : 0;
    std::int32_t coord =
        low + static_cast<std::int32_t>(pick(0, static_cast<std::uint32_t>(dim - low + 2)));
    const std::int32_t step = static_cast<std::int32_t>(16 / es);
    if (i == 0) coord = coord / step * step;  // 16 bytes
    g.coords.push_back(coord);
  }
  g.smem_address = 128 * pick(0, 20);
  g.gmem_size = stride + 64;
  return g;
}

/// Element by element, from the definitions.
template <class Visit>
std::uint64_t each_element(const Geometry& g, Visit visit) {
  const std::uint32_t es = static_cast<std::uint32_t>(g.map.strides[0]);
  std::array<std::uint32_t, 5> count{1, 1, 1, 1, 1};
  for (int i = 0; i < g.map.rank; ++i) {
    count[i] = (g.map.box[i] + g.map.steps[i] - 1) / g.map.steps[i];
  }
  // Rows of the image: dense, or as wide as the swizzle.
  const std::uint32_t pitch =
      g.map.swizzle == Swizzle::kNone ? count[0] * es : swizzle_width(g.map.swizzle);
  std::uint32_t row = 0;
  for (std::uint32_t a4 = 0; a4 < count[4]; ++a4)
    for (std::uint32_t a3 = 0; a3 < count[3]; ++a3)
      for (std::uint32_t a2 = 0; a2 < count[2]; ++a2)
        for (std::uint32_t a1 = 0; a1 < count[1]; ++a1, ++row)
          for (std::uint32_t a0 = 0; a0 < count[0]; ++a0) {
            const std::uint32_t at[5] = {a0, a1, a2, a3, a4};
            bool inside = true;
            std::uint64_t offset = g.map.address - kGmemBase;
            for (int i = 0; i < g.map.rank; ++i) {
              const std::int64_t c =
                  std::int64_t{g.coords[i]} + std::int64_t{at[i]} * g.map.steps[i];
              inside = inside && c >= 0 && c < static_cast<std::int64_t>(g.map.dims[i]);
              if (inside) offset += static_cast<std::uint64_t>(c) * g.map.strides[i];
            }
            visit(inside, offset, lookup(g.map.swizzle, g.smem_address + row * pitch + a0 * es));
          }
  return std::uint64_t{row} * count[0] * es;
}

constexpr TensorType kCopyTypes[] = {TensorType::kU8, TensorType::kBF16, TensorType::kF32,
                                     TensorType::kU64};

void mark(std::vector<bool>& seen, const std::vector<ByteRange>& ranges, std::uint64_t base) {
  for (const ByteRange& range : ranges) {
    for (std::uint64_t i = 0; i < range.size; ++i) seen.at(range.begin - base + i) = true;
  }
}

TEST(TileLoad, RandomBoxesAgainstElementwiseCopy) {
  std::mt19937 rng(11);
  for (int run = 0; run < 400; ++run) {
    Geometry g = random_geometry(rng, kCopyTypes[run % 4], true);
    g.map.fill_nan = run % 8 >= 1 && run % 8 <= 2;  // bf16 and f32
    World world(g.gmem_size, rng);
    std::vector<std::byte> want = world.smem_bytes;
    std::vector<bool> want_gmem(g.gmem_size), want_smem(want.size());
    const std::size_t es = g.map.strides[0];
    const std::uint64_t bytes =
        each_element(g, [&](bool inside, std::uint64_t from, std::uint32_t to) {
          for (std::size_t b = 0; b < es; ++b) {
            const std::byte fill =
                !g.map.fill_nan ? std::byte{0} : static_cast<std::byte>(b % 2 == 1 ? 0x7F : 0xF7);
            want[to + b] = inside ? world.gmem_bytes[from + b] : fill;
            want_smem[to + b] = true;
            if (inside) want_gmem[from + b] = true;
          }
        });
    SpanMemory gmem = world.gmem(), smem = world.smem();
    const CopyTrace trace = tile_load({g.map, g.coords, gmem, smem, g.smem_address});
    ASSERT_EQ(trace.bytes, bytes) << "run " << run;
    for (std::size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(world.smem_bytes[i], want[i]) << "run " << run << " shared byte " << i;
    }
    std::vector<bool> got_gmem(g.gmem_size), got_smem(want.size());
    mark(got_gmem, trace.gmem, kGmemBase);
    mark(got_smem, trace.smem, 0);
    ASSERT_EQ(got_gmem, want_gmem) << "run " << run;
    ASSERT_EQ(got_smem, want_smem) << "run " << run;
  }
}

TEST(TileStore, RandomBoxesAgainstElementwiseCopy) {
  std::mt19937 rng(12);
  for (int run = 0; run < 400; ++run) {
    const Geometry g = random_geometry(rng, kCopyTypes[run % 4], false);
    World world(g.gmem_size, rng);
    std::vector<std::byte> want = world.gmem_bytes;
    const std::size_t es = g.map.strides[0];
    each_element(g, [&](bool inside, std::uint64_t to, std::uint32_t from) {
      if (inside) std::memcpy(&want[to], &world.smem_bytes[from], es);
    });
    SpanMemory gmem = world.gmem(), smem = world.smem();
    tile_store({g.map, g.coords, gmem, smem, g.smem_address});
    ASSERT_EQ(world.gmem_bytes, want) << "run " << run;
  }
}

TEST(TileReduce, RandomBoxesAddU32) {
  std::mt19937 rng(13);
  for (int run = 0; run < 100; ++run) {
    const Geometry g = random_geometry(rng, TensorType::kU32, false);
    World world(g.gmem_size, rng);
    std::vector<std::byte> want = world.gmem_bytes;
    each_element(g, [&](bool inside, std::uint64_t to, std::uint32_t from) {
      std::uint32_t x, y;
      std::memcpy(&x, &world.smem_bytes[from], 4);
      if (!inside) return;
      std::memcpy(&y, &want[to], 4);
      y += x;
      std::memcpy(&want[to], &y, 4);
    });
    SpanMemory gmem = world.gmem(), smem = world.smem();
    tile_reduce({g.map, g.coords, gmem, smem, g.smem_address}, ReduceOp::kAdd);
    ASSERT_EQ(world.gmem_bytes, want) << "run " << run;
  }
}

Geometry small() {
  Geometry g;
  g.map.type = TensorType::kBF16;
  g.map.rank = 2;
  g.map.address = kGmemBase;
  g.map.dims = {64, 16, 0, 0, 0};
  g.map.strides = {2, 128, 0, 0, 0};
  g.map.box = {64, 8, 0, 0, 0};
  g.map.steps = {1, 1, 1, 1, 1};
  g.coords = {0, 0};
  g.gmem_size = 2048;
  return g;
}

TEST(TileCopy, Misuse) {
  std::mt19937 rng(1);
  Geometry g = small();
  World world(g.gmem_size, rng);
  SpanMemory gmem = world.gmem(), smem = world.smem();
  const auto load = [&] { tile_load({g.map, g.coords, gmem, smem, g.smem_address}); };
  const auto store = [&] { tile_store({g.map, g.coords, gmem, smem, g.smem_address}); };
  g.smem_address = 64;
  expect_fault(load, "shared address: expected a multiple of 128, got 0x40");
  g.smem_address = 65536 - 512;
  expect_fault(load, "memory access");
  g.smem_address = 0;
  g.coords = {0};
  expect_fault(load, "coordinates: expected 2 (the map's rank), got 1");
  g.coords = {0, -1};
  EXPECT_EQ(message_of(load), "no error");
  expect_fault(store, "coordinate 1: expected 0 or more (shared to global), got -1");
  g.coords = {0, 0};
  g.map.type = TensorType::kB4x16;
  expect_fault(load, "not modelled: 16U4_ALIGN8B");
  g.map = small().map;
  g.coords = {4, 0};
  expect_fault(load, "coordinate 0: expected a multiple of 16 bytes, got 4 elements of 2");
  expect_fault(store, "coordinate 0: expected a multiple of 16 bytes");
  g.coords = {-8, 0};
  EXPECT_EQ(message_of(load), "no error");
  expect_fault(store, "coordinate 0: expected 0 or more");
  g.map = small().map;
  g.map.rank = 5;
  g.map.box = {64, 256, 256, 256, 256};
  g.coords = {0, 0, 0, 0, 0};
  expect_fault(load, "box: expected at most 256 KiB");
  expect_fault([] { check_tensor_mode(TensorMode::kIm2col); }, "not modelled: im2col");
  expect_fault([] { check_tensor_mode(TensorMode::kGather4); }, "not modelled: tile::gather4");
  EXPECT_NO_THROW(check_tensor_mode(TensorMode::kTile));
}

// Recorded on an H200.
TEST(TileLoad, ElementTypesThatConvert) {
  const std::uint32_t in[8] = {0x00000001, 0x807FFFFF, 0x3F801000, 0x3F803000,
                               0x7F7FFFFF, 0x7F800000, 0xFF812345, 0x80003000};
  const std::uint32_t tf32[8] = {0x00000000, 0x80800000, 0x3F800000, 0x3F804000,
                                 0x7F800000, 0x7F800000, 0x7FFFE000, 0x80004000};
  Geometry g;
  g.map.rank = 1;
  g.map.address = kGmemBase;
  g.map.dims[0] = g.map.box[0] = 8;
  g.map.steps.fill(1);
  g.map.strides[0] = 4;
  g.coords = {0};
  for (const TensorType type :
       {TensorType::kF32, TensorType::kF32Ftz, TensorType::kTF32, TensorType::kTF32Ftz}) {
    g.map.type = type;
    std::array<std::byte, 32> from, to, back;
    std::memcpy(from.data(), in, 32);
    SpanMemory gmem(kGmemBase, from), smem(0, to);
    tile_load({g.map, g.coords, gmem, smem, 0});
    const bool rounds = type == TensorType::kTF32 || type == TensorType::kTF32Ftz;
    EXPECT_EQ(std::memcmp(to.data(), rounds ? tf32 : in, 32), 0) << tensor_type_name(type);
    SpanMemory target(kGmemBase, back), source(0, from);
    tile_store({g.map, g.coords, target, source, 0});
    EXPECT_EQ(std::memcmp(back.data(), in, 32), 0) << "stores copy";
  }
}

TEST(TileCopy, ReadsPastTheAllocationAreErrorsWhereTheMapSaysInside) {
  std::mt19937 rng(1);
  Geometry g = small();
  g.map.dims[1] = 100;  // the map claims more rows than the memory has
  g.coords = {0, 12};
  World world(g.gmem_size, rng);
  SpanMemory gmem = world.gmem(), smem = world.smem();
  expect_fault([&] { tile_load({g.map, g.coords, gmem, smem, 0}); }, "memory access");
}

TEST(BulkCopy, CopiesAndChecks) {
  std::mt19937 rng(5);
  World world(1024, rng);
  SpanMemory gmem = world.gmem(), smem = world.smem();
  bulk_copy({gmem, kGmemBase + 16, smem, 256, 64});
  EXPECT_TRUE(std::equal(world.smem_bytes.begin() + 256, world.smem_bytes.begin() + 320,
                         world.gmem_bytes.begin() + 16));
  const auto copy = [&](std::uint64_t from, std::uint64_t to, std::uint64_t size) {
    return message_of([&] { bulk_copy({gmem, kGmemBase + from, smem, to, size}); });
  };
  EXPECT_NE(copy(8, 0, 16).find("source address: expected a multiple of 16"), std::string::npos);
  EXPECT_NE(copy(0, 8, 16).find("destination address"), std::string::npos);
  EXPECT_NE(copy(0, 0, 24).find("size: expected a multiple of 16, got 0x18"), std::string::npos);
  EXPECT_NE(copy(0, 0, 0xFFFFFFF0).find("at most 256 KiB"), std::string::npos);
  EXPECT_NE(copy(1008, 0, 32).find("memory access"), std::string::npos);
}

TEST(BulkCopy, ByteMask) {
  std::mt19937 rng(5);
  World world(64, rng);
  const std::vector<std::byte> before = world.gmem_bytes;
  SpanMemory gmem = world.gmem(), smem = world.smem();
  bulk_copy_masked({smem, 0, gmem, kGmemBase, 64}, 0x8005);
  for (std::size_t i = 0; i < 64; ++i) {
    const bool copied = i % 16 == 0 || i % 16 == 2 || i % 16 == 15;
    EXPECT_EQ(world.gmem_bytes[i], copied ? world.smem_bytes[i] : before[i]) << i;
  }
}

TEST(BulkReduce, AddsInPlace) {
  std::mt19937 rng(6);
  World world(64, rng);
  const float old[4] = {1.0f, 2.0f, -3.0f, 0.5f}, value[4] = {0.25f, 1.0f, 3.0f, 8.0f};
  std::memcpy(world.gmem_bytes.data() + 16, old, 16);
  std::memcpy(world.smem_bytes.data(), value, 16);
  SpanMemory gmem = world.gmem(), smem = world.smem();
  bulk_reduce({smem, 0, gmem, kGmemBase + 16, 16}, ReduceTarget::kGlobal, ReduceOp::kAdd,
              ReduceType::kF32);
  float got[4];
  std::memcpy(got, world.gmem_bytes.data() + 16, 16);
  EXPECT_EQ(got[0], 1.25f);
  EXPECT_EQ(got[1], 3.0f);
  EXPECT_EQ(got[2], 0.0f);
  EXPECT_EQ(got[3], 8.5f);
  expect_fault(
      [&] {
        bulk_reduce({smem, 0, gmem, kGmemBase, 16}, ReduceTarget::kSharedCluster, ReduceOp::kAdd,
                    ReduceType::kF32);
      },
      "got .add.f32");
}

}  // namespace
}  // namespace mxfa::emu::model
