#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <type_traits>

#include "exec/lanes/sink.h"

/// Loops over the 32 lanes of a warp. Rows are either the same memory or disjoint, hence ivdep.
/// Partial masks compute all lanes into a buffer and blend: no lane function traps.
namespace mxfa::emu::exec::MXEMU_ISA {
namespace {

using ir::Inst;

// Rows are reused for values of any type, so accesses may alias.
using Row32 [[gnu::may_alias]] = std::uint32_t;
using Row64 [[gnu::may_alias]] = std::uint64_t;
using RowF32 [[gnu::may_alias]] = float;
using RowF64 [[gnu::may_alias]] = double;

template <class T>
struct SlotOf;
template <>
struct SlotOf<std::uint8_t> {
  using Type = Row32;
};
template <>
struct SlotOf<std::int8_t> {
  using Type = Row32;
};
template <>
struct SlotOf<std::uint16_t> {
  using Type = Row32;
};
template <>
struct SlotOf<std::int16_t> {
  using Type = Row32;
};
template <>
struct SlotOf<std::uint32_t> {
  using Type = Row32;
};
template <>
struct SlotOf<std::int32_t> {
  using Type = Row32;
};
template <>
struct SlotOf<float> {
  using Type = RowF32;
};
template <>
struct SlotOf<std::uint64_t> {
  using Type = Row64;
};
template <>
struct SlotOf<std::int64_t> {
  using Type = Row64;
};
template <>
struct SlotOf<double> {
  using Type = RowF64;
};
template <class T>
using Slot = typename SlotOf<T>::Type;

/// 16-bit results leave the upper half of their 4-byte slot zero; nothing relies on it.
template <class T>
[[gnu::always_inline]] inline Slot<T> pack(T value) {
  if constexpr (sizeof(T) == 1) {
    return static_cast<Slot<T>>(static_cast<std::uint8_t>(value));
  } else if constexpr (sizeof(T) == 2) {
    return static_cast<Slot<T>>(static_cast<std::uint16_t>(value));
  } else {
    return static_cast<Slot<T>>(value);
  }
}

/// Tests with these bits become mask registers where the instruction set has them.
constexpr std::uint32_t kLaneBit[kLanes] = {
    1u << 0,  1u << 1,  1u << 2,  1u << 3,  1u << 4,  1u << 5,  1u << 6,  1u << 7,
    1u << 8,  1u << 9,  1u << 10, 1u << 11, 1u << 12, 1u << 13, 1u << 14, 1u << 15,
    1u << 16, 1u << 17, 1u << 18, 1u << 19, 1u << 20, 1u << 21, 1u << 22, 1u << 23,
    1u << 24, 1u << 25, 1u << 26, 1u << 27, 1u << 28, 1u << 29, 1u << 30, 1u << 31};

struct WideLaneBits {
  std::uint64_t bit[kLanes];
  constexpr WideLaneBits() : bit{} {
    for (int i = 0; i < kLanes; ++i) bit[i] = kLaneBit[i];
  }
  constexpr std::uint64_t operator[](int i) const { return bit[i]; }
};
constexpr WideLaneBits kWideLaneBit;

/// Is lane i on? By a test as wide as the row's slots.
template <class S>
[[gnu::always_inline]] inline bool is_on(std::uint32_t mask, int i) {
  if constexpr (sizeof(S) == 8) {
    return (mask & kWideLaneBit[i]) != 0;
  } else {
    return (mask & kLaneBit[i]) != 0;
  }
}

/// Stores whole rows: a load that follows a store of some lanes would have to wait for it, which
/// doubles the time of dependent instructions. Compilers would choose the latter.
template <class S>
[[gnu::always_inline]] inline void blend(S* __restrict to, const S* __restrict from,
                                         std::uint32_t mask) {
#if defined(__AVX512DQ__)
  constexpr int kStep = 64 / static_cast<int>(sizeof(S));
  for (int i = 0; i < kLanes; i += kStep) {
    const __m512i before = _mm512_load_si512(to + i);
    const __m512i after = _mm512_load_si512(from + i);
    const std::uint32_t part = mask >> i;
    __m512i both;
    if constexpr (sizeof(S) == 4) {
      both = _mm512_mask_mov_epi32(before, static_cast<__mmask16>(part), after);
    } else {
      both = _mm512_mask_mov_epi64(before, static_cast<__mmask8>(part), after);
    }
    __asm__("" : "+v"(both));  // or the two become a masked store
    _mm512_store_si512(to + i, both);
  }
#else
  for (int i = 0; i < kLanes; ++i) {
    const S before = to[i];
    const S after = from[i];
    to[i] = (mask & kLaneBit[i]) != 0 ? after : before;
  }
#endif
}

template <int... I>
struct Indices {};
template <int N, int... I>
struct MakeIndices : MakeIndices<N - 1, N - 1, I...> {};
template <int... I>
struct MakeIndices<0, I...> {
  using Type = Indices<I...>;
};

template <class Signature, class F>
struct Kernel;

/// d = F(a, b, ...) in each lane; op[0] is d.
template <class F, class R, class... A>
struct Kernel<R(A...), F> {
  template <class... P>
  [[gnu::always_inline]] static inline void loop(Slot<R>* d, const P*... p) {
    MXEMU_INDEPENDENT_LANES
    for (int i = 0; i < kLanes; ++i) d[i] = pack<R>(F{}(static_cast<A>(p[i])...));
  }
  /// As loop and blend, in one.
  template <class... P>
  [[gnu::always_inline]] static inline void masked_loop(Slot<R>* d, std::uint32_t mask,
                                                        const P*... p) {
    MXEMU_INDEPENDENT_LANES
    for (int i = 0; i < kLanes; ++i) {
      const Slot<R> before = d[i];
      const Slot<R> after = pack<R>(F{}(static_cast<A>(p[i])...));
      d[i] = is_on<Slot<R>>(mask, i) ? after : before;
    }
  }
  template <int... I>
  [[gnu::always_inline]] static inline void apply(Context& c, const Inst& in, std::uint32_t mask,
                                                  Indices<I...>) {
    auto* d = c.result_row<Slot<R>>(in.op[0]);
    if (mask == kFullMask) {
      loop(d, c.row<const Slot<A>>(in.op[I + 1])...);
    } else {
#if defined(__AVX512DQ__)
      alignas(64) Slot<R> result[kLanes];
      loop(result, c.row<const Slot<A>>(in.op[I + 1])...);
      blend(d, result, mask);
#else
      masked_loop(d, mask, c.row<const Slot<A>>(in.op[I + 1])...);
#endif
    }
  }
  [[gnu::flatten]] static void run(Context& c, const Inst& in, std::uint32_t mask) {
    apply(c, in, mask, typename MakeIndices<static_cast<int>(sizeof...(A))>::Type{});
  }
};

template <class Signature, class F>
constexpr ir::ExecFn lane(F) {
  return &Kernel<Signature, F>::run;
}

/// The sign bits of 32 numbers.
[[gnu::always_inline]] inline std::uint32_t sign_bits(const Row32* row) {
  std::uint32_t bits = 0;
#if defined(__AVX512DQ__)
  for (int i = 0; i < kLanes; i += 16) {
    bits |= std::uint32_t{_mm512_movepi32_mask(_mm512_load_si512(row + i))} << i;
  }
#elif defined(__AVX2__)
  for (int i = 0; i < kLanes; i += 8) {
    const __m256i part = _mm256_load_si256(reinterpret_cast<const __m256i*>(row + i));
    bits |= static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(part))) << i;
  }
#else
  for (int i = 0; i < kLanes; ++i) bits |= (row[i] >> 31) << i;
#endif
  return bits;
}

