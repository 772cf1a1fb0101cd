#include "exec/lanes/lane.h"

/// Integer arithmetic, bit operations and selections. PTX ISA 9.0, sections 9.7.1, 9.7.2, 9.7.8.
namespace mxfa::emu::exec::MXEMU_ISA {
namespace {

using I8 = std::int8_t;
using U8 = std::uint8_t;
using I16 = std::int16_t;
using U16 = std::uint16_t;
using I32 = std::int32_t;
using U32 = std::uint32_t;
using I64 = std::int64_t;
using U64 = std::uint64_t;
__extension__ using I128 = __int128;
__extension__ using U128 = unsigned __int128;

template <class T>
struct Wide;
template <>
struct Wide<I16> {
  using Type = I32;
};
template <>
struct Wide<U16> {
  using Type = U32;
};
template <>
struct Wide<I32> {
  using Type = I64;
};
template <>
struct Wide<U32> {
  using Type = U64;
};
template <>
struct Wide<I64> {
  using Type = I128;
};
template <>
struct Wide<U64> {
  using Type = U128;
};
template <class T>
using WideOf = typename Wide<T>::Type;

template <class T>
constexpr bool kSigned = static_cast<T>(-1) < static_cast<T>(0);
template <class T>
constexpr int kBits = static_cast<int>(sizeof(T)) * 8;

// Arithmetic wraps: done in an unsigned type that is not promoted to int.
template <class T>
U64 wrap(T value) {
  return static_cast<U64>(value);
}

template <class T>
T high_product(T a, T b) {
  return static_cast<T>((WideOf<T>(a) * b) >> kBits<T>);
}

// x / 0 is all ones and x % 0 is x, as GPUs answer; the ISA leaves it open.
template <class T>
T quotient(T a, T b) {
  if constexpr (sizeof(T) <= 4) {
    // Exact: 53 bits hold every quotient of 32-bit integers to within less than 1 / b.
    const double d = static_cast<double>(a) / static_cast<double>(b == 0 ? T{1} : b);
    const auto q = static_cast<T>(static_cast<I64>(d));
    return b == 0 ? static_cast<T>(~U64{0}) : q;
  } else {
    if (b == 0) return static_cast<T>(~U64{0});
    if (kSigned<T> && b == static_cast<T>(-1)) return static_cast<T>(0 - wrap(a));
    return static_cast<T>(a / b);
  }
}
template <class T>
T remainder(T a, T b) {
  const T r = static_cast<T>(wrap(a) - wrap(quotient(a, b)) * wrap(b));
  return b == 0 ? a : r;
}

template <class T>
T saturate(I64 value) {
  return static_cast<T>(value > 2147483647        ? 2147483647
                        : value < -2147483647 - 1 ? -2147483647 - 1
                                                  : value);
}

template <class T>
U32 leading_zeros(T value) {
  if constexpr (sizeof(T) == 8) {
    return value == 0 ? 64 : static_cast<U32>(__builtin_clzll(static_cast<U64>(value)));
  } else {
    return value == 0 ? 32 : static_cast<U32>(__builtin_clz(static_cast<U32>(value)));
  }
}

// The most significant bit that differs from the sign; all ones where there is none.
template <class T, bool kShiftAmount>
U32 find_bit(T value) {
  using U = std::conditional_t<sizeof(T) == 8, U64, U32>;
  const U bits = kSigned<T> && value < 0 ? ~static_cast<U>(value) : static_cast<U>(value);
  const U32 zeros = leading_zeros(bits);
  if (bits == 0) return ~0u;
  return kShiftAmount ? zeros : static_cast<U32>(kBits<T>) - 1 - zeros;
}

inline U32 reverse32(U32 v) {
  v = ((v >> 1) & 0x55555555u) | ((v & 0x55555555u) << 1);
  v = ((v >> 2) & 0x33333333u) | ((v & 0x33333333u) << 2);
  v = ((v >> 4) & 0x0F0F0F0Fu) | ((v & 0x0F0F0F0Fu) << 4);
  return __builtin_bswap32(v);
}

// Position and length are taken modulo 256; what lies past the top bit is the sign (or zero).
template <class T>
T extract_field(T a, U32 position, U32 length) {
  using U = std::conditional_t<sizeof(T) == 8, U64, U32>;
  constexpr U32 kTop = static_cast<U32>(kBits<T>) - 1;
  const U32 pos = position & 255u;
  const U32 len = length & 255u;
  const U32 last = pos + len == 0 ? 0 : (pos + len - 1 > kTop ? kTop : pos + len - 1);
  const bool sign = kSigned<T> && len != 0 && ((static_cast<U>(a) >> last) & 1u) != 0;
  const U field = pos > kTop ? 0 : static_cast<U>(a) >> pos;
  const U32 kept = pos > kTop ? 0 : (len > kTop + 1 - pos ? kTop + 1 - pos : len);
  const U mask = kept > kTop ? ~U{0} : (U{1} << kept) - 1;
  return static_cast<T>(sign ? (field & mask) | ~mask : field & mask);
}

template <class T>
T insert_field(T a, T b, U32 position, U32 length) {
  constexpr U32 kWidth = static_cast<U32>(kBits<T>);
  const U32 pos = position & 255u;
  const U32 len = length & 255u;
  const T ones = len >= kWidth ? ~T{0} : static_cast<T>((T{1} << len) - 1);
  const T mask = pos >= kWidth ? T{0} : static_cast<T>(ones << pos);
  return static_cast<T>((b & ~mask) | ((pos >= kWidth ? T{0} : static_cast<T>(a << pos)) & mask));
}

template <class T>
T shift_left(T a, U32 n) {
  return n >= static_cast<U32>(kBits<T>) ? T{0} : static_cast<T>(wrap(a) << n);
}
template <class T>
T shift_right(T a, U32 n) {
  constexpr U32 kTop = static_cast<U32>(kBits<T>) - 1;
  if (kSigned<T>) return static_cast<T>(a >> (n > kTop ? kTop : n));
  return n > kTop ? T{0} : static_cast<T>(a >> n);
}

inline U32 permute_bytes(U32 a, U32 b, U32 selector) {
  const U64 bytes = (static_cast<U64>(b) << 32) | a;
  U32 result = 0;
  for (U32 i = 0; i < 4; ++i) {
    const U32 nibble = selector >> (4 * i);
    const auto byte = static_cast<U32>(bytes >> (8 * (nibble & 7u))) & 255u;
    const U32 sign = (byte >> 7) * 255u;
    result |= ((nibble & 8u) != 0 ? sign : byte) << (8 * i);
  }
  return result;
}

// The special modes of prmt are selectors that depend on the low bits of c.
inline U32 mode_selector(const char* mode, U32 c) {
  const U32 s = c & 3u;
  const U32 next[4] = {s, s + 1, s + 2, s + 3};
  switch (mode[0] * 256 + mode[1]) {
    case 'f' * 256 + '4':
      return next[0] | next[1] << 4 | next[2] << 8 | next[3] << 12;
    case 'b' * 256 + '4':
      return s | ((s + 7) & 7u) << 4 | ((s + 6) & 7u) << 8 | ((s + 5) & 7u) << 12;
    case 'r' * 256 + 'c':
      return mode[2] == '8' ? s * 0x1111u : (s & 1u) * 0x2222u + 0x1010u;
    default:  // ecl and ecr clamp at one end
      break;
  }
  const bool left = mode[2] == 'l';
  U32 selector = 0;
  for (U32 i = 0; i < 4; ++i) {
    selector |= (left ? (i < s ? s : i) : (i > s ? s : i)) << (4 * i);
  }
  return selector;
}

template <class T>
void add_arithmetic(const KernelSink& s, const char* type) {
  s.add("add", "", type, lane<T(T, T)>([](T a, T b) { return static_cast<T>(wrap(a) + wrap(b)); }));
  s.add("sub", "", type, lane<T(T, T)>([](T a, T b) { return static_cast<T>(wrap(a) - wrap(b)); }));
  s.add("mul", "lo", type,
        lane<T(T, T)>([](T a, T b) { return static_cast<T>(wrap(a) * wrap(b)); }));
  s.add("mul", "hi", type, lane<T(T, T)>([](T a, T b) { return high_product(a, b); }));
  s.add("mad", "lo", type, lane<T(T, T, T)>([](T a, T b, T c) {
          return static_cast<T>(wrap(a) * wrap(b) + wrap(c));
        }));
  s.add("mad", "hi", type, lane<T(T, T, T)>([](T a, T b, T c) {
          return static_cast<T>(wrap(high_product(a, b)) + wrap(c));
        }));
  s.add("sad", "", type, lane<T(T, T, T)>([](T a, T b, T c) {
          return static_cast<T>(wrap(c) + (a < b ? wrap(b) - wrap(a) : wrap(a) - wrap(b)));
        }));
  s.add("div", "", type, lane<T(T, T)>([](T a, T b) { return quotient(a, b); }));
  s.add("rem", "", type, lane<T(T, T)>([](T a, T b) { return remainder(a, b); }));
  s.add("min", "", type, lane<T(T, T)>([](T a, T b) { return a < b ? a : b; }));
  s.add("max", "", type, lane<T(T, T)>([](T a, T b) { return a > b ? a : b; }));
  s.add("shr", "", type, lane<T(T, U32)>([](T a, U32 n) { return shift_right(a, n); }));
  if constexpr (kSigned<T>) {
    s.add("abs", "", type,
          lane<T(T)>([](T a) { return static_cast<T>(a < 0 ? 0 - wrap(a) : wrap(a)); }));
    s.add("neg", "", type, lane<T(T)>([](T a) { return static_cast<T>(0 - wrap(a)); }));
  }
  if constexpr (sizeof(T) <= 4) {
    using W = WideOf<T>;
    s.add("mul", "wide", type, lane<W(T, T)>([](T a, T b) { return static_cast<W>(W(a) * W(b)); }));
    s.add("mad", "wide", type, lane<W(T, T, W)>([](T a, T b, W c) {
            return static_cast<W>(wrap(W(a) * W(b)) + wrap(c));
          }));
  }
}

template <class T>
void add_bit_fields(const KernelSink& s, const char* type) {
  s.add("bfind", "", type, lane<U32(T)>([](T a) { return find_bit<T, false>(a); }));
  s.add("bfind", "shiftamt", type, lane<U32(T)>([](T a) { return find_bit<T, true>(a); }));
  s.add("bfe", "", type,
        lane<T(T, U32, U32)>([](T a, U32 pos, U32 len) { return extract_field(a, pos, len); }));
}

template <class T>
void add_logic(const KernelSink& s, const char* type) {
  s.add("and", "", type, lane<T(T, T)>([](T a, T b) { return static_cast<T>(a & b); }));
  s.add("or", "", type, lane<T(T, T)>([](T a, T b) { return static_cast<T>(a | b); }));
  s.add("xor", "", type, lane<T(T, T)>([](T a, T b) { return static_cast<T>(a ^ b); }));
  s.add("not", "", type, lane<T(T)>([](T a) { return static_cast<T>(~a); }));
  s.add("cnot", "", type, lane<T(T)>([](T a) { return static_cast<T>(a == 0); }));
  s.add("shl", "", type, lane<T(T, U32)>([](T a, U32 n) { return shift_left(a, n); }));
  s.add("shr", "", type, lane<T(T, U32)>([](T a, U32 n) { return shift_right(a, n); }));
  if constexpr (sizeof(T) >= 4) {
    s.add("popc", "", type, lane<U32(T)>([](T a) {
            return static_cast<U32>(sizeof(T) == 8 ? __builtin_popcountll(a)
                                                   : __builtin_popcount(static_cast<U32>(a)));
          }));
    s.add("clz", "", type, lane<U32(T)>([](T a) { return leading_zeros(a); }));
    s.add("bfi", "", type, lane<T(T, T, U32, U32)>([](T a, T b, U32 pos, U32 len) {
            return insert_field(a, b, pos, len);
          }));
  }
}

void add_bits32(const KernelSink& s) {
  s.add("brev", "", "b32", lane<U32(U32)>([](U32 a) { return reverse32(a); }));
  s.add("brev", "", "b64", lane<U64(U64)>([](U64 a) {
          return static_cast<U64>(reverse32(static_cast<U32>(a))) << 32 |
                 reverse32(static_cast<U32>(a >> 32));
        }));
  s.add("bmsk", "clamp", "b32", lane<U32(U32, U32)>([](U32 pos, U32 len) {
          return insert_field(~0u, 0u, pos > 255 ? 255 : pos, len > 255 ? 255 : len);
        }));
  s.add("bmsk", "wrap", "b32", lane<U32(U32, U32)>([](U32 pos, U32 len) {
          return insert_field(~0u, 0u, pos & 31u, len & 31u);
        }));
  s.add("lop3", "", "b32", lane<U32(U32, U32, U32, U32)>([](U32 a, U32 b, U32 c, U32 lut) {
          U32 r = 0;
          for (U32 i = 0; i < 8; ++i) {
            const U32 term = ((i & 4u) ? a : ~a) & ((i & 2u) ? b : ~b) & ((i & 1u) ? c : ~c);
            r |= term & (0u - ((lut >> i) & 1u));
          }
          return r;
        }));
  s.add("shf", "l.wrap", "b32", lane<U32(U32, U32, U32)>([](U32 a, U32 b, U32 n) {
          return static_cast<U32>((((static_cast<U64>(b) << 32) | a) << (n & 31u)) >> 32);
        }));
  s.add("shf", "l.clamp", "b32", lane<U32(U32, U32, U32)>([](U32 a, U32 b, U32 n) {
          return static_cast<U32>((((static_cast<U64>(b) << 32) | a) << (n > 32 ? 32 : n)) >> 32);
        }));
  s.add("shf", "r.wrap", "b32", lane<U32(U32, U32, U32)>([](U32 a, U32 b, U32 n) {
          return static_cast<U32>(((static_cast<U64>(b) << 32) | a) >> (n & 31u));
        }));
  s.add("shf", "r.clamp", "b32", lane<U32(U32, U32, U32)>([](U32 a, U32 b, U32 n) {
          return static_cast<U32>(((static_cast<U64>(b) << 32) | a) >> (n > 32 ? 32 : n));
        }));
  s.add("prmt", "", "b32",
        lane<U32(U32, U32, U32)>([](U32 a, U32 b, U32 c) { return permute_bytes(a, b, c); }));
}

template <class T>
void add_extend(const KernelSink& s, const char* type) {
  s.add("szext", "clamp", type,
        lane<T(T, U32)>([](T a, U32 n) { return extract_field(a, 0, n > 32 ? 32 : n); }));
  s.add("szext", "wrap", type,
        lane<T(T, U32)>([](T a, U32 n) { return extract_field(a, 0, n & 31u); }));
}

void add_permute_modes(const KernelSink& s) {
  s.add("prmt", "b32", "f4e", lane<U32(U32, U32, U32)>([](U32 a, U32 b, U32 c) {
          return permute_bytes(a, b, mode_selector("f4e", c));
        }));
  s.add("prmt", "b32", "b4e", lane<U32(U32, U32, U32)>([](U32 a, U32 b, U32 c) {
          return permute_bytes(a, b, mode_selector("b4e", c));
        }));
  s.add("prmt", "b32", "rc8", lane<U32(U32, U32, U32)>([](U32 a, U32 b, U32 c) {
          return permute_bytes(a, b, mode_selector("rc8", c));
        }));
  s.add("prmt", "b32", "rc16", lane<U32(U32, U32, U32)>([](U32 a, U32 b, U32 c) {
          return permute_bytes(a, b, mode_selector("rc16", c));
        }));
  s.add("prmt", "b32", "ecl", lane<U32(U32, U32, U32)>([](U32 a, U32 b, U32 c) {
          return permute_bytes(a, b, mode_selector("ecl", c));
        }));
  s.add("prmt", "b32", "ecr", lane<U32(U32, U32, U32)>([](U32 a, U32 b, U32 c) {
          return permute_bytes(a, b, mode_selector("ecr", c));
        }));
}

void add_saturating(const KernelSink& s) {
  s.add("add", "sat", "s32",
        lane<I32(I32, I32)>([](I32 a, I32 b) { return saturate<I32>(I64{a} + b); }));
  s.add("sub", "sat", "s32",
        lane<I32(I32, I32)>([](I32 a, I32 b) { return saturate<I32>(I64{a} - b); }));
  s.add("min", "relu", "s32", lane<I32(I32, I32)>([](I32 a, I32 b) {
          const I32 m = a < b ? a : b;
          return m < 0 ? 0 : m;
        }));
  s.add("max", "relu", "s32", lane<I32(I32, I32)>([](I32 a, I32 b) {
          const I32 m = a > b ? a : b;
          return m < 0 ? 0 : m;
        }));
}

template <class T, bool kHigh>
struct Mul24 {
  T operator()(T a, T b) const {
    const auto narrow = [](T v) {
      return kSigned<T> ? I64{static_cast<I32>(static_cast<U32>(v) << 8) >> 8}
                        : I64{static_cast<U32>(v) & 0xFFFFFFu};
    };
    return static_cast<T>((narrow(a) * narrow(b)) >> (kHigh ? 16 : 0));
  }
};

// f(low half) and f(high half) side by side.
template <class T, class F>
struct Halves {
  U32 operator()(U32 a, U32 b) const {
    const auto low = static_cast<U16>(F{}(static_cast<T>(a), static_cast<T>(b)));
    const auto high = static_cast<U16>(F{}(static_cast<T>(a >> 16), static_cast<T>(b >> 16)));
    return static_cast<U32>(high) << 16 | low;
  }
};
template <class T, class F>
constexpr ir::ExecFn halves(F) {
  return lane<U32(U32, U32)>(Halves<T, F>{});
}

void add_packed(const KernelSink& s) {
  s.add("mul24", "lo", "u32", lane<U32(U32, U32)>(Mul24<U32, false>{}));
  s.add("mul24", "hi", "u32", lane<U32(U32, U32)>(Mul24<U32, true>{}));
  s.add("mul24", "lo", "s32", lane<I32(I32, I32)>(Mul24<I32, false>{}));
  s.add("mul24", "hi", "s32", lane<I32(I32, I32)>(Mul24<I32, true>{}));
  s.add("mad24", "lo", "u32", lane<U32(U32, U32, U32)>([](U32 a, U32 b, U32 c) {
          return Mul24<U32, false>{}(a, b) + c;
        }));
  s.add("mad24", "lo", "s32", lane<I32(I32, I32, I32)>([](I32 a, I32 b, I32 c) {
          return static_cast<I32>(wrap(Mul24<I32, false>{}(a, b)) + wrap(c));
        }));
  const auto sum = [](auto a, auto b) { return a + b; };
  s.add("add", "", "u16x2", halves<U16>(sum));
  s.add("add", "", "s16x2", halves<I16>(sum));
  const auto least = [](auto a, auto b) { return a < b ? a : b; };
  const auto most = [](auto a, auto b) { return a > b ? a : b; };
  s.add("min", "", "u16x2", halves<U16>(least));
  s.add("min", "", "s16x2", halves<I16>(least));
  s.add("max", "", "u16x2", halves<U16>(most));
  s.add("max", "", "s16x2", halves<I16>(most));
  s.add("min", "relu", "s16x2", halves<I16>([](I16 a, I16 b) {
          return a < b ? (a < 0 ? I16{0} : a) : (b < 0 ? I16{0} : b);
        }));
  s.add("max", "relu", "s16x2", halves<I16>([](I16 a, I16 b) {
          return a > b ? (a < 0 ? I16{0} : a) : (b < 0 ? I16{0} : b);
        }));
}

template <class A, class B, class T>
T dot4(U32 a, U32 b, T c) {
  U64 sum = wrap(c);
  for (int i = 0; i < 4; ++i) {
    sum += wrap(static_cast<A>(a >> (8 * i))) * wrap(static_cast<B>(b >> (8 * i)));
  }
  return static_cast<T>(sum);
}
template <class A, class B, class T, bool kHigh>
T dot2(U32 a, U32 b, T c) {
  using A16 = std::conditional_t<kSigned<A>, I16, U16>;
  U64 sum = wrap(c);
  for (int i = 0; i < 2; ++i) {
    sum += wrap(static_cast<A16>(a >> (16 * i))) *
           wrap(static_cast<B>(b >> (8 * i + (kHigh ? 16 : 0))));
  }
  return static_cast<T>(sum);
}

template <class A, class B>
void add_dot(const KernelSink& s, const char* types) {
  using T = std::conditional_t<kSigned<A> || kSigned<B>, I32, U32>;
  s.add("dp4a", types, "",
        lane<T(U32, U32, T)>([](U32 a, U32 b, T c) { return dot4<A, B, T>(a, b, c); }));
  s.add("dp2a", "lo", types,
        lane<T(U32, U32, T)>([](U32 a, U32 b, T c) { return dot2<A, B, T, false>(a, b, c); }));
  s.add("dp2a", "hi", types,
        lane<T(U32, U32, T)>([](U32 a, U32 b, T c) { return dot2<A, B, T, true>(a, b, c); }));
}

}  // namespace

void add_integer_kernels(const KernelSink& sink) {
  add_arithmetic<U16>(sink, "u16");
  add_arithmetic<U32>(sink, "u32");
  add_arithmetic<U64>(sink, "u64");
  add_arithmetic<I16>(sink, "s16");
  add_arithmetic<I32>(sink, "s32");
  add_arithmetic<I64>(sink, "s64");
  add_bit_fields<U32>(sink, "u32");
  add_bit_fields<U64>(sink, "u64");
  add_bit_fields<I32>(sink, "s32");
  add_bit_fields<I64>(sink, "s64");
  add_logic<U16>(sink, "b16");
  add_logic<U32>(sink, "b32");
  add_logic<U64>(sink, "b64");
  add_bits32(sink);
  add_extend<U32>(sink, "u32");
  add_extend<I32>(sink, "s32");
  add_permute_modes(sink);
  add_saturating(sink);
  add_packed(sink);
  add_dot<U8, U8>(sink, "u32.u32");
  add_dot<U8, I8>(sink, "u32.s32");
  add_dot<I8, U8>(sink, "s32.u32");
  add_dot<I8, I8>(sink, "s32.s32");
}

}  // namespace mxfa::emu::exec::MXEMU_ISA
