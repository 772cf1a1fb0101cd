#include "model/tmem.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <set>
#include <vector>

#include "expect_fault.h"
#include "mx/bits.h"

namespace mxfa::emu::model {
namespace {

/// Bit layouts as public libraries write them: thread and value strides into an image of `lanes`
/// rows of `row_bits`, then lane = bit / row_bits, column = bit % row_bits / 32.
struct BitLayout {
  TmemShape shape;
  std::uint32_t base_bits;  // bits a lane at .x1
  std::uint32_t bit(std::uint32_t t, std::uint32_t reg, std::uint32_t row_bits) const {
    switch (shape) {
      case TmemShape::k32x32b:
        return t * row_bits + reg * 32;
      // (4,8):(64, row) over (64, 2, N):(1, 8 rows, 256)
      case TmemShape::k16x256b:
        return t % 4 * 64 + t / 4 * row_bits + reg % 2 * 32 + reg / 2 % 2 * 8 * row_bits +
               reg / 4 * 256;
      // (4,8):(32, row) over (32, 2, N):(1, 8 rows, 128)
      case TmemShape::k16x128b:
        return t % 4 * 32 + t / 4 * row_bits + reg % 2 * 8 * row_bits + reg / 2 * 128;
      // (2,2,8):(8 rows, 32, row) over (32, N):(1, 64)
      case TmemShape::k16x64b:
        return t % 2 * 8 * row_bits + t / 2 % 2 * 32 + t / 4 * row_bits + reg * 64;
      default:
        return t % 16 * row_bits + reg * 32;
    }
  }
};

TEST(TmemShapes, MatchTheBitLayouts) {
  const BitLayout layouts[] = {{TmemShape::k32x32b, 32},
                               {TmemShape::k16x64b, 64},
                               {TmemShape::k16x128b, 128},
                               {TmemShape::k16x256b, 256}};
  for (const BitLayout& layout : layouts) {
    for (std::uint32_t num = 1; num <= 8192 / layout.base_bits && num <= 128; num *= 2) {
      const TmemAccess access{layout.shape, num, false, 0};
      const std::uint32_t row_bits = layout.base_bits * num;
      std::set<std::pair<std::uint32_t, std::uint32_t>> seen;
      for (std::uint32_t reg = 0; reg < tmem_registers(access); ++reg) {
        for (std::uint32_t t = 0; t < 32; ++t) {
          const TmemAddress cell = tmem_cell(access, t, reg);
          const std::uint32_t bit = layout.bit(t, reg, row_bits);
          ASSERT_EQ(cell.lane, bit / row_bits);
          ASSERT_EQ(cell.column, bit % row_bits / 32);
          seen.insert({cell.lane, cell.column});
        }
      }
      const std::uint32_t lanes = layout.shape == TmemShape::k32x32b ? 32 : 16;
      ASSERT_EQ(seen.size(), lanes * row_bits / 32) << "each word once";
    }
  }
}

TEST(TmemShapes, RegisterTable) {
  const auto regs = [](TmemShape shape, std::uint32_t num) {
    return tmem_registers({shape, num, false, 0});
  };
  EXPECT_EQ(regs(TmemShape::k32x32b, 128), 128u);
  EXPECT_EQ(regs(TmemShape::k16x64b, 128), 128u);
  EXPECT_EQ(regs(TmemShape::k16x32bx2, 64), 64u);
  EXPECT_EQ(regs(TmemShape::k16x128b, 64), 128u);
  EXPECT_EQ(regs(TmemShape::k16x256b, 32), 128u);
  EXPECT_EQ(regs(TmemShape::k16x256b, 1), 4u);
  for (const auto& [shape, num] :
       {std::pair{TmemShape::k16x128b, 128u}, std::pair{TmemShape::k16x256b, 64u},
        std::pair{TmemShape::k32x32b, 3u}, std::pair{TmemShape::k32x32b, 0u}}) {
    expect_fault([&, s = shape, n = num] { regs(s, n); }, ".num: expected a power of two");
  }
}

struct Registers {
  std::vector<std::array<std::uint32_t, 32>> rows;
  std::vector<std::uint32_t*> pointers;
  explicit Registers(std::uint32_t count) : rows(count) {
    for (auto& row : rows) pointers.push_back(row.data());
  }
  std::vector<const std::uint32_t*> const_pointers() const {
    return {pointers.begin(), pointers.end()};
  }
};

TensorMemory full_memory() {
  TensorMemory tmem;
  tmem.alloc(512);
  for (std::uint32_t lane = 0; lane < 128; ++lane) {
    for (std::uint32_t column = 0; column < 512; ++column) {
      tmem.write(lane, column, lane << 16 | column);
    }
  }
  return tmem;
}

/// Number of different cells in the ranges.
std::size_t covered_cells(const std::vector<TmemRange>& ranges) {
  std::set<std::pair<std::uint32_t, std::uint32_t>> covered;
  for (const TmemRange& r : ranges) {
    for (std::uint32_t l = 0; l < r.lanes; ++l) {
      for (std::uint32_t c = 0; c < r.columns; ++c) covered.insert({r.lane + l, r.column + c});
    }
  }
  return covered.size();
}

TEST(TmemLoad, EveryWarpAndShape) {
  const TensorMemory tmem = full_memory();
  const TmemShape shapes[] = {TmemShape::k32x32b, TmemShape::k16x64b, TmemShape::k16x128b,
                              TmemShape::k16x256b, TmemShape::k16x32bx2};
  for (const TmemShape shape : shapes) {
    for (std::uint32_t warp = 0; warp < 8; ++warp) {
      for (const bool pack : {false, true}) {
        const std::uint32_t half = shape == TmemShape::k32x32b ? 0 : warp % 2 * 16;
        const TmemAccess access{shape, 4, pack, 100};
        const std::uint32_t lane0 = 32 * (warp % 4) + half;
        const std::uint32_t address = encode_tmem_address({lane0, 40});
        Registers regs(tmem_registers(access));
        tmem_load(access, address, warp, tmem, regs.pointers);
        for (std::uint32_t i = 0; i < regs.rows.size() * 32; ++i) {
          const std::uint32_t reg = i / 32, t = i % 32;
          const TmemAddress cell = tmem_cell(access, t, reg);
          std::uint32_t column = 40 + (pack ? 2 * cell.column : cell.column);
          column += shape == TmemShape::k16x32bx2 && t >= 16 ? 100 : 0;
          const std::uint32_t lane = lane0 + cell.lane;
          const std::uint32_t want = pack ? (column | (column + 1) << 16) : (lane << 16 | column);
          ASSERT_EQ(regs.rows[reg][t], want);
        }
        EXPECT_EQ(covered_cells(tmem_ranges(access, address, warp)),
                  regs.rows.size() * 32u * (pack ? 2u : 1u));
      }
    }
  }
}

TEST(TmemStore, UndoesTheLoad) {
  std::mt19937 rng(1);
  for (const TmemShape shape : {TmemShape::k32x32b, TmemShape::k16x64b, TmemShape::k16x128b,
                                TmemShape::k16x256b, TmemShape::k16x32bx2}) {
    for (const bool pack : {false, true}) {
      TensorMemory tmem;
      tmem.alloc(512);
      const TmemAccess access{shape, 8, pack, 64};
      Registers in(tmem_registers(access)), out(tmem_registers(access));
      for (auto& row : in.rows) {
        for (auto& word : row) word = static_cast<std::uint32_t>(rng());
      }
      const std::uint32_t address = encode_tmem_address({64, 32});
      tmem_store(access, address, 2, tmem, in.const_pointers());
      tmem_load(access, address, 2, tmem, out.pointers);
      EXPECT_EQ(in.rows, out.rows);
      if (pack && shape == TmemShape::k32x32b) {
        EXPECT_EQ(tmem.read(64, 32), in.rows[0][0] & 0xFFFF);
        EXPECT_EQ(tmem.read(64, 33), in.rows[0][0] >> 16);
      }
    }
  }
}

TEST(TmemLoad, QuartersAndLanes) {
  const TensorMemory tmem = full_memory();
  Registers regs(1);
  const TmemAccess access{};
  const auto load = [&](std::uint32_t lane, std::uint32_t warp, bool lenient) {
    return message_of([&] {
      tmem_load(access, encode_tmem_address({lane, 7}), warp, tmem, regs.pointers, lenient);
    });
  };
  EXPECT_NE(load(0, 1, false).find("lane: expected 32..63 (warp 1), got 0"), std::string::npos);
  EXPECT_EQ(load(0, 1, true), "no error");
  EXPECT_EQ(regs.rows[0][5], 37u << 16 | 7u) << "the quarter is the warp's";
  EXPECT_NE(load(48, 1, false).find("lane 0 or 16"), std::string::npos);
  EXPECT_NE(load(33, 1, false).find("lane 0 or 16"), std::string::npos);
  expect_fault([] { decode_tmem_address(128u << 16); }, "a lane below 128");
  expect_fault([] { decode_tmem_address(512); }, "a column below 512");
}

TEST(TensorMemory, Allocation) {
  TensorMemory tmem;
  EXPECT_EQ(tmem.alloc(256), 0u);
  EXPECT_EQ(tmem.alloc(128), 256u);
  EXPECT_EQ(tmem.alloc(128), 384u);
  EXPECT_EQ(tmem.alloc(32), std::nullopt) << "blocks";
  EXPECT_EQ(tmem.live_columns(), 512u);
  tmem.dealloc(256, 128);
  EXPECT_EQ(tmem.alloc(64), 256u);
  expect_fault([&] { tmem.alloc(128); }, "at most the 64 of an earlier one");
  expect_fault([&] { tmem.alloc(48); }, "a power of two in 32..512, got 48");
  expect_fault([&] { tmem.alloc(16); }, "a power of two");
  expect_fault([&] { tmem.dealloc(256, 32); }, "live allocation");
  expect_fault([&] { tmem.dealloc(320, 64); }, "live allocation");
  tmem.relinquish();
  expect_fault([&] { tmem.alloc(32); }, "after relinquish_alloc_permit");
  tmem.dealloc(256, 64);
  tmem.dealloc(384, 128);
  tmem.dealloc(0, 256);
  EXPECT_EQ(tmem.live_columns(), 0u);
  expect_fault([&] { tmem.dealloc(0, 256); }, "live allocation");
}

TEST(TensorMemory, PoisonAndBounds) {
  TensorMemory tmem;
  expect_fault([&] { tmem.write(0, 0, 1); }, "allocated tensor memory, got lane 0 column 0");
  tmem.alloc(64);
  expect_fault([&] { tmem.read(3, 4); },
               "words written since their allocation, got lane 3 column 4");
  tmem.write(3, 4, 9);
  EXPECT_EQ(tmem.read(3, 4), 9u);
  expect_fault([&] { tmem.write(0, 64, 1); }, "allocated tensor memory");
  tmem.dealloc(0, 64);
  expect_fault([&] { tmem.read(3, 4); }, "allocated tensor memory");
  tmem.alloc(64);
  expect_fault([&] { tmem.read(3, 4); }, "written since their allocation");
  EXPECT_NO_THROW(tmem.check_allocated("x", {0, 128, 32, 32}));
  expect_fault([&] { tmem.check_allocated("x", {0, 128, 32, 33}); }, "column 64");
}

TEST(TmemReduce, MatchesAPlainLoop) {
  std::mt19937 rng(4);
  for (const std::size_t size : {2u, 31u, 32u, 64u, 128u}) {
    std::vector<std::uint32_t> values(size);
    float most = -INFINITY, least = INFINITY, most_abs = 0;
    for (auto& bits : values) {
      const float x = std::ldexp(static_cast<float>(static_cast<int>(rng())), -31);
      bits = mx::float_bits(x);
      most = std::max(most, x);
      least = std::min(least, x);
      most_abs = std::max(most_abs, std::fabs(x));
    }
    EXPECT_EQ(tmem_reduce_f32(TmemReduce::kMax, false, false, values), mx::float_bits(most));
    EXPECT_EQ(tmem_reduce_f32(TmemReduce::kMin, false, false, values), mx::float_bits(least));
    EXPECT_EQ(tmem_reduce_f32(TmemReduce::kMax, true, false, values), mx::float_bits(most_abs));
    values[0] = 0x7FC00000;
    EXPECT_EQ(tmem_reduce_f32(TmemReduce::kMax, false, true, values), 0x7FFFFFFFu);
    EXPECT_NE(tmem_reduce_f32(TmemReduce::kMax, false, false, values), 0x7FFFFFFFu);
  }
}

}  // namespace
}  // namespace mxfa::emu::model
