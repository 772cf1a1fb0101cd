#pragma once

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

template <class S>
[[gnu::always_inline]] inline void blend(S* __restrict to, const S* __restrict from,
                                         std::uint32_t mask) {
  for (int i = 0; i < kLanes; ++i) {
    if ((mask >> i) & 1u) to[i] = from[i];
  }
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
#if !defined(__clang__)  // whose own pragma would warn wherever a loop does not vectorize
#pragma GCC ivdep
#endif
    for (int i = 0; i < kLanes; ++i) d[i] = pack<R>(F{}(static_cast<A>(p[i])...));
  }
  template <int... I>
  [[gnu::always_inline]] static inline void apply(Context& c, const Inst& in, std::uint32_t mask,
                                                  Indices<I...>) {
    auto* d = c.row<Slot<R>>(in.op[0]);
    if (mask == kFullMask) {
      loop(d, c.row<const Slot<A>>(in.op[I + 1])...);
    } else {
      alignas(64) Slot<R> result[kLanes];
      loop(result, c.row<const Slot<A>>(in.op[I + 1])...);
      blend(d, result, mask);
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

/// One bit from each of 32 bytes that are 0 or 1.
[[gnu::always_inline]] inline std::uint32_t gather_bits(const std::uint8_t* bytes) {
  std::uint32_t bits = 0;
  for (int i = 0; i < 4; ++i) {
    std::uint64_t eight;
    __builtin_memcpy(&eight, bytes + 8 * i, 8);
    bits |= static_cast<std::uint32_t>((eight * 0x0102040810204080u) >> 56) << (8 * i);
  }
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

/// {p, q} = {F(a, b) op c, !F(a, b) op c}: p, q, a, b, c are op[0..4], a = 0 none, 1 and, 2 or,
/// 3 xor.
template <class T, class F>
struct Compare {
  [[gnu::flatten]] static void run(Context& c, const Inst& in, std::uint32_t mask) {
    const auto* x = c.row<const Slot<T>>(in.op[2]);
    const auto* y = c.row<const Slot<T>>(in.op[3]);
    alignas(64) std::uint8_t result[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      result[i] = F{}(static_cast<T>(x[i]), static_cast<T>(y[i])) ? 1 : 0;
    }
    const std::uint32_t bits = gather_bits(result);
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
