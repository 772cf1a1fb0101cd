#include <bit>

#include "op_harness.h"

/// Integer instructions against formulas in wide integers.
namespace mxfa::emu::test {
namespace {

__extension__ using I128 = __int128;
__extension__ using U128 = unsigned __int128;

/// Modulo 2^128.
template <class T>
U128 product(T a, T b) {
  return static_cast<U128>(a) * static_cast<U128>(b);
}

template <class T>
std::string type_name() {
  return fmt::format("{}{}", std::is_signed_v<T> ? "s" : "u", sizeof(T) * 8);
}

template <class T>
class IntegerOps : public testing::Test {};
using Integers = testing::Types<std::uint16_t, std::int16_t, std::uint32_t, std::int32_t,
                                std::uint64_t, std::int64_t>;
TYPED_TEST_SUITE(IntegerOps, Integers);

TYPED_TEST(IntegerOps, Arithmetic) {
  using T = TypeParam;
  const std::string t = type_name<T>();
  constexpr int kBits = sizeof(T) * 8;
  const auto cut = [](I128 v) { return static_cast<T>(static_cast<std::uint64_t>(v)); };
  expect_binary<T, T, T>("add." + t, [&](T a, T b) { return cut(I128{a} + b); });
  expect_binary<T, T, T>("sub." + t, [&](T a, T b) { return cut(I128{a} - b); });
  expect_binary<T, T, T>("mul.lo." + t,
                         [&](T a, T b) { return cut(static_cast<I128>(product(a, b))); });
  expect_binary<T, T, T>("mul.hi." + t, [&](T a, T b) {
    if constexpr (std::is_signed_v<T> || kBits < 64)
      return cut(static_cast<I128>(product(a, b)) >> kBits);
    return static_cast<T>(product(a, b) >> 64);
  });
  expect_binary<T, T, T>("min." + t, [](T a, T b) { return std::min(a, b); });
  expect_binary<T, T, T>("max." + t, [](T a, T b) { return std::max(a, b); });
  expect_ternary<T, T, T, T>(
      "mad.lo." + t, [&](T a, T b, T c) { return cut(static_cast<I128>(product(a, b)) + c); });
  expect_ternary<T, T, T, T>("sad." + t, [&](T a, T b, T c) {
    return cut(I128{c} + (a > b ? I128{a} - b : I128{b} - a));
  });
}

TYPED_TEST(IntegerOps, Division) {
  using T = TypeParam;
  const std::string t = type_name<T>();
  const auto cut = [](I128 v) { return static_cast<T>(static_cast<std::uint64_t>(v)); };
  expect_binary<T, T, T>("div." + t, [&](T a, T b) { return b == 0 ? cut(-1) : cut(I128{a} / b); });
  expect_binary<T, T, T>("rem." + t, [&](T a, T b) { return b == 0 ? a : cut(I128{a} % b); });
}

TYPED_TEST(IntegerOps, ShiftRight) {
  using T = TypeParam;
  expect_binary<T, T, std::uint32_t>("shr." + type_name<T>(), [](T a, std::uint32_t n) {
    return static_cast<T>(I128{a} >> std::min(n, 100u));
  });
}

TYPED_TEST(IntegerOps, Comparisons) {
  using T = TypeParam;
  const auto check = [](const std::string& op, auto f) {
    const auto pairs = corner_pairs<T, T>();
    const auto& a = pairs.first;
    const auto& b = pairs.second;
    const auto got = run_op<std::uint32_t, T, T>(
        fmt::format("setp.{}.{} p, a, b; selp.u32 d, 1, 0, p;", op, type_name<T>()), a, b);
    for (std::size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(got[i], f(a[i], b[i]) ? 1u : 0u) << op << " " << show(a[i]) << " " << show(b[i]);
    }
  };
  check("eq", [](T a, T b) { return a == b; });
  check("ne", [](T a, T b) { return a != b; });
  check("lt", [](T a, T b) { return a < b; });
  check("le", [](T a, T b) { return a <= b; });
  check("gt", [](T a, T b) { return a > b; });
  check("ge", [](T a, T b) { return a >= b; });
}

using U32 = std::uint32_t;
using U64 = std::uint64_t;
using I32 = std::int32_t;
using I64 = std::int64_t;

TEST(BitOps, WideProducts) {
  expect_binary<U64, U32, U32>("mul.wide.u32", [](U32 a, U32 b) { return U64{a} * b; });
  expect_binary<I64, I32, I32>("mul.wide.s32", [](I32 a, I32 b) { return I64{a} * b; });
  expect_ternary<U64, U32, U32, U64>("mad.wide.u32",
                                     [](U32 a, U32 b, U64 c) { return U64{a} * b + c; });
}

TEST(BitOps, Logic) {
  expect_binary<U32, U32, U32>("and.b32", [](U32 a, U32 b) { return a & b; });
  expect_binary<U64, U64, U64>("or.b64", [](U64 a, U64 b) { return a | b; });
  expect_binary<U32, U32, U32>("xor.b32", [](U32 a, U32 b) { return a ^ b; });
  expect_unary<U64, U64>("not.b64", [](U64 a) { return ~a; });
  expect_unary<U32, U32>("cnot.b32", [](U32 a) { return a == 0 ? 1u : 0u; });
  expect_binary<U64, U64, U32>("shl.b64", [](U64 a, U32 n) { return n > 63 ? 0 : a << n; });
  for (const U32 lut : {0x96u, 0xE8u, 0xC0u, 0x3Fu, 0x01u}) {
    const auto pairs = corner_pairs<U32, U32>();
    const auto& a = pairs.first;
    const auto& b = pairs.second;
    std::vector<U32> c(a.rbegin(), a.rend());
    const auto got =
        run_op<U32, U32, U32, U32>(fmt::format("lop3.b32 d, a, b, c, {};", lut), a, b, c);
    for (std::size_t i = 0; i < a.size(); ++i) {
      U32 want = 0;
      for (int bit = 0; bit < 32; ++bit) {
        const U32 index =
            ((a[i] >> bit) & 1u) << 2 | ((b[i] >> bit) & 1u) << 1 | ((c[i] >> bit) & 1u);
        want |= ((lut >> index) & 1u) << bit;
      }
      ASSERT_EQ(got[i], want) << "lut " << lut;
    }
  }
}

TEST(BitOps, Counting) {
  expect_unary<U32, U32>("popc.b32", [](U32 a) { return static_cast<U32>(std::popcount(a)); });
  expect_unary<U32, U64>("popc.b64", [](U64 a) { return static_cast<U32>(std::popcount(a)); });
  expect_unary<U32, U32>("clz.b32", [](U32 a) { return static_cast<U32>(std::countl_zero(a)); });
  expect_unary<U32, U64>("clz.b64", [](U64 a) { return static_cast<U32>(std::countl_zero(a)); });
  expect_unary<U32, U32>("brev.b32", [](U32 a) {
    U32 r = 0;
    for (int i = 0; i < 32; ++i) r |= ((a >> i) & 1u) << (31 - i);
    return r;
  });
  const auto find = [](I64 a) {
    for (int bit = 63; bit >= 0; --bit) {
      if (((a >> bit) & 1) != (a < 0 ? 1 : 0)) return static_cast<U32>(bit);
    }
    return ~0u;
  };
  expect_unary<U32, U32>("bfind.u32", [&](U32 a) { return find(I64{a}); });
  expect_unary<U32, I32>("bfind.s32", [&](I32 a) { return find(I64{a}); });
  expect_unary<U32, I64>("bfind.s64", find);
  expect_unary<U32, U32>("bfind.shiftamt.u32",
                         [&](U32 a) { return a == 0 ? ~0u : 31 - find(I64{a}); });
}

// The loops of the ISA's pseudocode.
template <class T>
T extract(T a, U32 b, U32 c) {
  const int msb = sizeof(T) * 8 - 1;
  const int pos = static_cast<int>(b & 255u);
  const int len = static_cast<int>(c & 255u);
  const bool sign =
      std::is_signed_v<T> && len != 0 && ((a >> std::min(pos + len - 1, msb)) & 1) != 0;
  U64 d = 0;
  for (int i = 0; i <= msb; ++i) {
    const bool bit = i < len && pos + i <= msb ? ((a >> (pos + i)) & 1) != 0 : sign;
    d |= static_cast<U64>(bit) << i;
  }
  return static_cast<T>(d);
}

TEST(BitOps, Fields) {
  expect_ternary<U32, U32, U32, U32>("bfe.u32", extract<U32>);
  expect_ternary<I32, I32, U32, U32>("bfe.s32", extract<I32>);
  expect_ternary<U64, U64, U32, U32>("bfe.u64", extract<U64>);
  expect_ternary<I64, I64, U32, U32>("bfe.s64", extract<I64>);
  const auto pairs = corner_pairs<U32, U32>();
  const auto& a = pairs.first;
  const auto& pos = pairs.second;
  for (const U32 len : {0u, 1u, 7u, 32u, 40u}) {
    const auto got =
        run_op<U32, U32, U32>(fmt::format("bfi.b32 d, a, 0x12345678, b, {};", len), a, pos);
    for (std::size_t i = 0; i < a.size(); ++i) {
      U32 want = 0x12345678u;
      const U32 p = pos[i] & 255u;
      for (U32 k = 0; k < len && p + k < 32; ++k) {
        want = (want & ~(1u << (p + k))) | ((a[i] >> k) & 1u) << (p + k);
      }
      ASSERT_EQ(got[i], want) << show(a[i]) << " at " << p << " length " << len;
    }
  }
}

TEST(BitOps, FunnelShiftsAndBytes) {
  const auto wide = [](U32 a, U32 b) { return U64{b} << 32 | a; };
  expect_ternary<U32, U32, U32, U32>("shf.l.wrap.b32", [&](U32 a, U32 b, U32 n) {
    return static_cast<U32>((wide(a, b) << (n % 32)) >> 32);
  });
  expect_ternary<U32, U32, U32, U32>("shf.l.clamp.b32", [&](U32 a, U32 b, U32 n) {
    return n >= 32 ? a : static_cast<U32>((wide(a, b) << n) >> 32);
  });
  expect_ternary<U32, U32, U32, U32>("shf.r.wrap.b32", [&](U32 a, U32 b, U32 n) {
    return static_cast<U32>(wide(a, b) >> (n % 32));
  });
  expect_ternary<U32, U32, U32, U32>("shf.r.clamp.b32", [&](U32 a, U32 b, U32 n) {
    return n >= 32 ? b : static_cast<U32>(wide(a, b) >> n);
  });
  expect_ternary<U32, U32, U32, U32>("prmt.b32", [&](U32 a, U32 b, U32 c) {
    U32 r = 0;
    for (int i = 0; i < 4; ++i) {
      const U32 nibble = (c >> (4 * i)) & 15u;
      U32 byte = static_cast<U32>(wide(a, b) >> (8 * (nibble % 8))) & 255u;
      if (nibble >= 8) byte = byte >= 128 ? 255u : 0u;
      r |= byte << (8 * i);
    }
    return r;
  });
}

TEST(BitOps, CarryChains) {
  // 128-bit sums and products from 32-bit pieces, as compilers write them.
  const auto a = corner_pairs<U64, U64>().first;
  const auto b = corner_pairs<U64, U64>().second;
  const std::string split =
      "{ .reg .b32 a0, a1, b0, b1, r0, r1; mov.b64 {a0, a1}, a; mov.b64 {b0, b1}, b; ";
  const auto sum = run_op<U64, U64, U64>(
      split + "add.cc.u32 r0, a0, b0; addc.u32 r1, a1, b1; mov.b64 d, {r0, r1}; }", a, b);
  const auto difference = run_op<U64, U64, U64>(
      split + "sub.cc.u32 r0, a0, b0; subc.u32 r1, a1, b1; mov.b64 d, {r0, r1}; }", a, b);
  const auto product = run_op<U64, U64, U64>(
      split +
          "mul.lo.u32 r0, a0, b0; mul.hi.u32 r1, a0, b0; mad.lo.u32 r1, a0, b1, r1; "
          "mad.lo.u32 r1, a1, b0, r1; mov.b64 d, {r0, r1}; }",
      a, b);
  const auto carried = run_op<U64, U64, U64>(
      split + "mad.lo.cc.u32 r0, a0, b0, a1; madc.hi.u32 r1, a0, b0, 0; mov.b64 d, {r0, r1}; }", a,
      b);
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(sum[i], a[i] + b[i]) << i;
    ASSERT_EQ(difference[i], a[i] - b[i]) << i;
    ASSERT_EQ(product[i], a[i] * b[i]) << i;
    ASSERT_EQ(carried[i], (a[i] & 0xFFFFFFFFu) * (b[i] & 0xFFFFFFFFu) + (a[i] >> 32)) << i;
  }
}

TEST(BitOps, Packed) {
  expect_binary<U32, U32, U32>("add.u16x2", [](U32 a, U32 b) {
    return ((a + b) & 0xFFFFu) | ((((a >> 16) + (b >> 16)) & 0xFFFFu) << 16);
  });
  expect_binary<U32, U32, U32>("max.s16x2", [](U32 a, U32 b) {
    const auto most = [](U32 x, U32 y) {
      return static_cast<U32>(static_cast<std::uint16_t>(
          std::max(static_cast<std::int16_t>(x), static_cast<std::int16_t>(y))));
    };
    return most(a, b) | most(a >> 16, b >> 16) << 16;
  });
  expect_ternary<I32, U32, U32, I32>("dp4a.s32.s32", [](U32 a, U32 b, I32 c) {
    I64 sum = c;
    for (int i = 0; i < 4; ++i) {
      sum += I64{static_cast<std::int8_t>(a >> (8 * i))} * static_cast<std::int8_t>(b >> (8 * i));
    }
    return static_cast<I32>(sum);
  });
}

}  // namespace
}  // namespace mxfa::emu::test
