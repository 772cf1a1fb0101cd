#include "model/reduction.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>

#include "expect_fault.h"
#include "mx/bits.h"

namespace mxfa::emu::model {
namespace {

template <class T>
T reduce(ReduceOp op, ReduceType type, T old, T value) {
  std::array<std::byte, sizeof(T)> a, b;
  std::memcpy(a.data(), &old, sizeof(T));
  std::memcpy(b.data(), &value, sizeof(T));
  reduce_elements(op, type, a, b);
  std::memcpy(&old, a.data(), sizeof(T));
  return old;
}

/// Nearest code of a 16-bit format to an exact double, ties to the even code, by search.
template <class Decode>
std::uint16_t nearest(double value, Decode decode, std::uint16_t infinity) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  std::uint16_t low = 0, high = infinity;  // finite codes order like their values
  while (high - low > 1) {
    const std::uint16_t middle = static_cast<std::uint16_t>((low + high) / 2);
    (static_cast<double>(decode(middle)) <= magnitude ? low : high) = middle;
  }
  const double below = decode(low);
  const double above = high == infinity ? 2.0 * below - static_cast<double>(decode(low - 1))
                                        : static_cast<double>(decode(high));
  const double up = above - magnitude, down = magnitude - below;
  const bool take_high = up < down || (up == down && (high & 1) == 0);
  return static_cast<std::uint16_t>(sign | (take_high ? high : low));
}

TEST(Reduction, HalfAddsRoundOnceAndKeepSubnormals) {
  std::mt19937 rng(3);
  for (int i = 0; i < 20000; ++i) {
    const std::uint16_t a = static_cast<std::uint16_t>(rng()),
                        b = static_cast<std::uint16_t>(rng());
    const double f16 = static_cast<double>(mx::decode_f16(a)) + mx::decode_f16(b);
    if (std::isfinite(f16) && std::isfinite(mx::decode_f16(a)) && f16 != 0) {
      EXPECT_EQ(reduce(ReduceOp::kAdd, ReduceType::kF16, a, b),
                nearest(f16, mx::decode_f16, 0x7C00))
          << a << " + " << b;
    }
    const double bf16 = static_cast<double>(mx::decode_bf16(a)) + mx::decode_bf16(b);
    // Beyond 53 bits apart the double sum is rounded itself; the larger operand is the answer.
    if (std::isfinite(bf16) && bf16 != 0) {
      EXPECT_EQ(reduce(ReduceOp::kAdd, ReduceType::kBF16, a, b),
                nearest(bf16, mx::decode_bf16, 0x7F80))
          << a << " + " << b;
    }
  }
  EXPECT_EQ(reduce<std::uint16_t>(ReduceOp::kAdd, ReduceType::kF16, 0x0001, 0x0001), 0x0002);
  EXPECT_EQ(reduce<std::uint16_t>(ReduceOp::kAdd, ReduceType::kF16, 0x7BFF, 0x7BFF), 0x7C00)
      << "65504 + 65504 overflows to infinity";
  EXPECT_EQ(reduce<std::uint16_t>(ReduceOp::kAdd, ReduceType::kF16, 0x7C00, 0xFC00), 0x7FFF);
}

TEST(Reduction, FloatAddKeepsSubnormals) {
  const auto add = [](std::uint32_t a, std::uint32_t b) {
    return reduce(ReduceOp::kAdd, ReduceType::kF32, a, b);
  };
  // Recorded on an H200.
  EXPECT_EQ(add(0x006BD277, 0x00286352), 0x009435C9u);
  EXPECT_EQ(add(0x804C360B, 0x00B6FEEF), 0x006AC8E4u);
  EXPECT_EQ(add(0x801FAD0A, 0x00128EE5), 0x800D1E25u);
  EXPECT_EQ(add(0x7F800000, 0xFF800000), 0x7FFFFFFFu);
}

TEST(Reduction, FlushingFloatAdd) {
  const auto add = [](std::uint32_t a, std::uint32_t b) {
    return reduce(ReduceOp::kAdd, ReduceType::kF32Ftz, a, b);
  };
  EXPECT_EQ(add(0x00000001, 0x3F800000), 0x3F800000u);
  EXPECT_EQ(add(0x007FFFFF, 0x00000000), 0x00000000u) << "subnormal input";
  EXPECT_EQ(add(0x807FFFFF, 0x80000000), 0x80000000u) << "sign preserved";
  EXPECT_EQ(add(0x00800001, 0x80800000), 0x00000000u) << "subnormal result";
  EXPECT_EQ(add(0x80800001, 0x00800000), 0x80000000u) << "subnormal result, negative";
  EXPECT_EQ(add(0x3F800000, 0x33800000), 0x3F800000u) << "tie to even";
  EXPECT_EQ(add(0x3F800001, 0x33800000), 0x3F800002u) << "tie to even";
  EXPECT_EQ(add(0x7F800000, 0xFF800000), 0x7FFFFFFFu);
  EXPECT_EQ(add(0x7F7FFFFF, 0x7F7FFFFF), 0x7F800000u);
}

TEST(Reduction, Integers) {
  using U = std::uint32_t;
  using S = std::int32_t;
  EXPECT_EQ(reduce<U>(ReduceOp::kAdd, ReduceType::kU32, 0xFFFFFFFF, 2), 1u);
  EXPECT_EQ(reduce<S>(ReduceOp::kAdd, ReduceType::kS32, 0x7FFFFFFF, 1), INT32_MIN);
  EXPECT_EQ(reduce<U>(ReduceOp::kMax, ReduceType::kU32, 0x80000000, 1), 0x80000000u);
  EXPECT_EQ(reduce<S>(ReduceOp::kMax, ReduceType::kS32, INT32_MIN, 1), 1);
  EXPECT_EQ(reduce<S>(ReduceOp::kMin, ReduceType::kS32, INT32_MIN, 1), INT32_MIN);
  EXPECT_EQ(reduce<U>(ReduceOp::kInc, ReduceType::kU32, 4, 5), 5u);
  EXPECT_EQ(reduce<U>(ReduceOp::kInc, ReduceType::kU32, 5, 5), 0u);
  EXPECT_EQ(reduce<U>(ReduceOp::kInc, ReduceType::kU32, 9, 5), 0u);
  EXPECT_EQ(reduce<U>(ReduceOp::kDec, ReduceType::kU32, 0, 5), 5u);
  EXPECT_EQ(reduce<U>(ReduceOp::kDec, ReduceType::kU32, 6, 5), 5u);
  EXPECT_EQ(reduce<U>(ReduceOp::kDec, ReduceType::kU32, 5, 5), 4u);
  EXPECT_EQ(reduce<U>(ReduceOp::kAnd, ReduceType::kB32, 0xF0F0, 0xFF00), 0xF000u);
  EXPECT_EQ(reduce<U>(ReduceOp::kOr, ReduceType::kB32, 0xF0F0, 0xFF00), 0xFFF0u);
  EXPECT_EQ(reduce<std::uint64_t>(ReduceOp::kXor, ReduceType::kB64, ~std::uint64_t{0}, 1),
            ~std::uint64_t{1});
  EXPECT_EQ(reduce<std::uint64_t>(ReduceOp::kAdd, ReduceType::kU64, 0xFFFFFFFF, 1),
            std::uint64_t{1} << 32);
  EXPECT_EQ(reduce<std::int64_t>(ReduceOp::kMin, ReduceType::kS64, -5, 3), -5);
}

TEST(Reduction, HalfMinMax) {
  using H = std::uint16_t;
  EXPECT_EQ(reduce<H>(ReduceOp::kMin, ReduceType::kF16, 0x3C00, 0xBC00), 0xBC00);
  EXPECT_EQ(reduce<H>(ReduceOp::kMax, ReduceType::kF16, 0x3C00, 0xBC00), 0x3C00);
  EXPECT_EQ(reduce<H>(ReduceOp::kMax, ReduceType::kBF16, 0x0000, 0x8000), 0x0000);
  EXPECT_EQ(reduce<H>(ReduceOp::kMin, ReduceType::kBF16, 0x0000, 0x8000), 0x8000);
  EXPECT_EQ(reduce<H>(ReduceOp::kMax, ReduceType::kF16, 0x7E00, 0x3C00), 0x3C00);
  EXPECT_EQ(reduce<H>(ReduceOp::kMax, ReduceType::kF16, 0x7E00, 0xFE00), 0x7FFF);
}

TEST(Reduction, TableOfTheIsa) {
  // Rows: op; columns: u32 s32 u64 s64 b32 b64 f16 bf16 f32 f64 f32.ftz. 1 valid, 0 not.
  const struct {
    ReduceTarget target;
    ReduceOp op;
    const char* row;
  } table[] = {
      {ReduceTarget::kGlobal, ReduceOp::kAdd, "11100011110"},
      {ReduceTarget::kGlobal, ReduceOp::kMin, "11110011000"},
      {ReduceTarget::kGlobal, ReduceOp::kMax, "11110011000"},
      {ReduceTarget::kGlobal, ReduceOp::kInc, "10000000000"},
      {ReduceTarget::kGlobal, ReduceOp::kDec, "10000000000"},
      {ReduceTarget::kGlobal, ReduceOp::kAnd, "00001100000"},
      {ReduceTarget::kGlobal, ReduceOp::kOr, "00001100000"},
      {ReduceTarget::kGlobal, ReduceOp::kXor, "00001100000"},
      {ReduceTarget::kTensor, ReduceOp::kAdd, "11100011101"},
      {ReduceTarget::kTensor, ReduceOp::kMin, "11110011000"},
      {ReduceTarget::kTensor, ReduceOp::kInc, "10000000000"},
      {ReduceTarget::kTensor, ReduceOp::kXor, "00001100000"},
      {ReduceTarget::kSharedCluster, ReduceOp::kAdd, "11100000000"},
      {ReduceTarget::kSharedCluster, ReduceOp::kMax, "11000000000"},
      {ReduceTarget::kSharedCluster, ReduceOp::kDec, "10000000000"},
      {ReduceTarget::kSharedCluster, ReduceOp::kAnd, "00001000000"},
  };
  for (const auto& entry : table) {
    for (int type = 0; type < 11; ++type) {
      const bool ok = message_of([&] {
                        check_reduction(entry.target, entry.op, static_cast<ReduceType>(type));
                      }) == "no error";
      EXPECT_EQ(ok, entry.row[type] == '1')
          << "target " << static_cast<int>(entry.target) << " op " << reduce_op_name(entry.op)
          << " type " << reduce_type_name(static_cast<ReduceType>(type));
    }
  }
}

TEST(Reduction, TensorElementTypes) {
  EXPECT_EQ(reduce_type_of(TensorType::kU32, ReduceOp::kAdd), ReduceType::kU32);
  EXPECT_EQ(reduce_type_of(TensorType::kS32, ReduceOp::kXor), ReduceType::kB32);
  EXPECT_EQ(reduce_type_of(TensorType::kS64, ReduceOp::kOr), ReduceType::kB64);
  EXPECT_EQ(reduce_type_of(TensorType::kBF16, ReduceOp::kAdd), ReduceType::kBF16);
  EXPECT_EQ(reduce_type_of(TensorType::kF32Ftz, ReduceOp::kAdd), ReduceType::kF32Ftz);
  expect_fault([] { reduce_type_of(TensorType::kU8, ReduceOp::kAdd); }, "got UINT8");
}

}  // namespace
}  // namespace mxfa::emu::model
