#include "exec/lanes/float_order.h"
#include "exec/lanes/short_float.h"

/// FP16 and BF16 arithmetic, one or two values a register. PTX ISA 9.0, sections 9.7.4 and 9.7.5.
/// Sums, differences and products are rounded to FP32 first, which has more than twice the bits and
/// two more, so that rounding twice gives what rounding once would; the rest is done in FP64.
namespace mxfa::emu::exec::MXEMU_ISA {
namespace {

struct Rules {
  bool flush = false;
  bool saturate = false;
  bool relu = false;
};

struct Add {
  float operator()(float a, float b) const { return a + b; }
};
struct Sub {
  float operator()(float a, float b) const { return a - b; }
};
struct Mul {
  float operator()(float a, float b) const { return a * b; }
};
/// a * b + c rounded to odd, so that the rounding that follows sees which side it lies on.
struct Fma {
  double operator()(float a, float b, float c) const {
    const double product = static_cast<double>(a) * static_cast<double>(b);  // exact: 22 bits
    const auto term = static_cast<double>(c);
    const double sum = product + term;
    const double part = sum - product;
    const double rest = (product - (sum - part)) + (term - part);
    const U64 bits = bits_of(sum);
    const bool inexact = rest > 0.0 || rest < 0.0;  // false where the sum is not finite
    const U64 step = (rest > 0.0) == (sum > 0.0) ? U64{1} : ~U64{0};
    return double_of(inexact && (bits & 1u) == 0 ? bits + step : bits);
  }
};
/// Cut off, not rounded; what `a` has below 2^-23 does not count (model/approx.h).
template <class Number>
struct Exp2 {
  double operator()(float a) const {
    const bool tiny = float_of(bits_of(a) & 0x7FFFFFFFu) < 0x1p-23f;
    return Number::cut(exp2_wide(tiny ? 0.0f : a));
  }
};
struct Tanh {
  double operator()(float a) const { return __builtin_tanh(static_cast<double>(a)); }
};
template <bool kMax, bool kNan, bool kAbs>
struct Extreme {
  float operator()(float a, float b) const {
    constexpr U32 kKept = kAbs ? 0x7FFFFFFFu : 0xFFFFFFFFu;
    const float x = float_of(bits_of(a) & kKept);
    const float y = float_of(bits_of(b) & kKept);
    const float r = kNan ? extreme_nan<kMax>(x, y) : extreme<kMax>(x, y);
    return kAbs ? float_of(bits_of(r) | (sign(a) ^ sign(b))) : r;
  }
  static U32 sign(float v) { return v != v ? 0u : bits_of(v) & 0x80000000u; }
};

constexpr float kMinNormal = 0x1p-14f;  ///< of FP16

template <bool kFlush>
[[gnu::always_inline]] inline float flush_half(float value) {
  const U32 sign = bits_of(value) & 0x80000000u;
  const float magnitude = float_of(bits_of(value) & 0x7FFFFFFFu);
  return kFlush ? float_of(magnitude < kMinNormal ? sign : bits_of(value)) : value;
}
[[gnu::always_inline]] inline double flush_half(double value) {
  const U64 sign = bits_of(value) & (U64{1} << 63);
  return double_of(double_of(bits_of(value) ^ sign) < kMinNormal ? sign : bits_of(value));
}

template <Rules kRules, class T>
[[gnu::always_inline]] inline T finish(T value) {
  if constexpr (kRules.flush && sizeof(T) == 8) value = flush_half(value);
  if constexpr (kRules.flush && sizeof(T) == 4) value = flush_half<true>(value);
  if constexpr (kRules.saturate) {  // NaN becomes 0
    const T low = value > T{0} ? value : T{0};
    return low < T{1} ? low : T{1};
  }
  if constexpr (kRules.relu) return value <= T{0} ? T{0} : value;
  return value;
}

/// F of each part of the registers.
template <class Number, int kParts, class F, Rules kRules>
struct HalfOp {
  template <class... V>
  [[gnu::always_inline]] static inline U32 one(V... code) {
    return Number::encode(finish<kRules>(F{}(flush_half<kRules.flush>(Number::decode(code))...)));
  }
  template <class... V>
  U32 operator()(V... v) const {
    const U32 low = one((v & 0xFFFFu)...);
    return kParts == 2 ? one((v >> 16)...) << 16 | low : low;
  }
};

/// As Compare in lane.h; for two values a register p is the lower and q the upper one's.
template <class Number, int kParts, class F, bool kFlush>
[[gnu::flatten]] void compare_halves(Context& c, const Inst& in, std::uint32_t mask) {
  const auto* a = c.row<const Row32>(in.op[2]);
  const auto* b = c.row<const Row32>(in.op[3]);
  std::uint32_t bits[2];
  for (int part = 0; part < kParts; ++part) {
    alignas(64) Row32 result[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      const float x = Number::decode((a[i] >> (16 * part)) & 0xFFFFu);
      const float y = Number::decode((b[i] >> (16 * part)) & 0xFFFFu);
      const bool is_true = F{}(flush_half<kFlush>(x), flush_half<kFlush>(y));
      result[i] = is_true ? ~0u : 0u;
    }
    bits[part] = sign_bits(result);
  }
  const std::uint32_t with = c.pred(in.op[4]);
  c.set_pred(in.op[0], combine(in.a, bits[0], with), mask);
  c.set_pred(in.op[1], combine(in.a, kParts == 2 ? bits[1] : ~bits[0], with), mask);
}

using Op1 = U32(U32);
using Op2 = U32(U32, U32);
using Op3 = U32(U32, U32, U32);

template <class Number, int kParts>
struct Adder {
  const KernelSink& s;
  const char* type;

