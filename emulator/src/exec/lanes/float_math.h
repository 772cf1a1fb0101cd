#pragma once

#include "exec/lanes/lane.h"

/// Scalar float functions as GPUs define them; see lanes/sink.h for why they are static.
namespace mxfa::emu::exec::MXEMU_ISA {
namespace {

using U32 = std::uint32_t;
using U64 = std::uint64_t;
using I64 = std::int64_t;

[[gnu::always_inline]] inline U32 bits_of(float v) { return __builtin_bit_cast(U32, v); }
[[gnu::always_inline]] inline float float_of(U32 v) { return __builtin_bit_cast(float, v); }
[[gnu::always_inline]] inline U64 bits_of(double v) { return __builtin_bit_cast(U64, v); }
[[gnu::always_inline]] inline double double_of(U64 v) { return __builtin_bit_cast(double, v); }

constexpr U32 kNanBits = 0x7FFFFFFFu;  ///< what FP32 arithmetic returns for NaN on NVIDIA GPUs

/// Subnormals become zeros of the same sign.
[[gnu::always_inline]] inline float flush(float v) {
  const U32 bits = bits_of(v);
  return float_of((bits & 0x7F800000u) == 0 ? bits & 0x80000000u : bits);
}
[[gnu::always_inline]] inline float canonical(float v) {
  return float_of(v != v ? kNanBits : bits_of(v));
}
[[gnu::always_inline]] inline float saturate01(float v) {
  const float low = v > 0.0f ? v : 0.0f;  // NaN becomes 0 as well
  return low < 1.0f ? low : 1.0f;
}

/// NaN loses against a number; -0 < +0.
template <bool kMax>
[[gnu::always_inline]] inline float extreme(float a, float b) {
  const U32 x = bits_of(a);
  const U32 y = bits_of(b);
  const bool first = kMax ? a > b : a < b;
  const U32 equal = kMax ? x & y : x | y;
  U32 r = a == b ? equal : (first ? x : y);
  r = a != a ? y : r;
  r = b != b ? x : r;
  return float_of(a != a && b != b ? kNanBits : r);
}
template <bool kMax>
[[gnu::always_inline]] inline float extreme_nan(float a, float b) {
  return float_of(a != a || b != b ? kNanBits : bits_of(extreme<kMax>(a, b)));
}
template <bool kMax>
[[gnu::always_inline]] inline double extreme(double a, double b) {
  const U64 x = bits_of(a);
  const U64 y = bits_of(b);
  const bool first = kMax ? a > b : a < b;
  U64 r = a == b ? (kMax ? x & y : x | y) : (first ? x : y);
  r = a != a ? y : r;
  return double_of(b != b ? x : r);
}

/// Optional flushing of inputs and result, optional clamping to [0, 1]; NaNs are canonical.
template <bool kFlush, bool kSaturate, class F>
struct FloatOp {
  [[gnu::always_inline]] static inline float in(float v) { return kFlush ? flush(v) : v; }
  [[gnu::always_inline]] static inline float out(float v) {
    const float result = kFlush ? flush(v) : v;
    return kSaturate ? saturate01(result) : canonical(result);
  }
  float operator()(float a) const { return out(F{}(in(a))); }
  float operator()(float a, float b) const { return out(F{}(in(a), in(b))); }
  float operator()(float a, float b, float c) const { return out(F{}(in(a), in(b), in(c))); }
};

/// The two halves of a 64-bit register.
template <class F>
struct PairOp {
  template <class... V>
  U64 operator()(V... v) const {
    const U32 low = bits_of(F{}(float_of(static_cast<U32>(v))...));
    const U32 high = bits_of(F{}(float_of(static_cast<U32>(v >> 32))...));
    return static_cast<U64>(high) << 32 | low;
  }
};

/// 2^x by a polynomial, within 2^-35 of the true value.
[[gnu::always_inline]] inline double exp2_wide(float x) {
  const float limited = x < -160.0f ? -160.0f : (x > 130.0f ? 130.0f : x);
  const double v = x != x ? 0.0 : static_cast<double>(limited);
  constexpr double kShift = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
  const double shifted = v + kShift;
  const double t = (v - (shifted - kShift)) * 0.69314718055994530942;
  double p = 1.0 / 362880;
  p = p * t + 1.0 / 40320;
  p = p * t + 1.0 / 5040;
  p = p * t + 1.0 / 720;
  p = p * t + 1.0 / 120;
  p = p * t + 1.0 / 24;
  p = p * t + 1.0 / 6;
  p = p * t + 0.5;
  p = p * t + 1.0;
  p = p * t + 1.0;
  const U64 exponent = (bits_of(shifted) - bits_of(kShift) + 1023) << 52;
  const double r = p * double_of(exponent);
  return x != x ? double_of(U64{0x7FF8} << 48) : r;
}

/// 2^x to nearest.
[[gnu::always_inline]] inline float exp2_nearest(float x) {
  return canonical(static_cast<float>(exp2_wide(x)));
}

/// log2(x) to nearest: atanh series in double.
[[gnu::always_inline]] inline float log2_nearest(float x) {
  const U64 bits = bits_of(static_cast<double>(x));
  // The exponent that leaves a mantissa in [sqrt(1/2), sqrt(2)).
  const I64 k = static_cast<I64>(bits - 0x3FE6A09E667F3BCDull) >> 52;
  const double m = double_of(bits - (static_cast<U64>(k) << 52));
  const double s = (m - 1.0) / (m + 1.0);
  const double q = s * s;
  double p = 1.0 / 15;
  p = p * q + 1.0 / 13;
  p = p * q + 1.0 / 11;
  p = p * q + 1.0 / 9;
  p = p * q + 1.0 / 7;
  p = p * q + 1.0 / 5;
  p = p * q + 1.0 / 3;
  p = p * q + 1.0;
  const auto r = static_cast<float>(static_cast<double>(k) + p * s * 2.88539008177792681472);
  U32 result = bits_of(r);
  result = bits_of(x) == 0x7F800000u ? 0x7F800000u : result;
  result = x < 0.0f || x != x ? kNanBits : result;
  return float_of(x == 0.0f ? 0xFF800000u : result);
}

}  // namespace
}  // namespace mxfa::emu::exec::MXEMU_ISA