[[gnu::always_inline]] inline std::uint32_t combine(std::uint8_t how, std::uint32_t bits,
                                                    std::uint32_t with) {
  switch (how) {
    case 1:
      return bits & with;
    case 2:
      return bits | with;
    case 3:
      return bits ^ with;
    default:
      return bits;
  }
}

/// What is compared: 16-bit numbers as the upper halves of 32-bit ones, whose order is the same.
template <class T>
[[gnu::always_inline]] inline auto comparable(Slot<T> value) {
  if constexpr (sizeof(T) == 2) {
    using Wide = std::conditional_t<std::is_signed_v<T>, std::int32_t, std::uint32_t>;
    return static_cast<Wide>(value << 16);
  } else {
    return static_cast<T>(value);
  }
}

/// {p, q} = {F(a, b) op c, !F(a, b) op c}: p, q, a, b, c are op[0..4], a = 0 none, 1 and, 2 or,
/// 3 xor.
template <class T, class F>
struct Compare {
  [[gnu::flatten]] static void run(Context& c, const Inst& in, std::uint32_t mask) {
    const auto* x = c.row<const Slot<T>>(in.op[2]);
    const auto* y = c.row<const Slot<T>>(in.op[3]);
    alignas(64) Row32 result[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      result[i] = F{}(comparable<T>(x[i]), comparable<T>(y[i])) ? ~0u : 0u;
    }
    const std::uint32_t bits = sign_bits(result);
    if (in.a == 0 && in.op[1] == ir::kSinkPredicate) return c.set_pred(in.op[0], bits, mask);
    const std::uint32_t with = c.pred(in.op[4]);
    c.set_pred(in.op[0], combine(in.a, bits, with), mask);
    c.set_pred(in.op[1], combine(in.a, ~bits, with), mask);
  }
};

template <class T, class F>
constexpr ir::ExecFn compare(F) {
  return &Compare<T, F>::run;
}

}  // namespace
}  // namespace mxfa::emu::exec::MXEMU_ISA