  template <class Signature, class F, Rules kRules>
  void put(const char* name, const char* modifiers) const {
    s.add(name, modifiers, type, lane<Signature>(HalfOp<Number, kParts, F, kRules>{}));
  }
  template <class Signature, class F>
  void plain(const char* name, const char* modifiers, const char* ftz) const {
    put<Signature, F, Rules{}>(name, modifiers);
    if constexpr (Number::kFlushes) put<Signature, F, Rules{.flush = true}>(name, ftz);
  }
  template <class Signature, class F>
  void saturating(const char* name) const {
    plain<Signature, F>(name, "", "ftz");
    if constexpr (Number::kFlushes) {
      put<Signature, F, Rules{.saturate = true}>(name, "sat");
      put<Signature, F, Rules{.flush = true, .saturate = true}>(name, "ftz.sat");
    }
  }
  template <bool kMax>
  void extremes() const {
    const char* name = kMax ? "max" : "min";
    plain<Op2, Extreme<kMax, false, false>>(name, "", "ftz");
    plain<Op2, Extreme<kMax, true, false>>(name, "NaN", "ftz.NaN");
    plain<Op2, Extreme<kMax, false, true>>(name, "xorsign.abs", "ftz.xorsign.abs");
    plain<Op2, Extreme<kMax, true, true>>(name, "NaN.xorsign.abs", "ftz.NaN.xorsign.abs");
  }
  void comparisons() const {
    each_float_order([&]<class F>(const char* name, const char* ftz, F) {
      s.add("setp", name, type, &compare_halves<Number, kParts, F, false>);
      if constexpr (Number::kFlushes) {
        s.add("setp", ftz, type, &compare_halves<Number, kParts, F, true>);
      }
    });
  }

  // Sign operations keep NaN payloads.
  void signs(const char* ftz) const {
    constexpr U32 kSigns = kParts == 2 ? 0x80008000u : 0x8000u;
    s.add("abs", ftz, type, lane<Op1>([](U32 a) { return a & ~kSigns; }));
    s.add("neg", ftz, type, lane<Op1>([](U32 a) { return a ^ kSigns; }));
  }
  void all() const {
    saturating<Op2, Add>("add");
    saturating<Op2, Sub>("sub");
    saturating<Op2, Mul>("mul");
    saturating<Op3, Fma>("fma");
    put<Op3, Fma, Rules{.relu = true}>("fma", "relu");
    if constexpr (Number::kFlushes) {
      put<Op3, Fma, Rules{.flush = true, .relu = true}>("fma", "ftz.relu");
    }
    extremes<true>();
    extremes<false>();
    plain<Op1, Tanh>("tanh", "", "ftz");
    put<Op1, Exp2<Number>, Rules{}>("ex2", "");
    put<Op1, Exp2<Number>, Rules{}>("ex2", "ftz");
    signs("");
    signs("ftz");
    comparisons();
  }
};

}  // namespace

void add_half_kernels(const KernelSink& sink) {
  Adder<F16Number, 1>{sink, "f16"}.all();
  Adder<F16Number, 2>{sink, "f16x2"}.all();
  Adder<BF16Number, 1>{sink, "bf16"}.all();
  Adder<BF16Number, 2>{sink, "bf16x2"}.all();
}

}  // namespace mxfa::emu::exec::MXEMU_ISA
