#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <set>
#include <vector>

#include "expect_fault.h"
#include "model/warp_matrix.h"
#include "model/warp_ops.h"
#include "mx/bits.h"

namespace mxfa::emu::model {
namespace {

struct Lanes {
  std::array<std::array<std::uint32_t, 32>, 4> rows{};
  std::vector<std::uint32_t*> pointers(std::uint32_t count) {
    std::vector<std::uint32_t*> result;
    for (std::uint32_t i = 0; i < count; ++i) result.push_back(rows[i].data());
    return result;
  }
};

/// Rows scattered over shared memory.
std::vector<std::uint32_t> scattered_addresses(std::mt19937& rng) {
  std::vector<std::uint32_t> slots(256);
  for (std::uint32_t i = 0; i < 256; ++i) slots[i] = 16 * i;
  std::shuffle(slots.begin(), slots.end(), rng);
  slots.resize(32);
  return slots;
}

std::uint32_t half_at(const std::vector<std::byte>& smem, std::uint32_t address) {
  return static_cast<std::uint32_t>(smem[address]) | static_cast<std::uint32_t>(smem[address + 1])
                                                         << 8;
}

TEST(Ldmatrix, M8N8InWords) {
  std::mt19937 rng(1);
  std::vector<std::byte> smem(4096);
  for (auto& byte : smem) byte = static_cast<std::byte>(rng());
  SpanMemory memory(0, smem);
  for (const std::uint32_t num : {1u, 2u, 4u}) {
    for (const bool trans : {false, true}) {
      const auto addresses = scattered_addresses(rng);
      Lanes lanes;
      const auto regs = lanes.pointers(num);
      const MatrixAccess access{trans ? MatrixForm::kM8N8Trans : MatrixForm::kM8N8, num, addresses};
      const auto touched = ldmatrix(access, memory, regs);
      EXPECT_EQ(touched.size(), 8u * num);
      for (std::uint32_t matrix = 0; matrix < num; ++matrix) {
        for (std::uint32_t i = 0; i < 64; ++i) {
          // Element (row, col) of the fragment sits in lane 4*row + col/2, half col%2; transposed
          // it comes from memory element (col, row).
          const std::uint32_t row = i / 8, col = i % 8;
          const std::uint32_t from_row = trans ? col : row, from_col = trans ? row : col;
          const std::uint32_t want = half_at(smem, addresses[matrix * 8 + from_row] + 2 * from_col);
          const std::uint32_t word = lanes.rows[matrix][4 * row + col / 2];
          ASSERT_EQ(word >> (16 * (col % 2)) & 0xFFFF, want);
        }
      }
    }
  }
}

TEST(Stmatrix, UndoesLdmatrix) {
  std::mt19937 rng(2);
  for (const std::uint32_t num : {1u, 2u, 4u}) {
    for (const bool trans : {false, true}) {
      std::vector<std::byte> source(4096), target(4096);
      for (auto& byte : source) byte = static_cast<std::byte>(rng());
      SpanMemory from(0, source), to(0, target);
      const auto addresses = scattered_addresses(rng);
      Lanes lanes;
      const auto regs = lanes.pointers(num);
      const std::vector<const std::uint32_t*> const_regs(regs.begin(), regs.end());
      const MatrixAccess access{trans ? MatrixForm::kM8N8Trans : MatrixForm::kM8N8, num, addresses};
      ldmatrix(access, from, regs);
      stmatrix(access, to, const_regs);
      std::set<std::uint32_t> written(addresses.begin(), addresses.begin() + 8 * num);
      for (std::uint32_t i = 0; i < 4096; ++i) {
        const bool inside = written.count(i / 16 * 16) != 0;
        ASSERT_EQ(target[i], inside ? source[i] : std::byte{0}) << i;
      }
    }
  }
}

// The layouts of public libraries: bit offsets (lane%4: 256, lane/4: 8; byte bit 0: 128, byte bit
// 1: 64; register: 1024) in an image of 128-bit rows.
TEST(Stmatrix, BytesTransposed) {
  for (std::uint32_t num : {1u, 2u, 4u}) {
    std::set<std::pair<std::uint32_t, std::uint32_t>> seen;
    for (std::uint32_t lane = 0; lane < 32; ++lane) {
      for (std::uint32_t reg = 0; reg < num; ++reg) {
        for (std::uint32_t byte = 0; byte < 4; ++byte) {
          const std::uint32_t bits =
              lane % 4 * 256 + lane / 4 * 8 + byte % 2 * 128 + byte / 2 * 64 + reg * 1024;
          const MatrixByte at = matrix_byte(MatrixForm::kM16N8Trans, lane, reg, byte);
          EXPECT_EQ(at.lane, bits / 128);
          EXPECT_EQ(at.byte, bits % 128 / 8);
          seen.insert({at.lane, at.byte});
        }
      }
    }
    EXPECT_EQ(seen.size(), 128u * num);
    EXPECT_EQ(matrix_registers(MatrixForm::kM16N8Trans, num), num);
    EXPECT_EQ(matrix_address_lanes(MatrixForm::kM16N8Trans, num), 8 * num);
  }
}

// Loads have the same offsets, and lane l gives the row at bit offset
// (l%2)*128 + (l/2%2)*1024 + (l/4%4)*256 + (l/16)*2048.
TEST(Ldmatrix, BytesTransposed) {
  for (const std::uint32_t num : {1u, 2u}) {
    std::set<std::pair<std::uint32_t, std::uint32_t>> seen;
    for (std::uint32_t lane = 0; lane < 32; ++lane) {
      for (std::uint32_t reg = 0; reg < 2 * num; ++reg) {
        for (std::uint32_t byte = 0; byte < 4; ++byte) {
          const std::uint32_t bits =
              lane % 4 * 256 + lane / 4 * 8 + byte % 2 * 128 + byte / 2 * 64 + reg * 1024;
          const MatrixByte at = matrix_byte(MatrixForm::kM16N16Trans, lane, reg, byte);
          const std::uint32_t l = at.lane;
          EXPECT_EQ(l % 2 * 128 + l / 2 % 2 * 1024 + l / 4 % 4 * 256 + l / 16 * 2048,
                    bits / 128 * 128);
          EXPECT_EQ(at.byte, bits % 128 / 8);
          seen.insert({at.lane, at.byte});
        }
      }
    }
    EXPECT_EQ(seen.size(), 256u * num);
  }
}

TEST(WarpMatrix, Misuse) {
  std::vector<std::byte> smem(4096);
  SpanMemory memory(0, smem);
  Lanes lanes;
  std::vector<std::uint32_t> addresses(32);
  const auto load = [&](MatrixForm form, std::uint32_t num, std::uint32_t regs) {
    return message_of([&] { ldmatrix({form, num, addresses}, memory, lanes.pointers(regs)); });
  };
  EXPECT_EQ(load(MatrixForm::kM8N8, 1, 1), "no error");
  EXPECT_NE(load(MatrixForm::kM8N8, 3, 3).find("got .x3"), std::string::npos);
  EXPECT_NE(load(MatrixForm::kM16N16Trans, 4, 4).find(".x1 or .x2"), std::string::npos);
  EXPECT_NE(load(MatrixForm::kM8N8, 2, 1).find("registers: expected 2"), std::string::npos);
  EXPECT_NE(load(MatrixForm::kM16N8Trans, 1, 1).find("ldmatrix shape"), std::string::npos);
  addresses[7] = 8;
  EXPECT_NE(load(MatrixForm::kM8N8, 1, 1).find("address of lane 7: expected a multiple of 16"),
            std::string::npos);
  addresses[7] = 0;
  addresses[8] = 8;  // unused by .x1
  EXPECT_EQ(load(MatrixForm::kM8N8, 1, 1), "no error");
  addresses[2] = 4096;
  EXPECT_NE(load(MatrixForm::kM8N8, 1, 1).find("memory access"), std::string::npos);
}

TEST(Movmatrix, Transposes) {
  std::array<std::uint32_t, 32> source;
  std::uint32_t matrix[8][8];
  for (std::uint32_t row = 0; row < 8; ++row) {
    for (std::uint32_t col = 0; col < 8; ++col) matrix[row][col] = row * 100 + col;
    for (std::uint32_t pair = 0; pair < 4; ++pair) {
      source[row * 4 + pair] = matrix[row][2 * pair] | matrix[row][2 * pair + 1] << 16;
    }
  }
  const auto result = movmatrix(source);
  for (std::uint32_t row = 0; row < 8; ++row) {
    for (std::uint32_t pair = 0; pair < 4; ++pair) {
      EXPECT_EQ(result[row * 4 + pair], matrix[2 * pair][row] | matrix[2 * pair + 1][row] << 16);
    }
  }
}

TEST(Redux, IntegersAgainstPlainLoops) {
  std::mt19937 rng(3);
  for (int run = 0; run < 200; ++run) {
    std::array<std::uint32_t, 32> x;
    for (auto& value : x) value = static_cast<std::uint32_t>(rng());
    const std::uint32_t mask = static_cast<std::uint32_t>(rng()) | 1u << (run % 32);
    std::vector<std::uint32_t> in;
    for (int i = 0; i < 32; ++i) {
      if (mask >> i & 1) in.push_back(x[i]);
    }
    std::uint32_t sum = 0, all = ~0u, some = 0, parity = 0;
    for (const std::uint32_t v : in) sum += v, all &= v, some |= v, parity ^= v;
    EXPECT_EQ(redux_int(ReduxOp::kAdd, false, x, mask), sum);
    EXPECT_EQ(redux_int(ReduxOp::kAdd, true, x, mask), sum);
    EXPECT_EQ(redux_int(ReduxOp::kAnd, false, x, mask), all);
    EXPECT_EQ(redux_int(ReduxOp::kOr, false, x, mask), some);
    EXPECT_EQ(redux_int(ReduxOp::kXor, false, x, mask), parity);
    EXPECT_EQ(redux_int(ReduxOp::kMin, false, x, mask), *std::ranges::min_element(in));
    EXPECT_EQ(redux_int(ReduxOp::kMax, false, x, mask), *std::ranges::max_element(in));
    const auto signed_less = [](std::uint32_t a, std::uint32_t b) {
      return static_cast<std::int32_t>(a) < static_cast<std::int32_t>(b);
    };
    EXPECT_EQ(redux_int(ReduxOp::kMin, true, x, mask), *std::ranges::min_element(in, signed_less));
    EXPECT_EQ(redux_int(ReduxOp::kMax, true, x, mask), *std::ranges::max_element(in, signed_less));
  }
}

TEST(Redux, Floats) {
  std::array<std::uint32_t, 32> x;
  x.fill(mx::float_bits(-3.0f));
  x[4] = mx::float_bits(-7.0f);
  x[5] = mx::float_bits(2.0f);
  EXPECT_EQ(redux_f32(true, false, false, x, ~0u), mx::float_bits(2.0f));
  EXPECT_EQ(redux_f32(true, true, false, x, ~0u), mx::float_bits(7.0f));
  EXPECT_EQ(redux_f32(false, false, false, x, ~0u), mx::float_bits(-7.0f));
  EXPECT_EQ(redux_f32(true, false, false, x, ~0x20u), mx::float_bits(-3.0f)) << "lane 5 is out";
  x[0] = mx::float_bits(NAN);
  EXPECT_EQ(redux_f32(true, false, false, x, ~0u), mx::float_bits(2.0f));
  EXPECT_EQ(redux_f32(true, false, true, x, ~0u), 0x7FFFFFFFu);
  EXPECT_EQ(redux_f32(true, false, false, x, 1u), 0x7FFFFFFFu) << "nothing but NaN";
  x.fill(0x80000000u);
  x[9] = 0;
  EXPECT_EQ(redux_f32(true, false, false, x, ~0u), 0u) << "+0 > -0";
  EXPECT_EQ(redux_f32(false, false, false, x, ~0u), 0x80000000u);
}

}  // namespace
}  // namespace mxfa::emu::model
