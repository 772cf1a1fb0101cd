#pragma once

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "support.h"

/// Runs one instruction on vectors of operands, one thread an element.
namespace mxfa::emu::test {

template <class T>
constexpr int bits_of_type() {
  return std::max(16, static_cast<int>(sizeof(T)) * 8);
}

/// `instruction` uses the registers d, a, b, c, e.g. "add.s32 d, a, b;". R, A, B, C are of 1 to 8
/// bytes; what is not used is a std::uint32_t.
template <class R, class A, class B = std::uint32_t, class C = std::uint32_t>
std::vector<R> run_op(const std::string& instruction, const std::vector<A>& a,
                      const std::vector<B>& b = {}, const std::vector<C>& c = {}) {
  const std::size_t n = a.size();
  const auto fit = [&](auto values) {
    values.resize(n);
    return values;
  };
  const std::string ptx = fmt::format(
      R"(.version 9.0
.target sm_100a
.address_size 64
.visible .entry op(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd, .param .u32 n)
{{
  .reg .b64 base, offset, at;
  .reg .b32 i, block, size, count;
  .reg .pred past, p, q;
  .reg .b{0} d;
  .reg .b{1} a;
  .reg .b{2} b;
  .reg .b{3} c;
  mov.u32 i, %tid.x;
  mov.u32 block, %ctaid.x;
  mov.u32 size, %ntid.x;
  mad.lo.u32 i, block, size, i;
  ld.param.u32 count, [n];
  setp.ge.u32 past, i, count;
  @past bra END;
  ld.param.u64 base, [pa];
  mul.wide.u32 offset, i, {5};
  add.u64 at, base, offset;
  ld.global.b{9} a, [at];
  ld.param.u64 base, [pb];
  mul.wide.u32 offset, i, {6};
  add.u64 at, base, offset;
  ld.global.b{10} b, [at];
  ld.param.u64 base, [pc];
  mul.wide.u32 offset, i, {7};
  add.u64 at, base, offset;
  ld.global.b{11} c, [at];
  {4}
  ld.param.u64 base, [pd];
  mul.wide.u32 offset, i, {8};
  add.u64 at, base, offset;
  st.global.b{12} [at], d;
END:
  ret;
}}
)",
      bits_of_type<R>(), bits_of_type<A>(), bits_of_type<B>(), bits_of_type<C>(), instruction,
      sizeof(A), sizeof(B), sizeof(C), sizeof(R), sizeof(A) * 8, sizeof(B) * 8, sizeof(C) * 8,
      sizeof(R) * 8);
  GlobalMemory memory;
  const Module module(ptx, instruction, memory);
  const Buffer<A> da(memory, a, "a");
  const Buffer<B> db(memory, fit(b), "b");
  const Buffer<C> dc(memory, fit(c), "c");
  const Buffer<R> dd(memory, n, "d");
  module.launch("op", {{static_cast<std::uint32_t>((n + 127) / 128), 1, 1}, {128, 1, 1}, {}, 0},
                Arguments().add(da.data()).add(db.data()).add(dc.data()).add(dd.data()).add(
                    static_cast<std::uint32_t>(n)));
  return {dd.data(), dd.data() + n};
}

/// Values at the edges of a type, and random bits.
template <class T>
std::vector<T> corners() {
  std::vector<T> values;
  std::mt19937_64 rng(3);
  if constexpr (std::is_floating_point_v<T>) {
    using L = std::numeric_limits<T>;
    for (const T v :
         {T{0}, L::denorm_min(), L::min(), L::min() / 2, T{1}, T{1} + L::epsilon(), T{0.5}, T{1.5},
          T{2}, T{3}, T{1e-5}, T{1e9}, L::max(), L::infinity(), L::quiet_NaN()}) {
      values.push_back(v);
      values.push_back(-v);
    }
    for (int i = 0; i < 14; ++i) {
      using U = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
      values.push_back(std::bit_cast<T>(static_cast<U>(rng())));
    }
  } else {
    using L = std::numeric_limits<T>;
    for (int i = 0; i < 5; ++i) values.push_back(static_cast<T>(i));
    for (int i = 0; i < 4; ++i) values.push_back(static_cast<T>(L::max() - i));
    for (int i = 0; i < 3; ++i) values.push_back(static_cast<T>(L::min() + i));
    for (const int i : {-1, 31, 32, 33, 63, 64, 255, 256, 0x5555}) {
      values.push_back(static_cast<T>(i));
    }
    for (int i = 0; i < 14; ++i) values.push_back(static_cast<T>(rng() >> (rng() % 40)));
  }
  return values;
}

/// All pairs of corners, as two vectors.
template <class A, class B>
std::pair<std::vector<A>, std::vector<B>> corner_pairs() {
  std::pair<std::vector<A>, std::vector<B>> pairs;
  for (const A a : corners<A>()) {
    for (const B b : corners<B>()) {
      pairs.first.push_back(a);
      pairs.second.push_back(b);
    }
  }
  return pairs;
}

template <class T>
std::string show(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    using U = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
    return fmt::format("{} (0x{:x})", value, std::bit_cast<U>(value));
  } else {
    return fmt::format("{0} (0x{0:x})", +value);
  }
}

/// Equal bits; NaNs are equal to each other.
template <class T>
bool same(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) && std::isnan(b)) return true;
  }
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

/// Compares d = f(a, b) over all pairs of corners.
template <class R, class A, class B, class F>
void expect_binary(const std::string& opcode, F f) {
  const auto pairs = corner_pairs<A, B>();
  const auto& a = pairs.first;
  const auto& b = pairs.second;
  const std::vector<R> got = run_op<R, A, B>(opcode + " d, a, b;", a, b);
  for (std::size_t i = 0; i < a.size(); ++i) {
    const R want = f(a[i], b[i]);
    ASSERT_TRUE(same(got[i], want)) << opcode << " of " << show(a[i]) << " and " << show(b[i])
                                    << ": got " << show(got[i]) << ", want " << show(want);
  }
}

template <class R, class A, class F>
void expect_unary(const std::string& opcode, F f) {
  const std::vector<A> a = corners<A>();
  const std::vector<R> got = run_op<R, A>(opcode + " d, a;", a);
  for (std::size_t i = 0; i < a.size(); ++i) {
    const R want = f(a[i]);
    ASSERT_TRUE(same(got[i], want))
        << opcode << " of " << show(a[i]) << ": got " << show(got[i]) << ", want " << show(want);
  }
}

/// Compares d = f(a, b, c) over pairs of corners, with the third operand from a rotation.
template <class R, class A, class B, class C, class F>
void expect_ternary(const std::string& opcode, F f) {
  const auto pairs = corner_pairs<A, B>();
  const auto& a = pairs.first;
  const auto& b = pairs.second;
  const std::vector<C> pool = corners<C>();
  std::vector<C> c(a.size());
  for (std::size_t i = 0; i < c.size(); ++i) c[i] = pool[(i * 7 + i / 31) % pool.size()];
  const std::vector<R> got = run_op<R, A, B, C>(opcode + " d, a, b, c;", a, b, c);
  for (std::size_t i = 0; i < a.size(); ++i) {
    const R want = f(a[i], b[i], c[i]);
    ASSERT_TRUE(same(got[i], want))
        << opcode << " of " << show(a[i]) << ", " << show(b[i]) << ", " << show(c[i]) << ": got "
        << show(got[i]) << ", want " << show(want);
  }
}

}  // namespace mxfa::emu::test
