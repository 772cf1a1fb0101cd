#include "exec/lanes/float_math.h"

/// FP32 and FP64 arithmetic, round to nearest even, and the approximate functions, which are
/// rounded to nearest here (the ISA bounds their error only). PTX ISA 9.0, sections 9.7.3 - 9.7.5.
/// Directed rounding modes are in directed.cc.
namespace mxfa::emu::exec::MXEMU_ISA {
namespace {

// f with and without ftz, for a signature of one to three floats.
template <class Signature, class F>
void add_ftz(const KernelSink& s, const char* name, const char* ftz, const char* plain, F) {
  s.add(name, plain, "f32", lane<Signature>(FloatOp<false, false, F>{}));
  s.add(name, ftz, "f32", lane<Signature>(FloatOp<true, false, F>{}));
}

template <class Signature, class PairSignature, class F>
void add_arithmetic(const KernelSink& s, const char* name, F f) {
  add_ftz<Signature>(s, name, "ftz", "", f);
  s.add(name, "sat", "f32", lane<Signature>(FloatOp<false, true, F>{}));
  s.add(name, "ftz.sat", "f32", lane<Signature>(FloatOp<true, true, F>{}));
  s.add(name, "", "f32x2", lane<PairSignature>(PairOp<FloatOp<false, false, F>>{}));
  s.add(name, "ftz", "f32x2", lane<PairSignature>(PairOp<FloatOp<true, false, F>>{}));
}

using F1 = float(float);
using F2 = float(float, float);
using F3 = float(float, float, float);
using P2 = U64(U64, U64);
using P3 = U64(U64, U64, U64);
using D1 = double(double);
using D2 = double(double, double);
using D3 = double(double, double, double);

template <bool kMax, bool kNan, bool kFlush, bool kAbs>
struct Extreme {
  [[gnu::always_inline]] static inline float in(float v) {
    const float flushed = kFlush ? flush(v) : v;
    return kAbs ? float_of(bits_of(flushed) & 0x7FFFFFFFu) : flushed;
  }
  float operator()(float a, float b) const {
    return kNan ? extreme_nan<kMax>(in(a), in(b)) : extreme<kMax>(in(a), in(b));
  }
  float operator()(float a, float b, float c) const {
    const float ab = (*this)(a, b);
    return kNan ? extreme_nan<kMax>(ab, in(c)) : extreme<kMax>(ab, in(c));
  }
};
// .xorsign.abs: the larger (smaller) magnitude with the product's sign.
template <class F>
struct SignProduct {
  float operator()(float a, float b) const {
    const float r = F{}(a, b);
    const U32 sign = (bits_of(a) ^ bits_of(b)) & 0x80000000u;
    return float_of(r != r ? bits_of(r) : bits_of(r) | sign);
  }
};

template <bool kMax, bool kNan, bool kFlush>
void add_extremes(const KernelSink& s, const char* plain, const char* abs, const char* xorsign) {
  const char* name = kMax ? "max" : "min";
  using Plain = Extreme<kMax, kNan, kFlush, false>;
  using Abs = Extreme<kMax, kNan, kFlush, true>;
  s.add(name, plain, "f32", lane<F2>(Plain{}));
  s.add(name, abs, "f32", lane<F2>(Abs{}));
  s.add(name, xorsign, "f32", lane<F2>(SignProduct<Abs>{}));
  const char* name3 = kMax ? "max3" : "min3";
  s.add(name3, plain, "f32", lane<F3>(Plain{}));
  s.add(name3, abs, "f32", lane<F3>(Abs{}));
}

template <bool kMax>
void add_all_extremes(const KernelSink& s) {
  add_extremes<kMax, false, false>(s, "", "abs", "xorsign.abs");
  add_extremes<kMax, true, false>(s, "NaN", "NaN.abs", "NaN.xorsign.abs");
  add_extremes<kMax, false, true>(s, "ftz", "ftz.abs", "ftz.xorsign.abs");
  add_extremes<kMax, true, true>(s, "ftz.NaN", "ftz.NaN.abs", "ftz.NaN.xorsign.abs");
  s.add(kMax ? "max" : "min", "", "f64",
        lane<D2>([](double a, double b) { return extreme<kMax>(a, b); }));
}

double upper(double v) { return double_of(bits_of(v) & 0xFFFFFFFF00000000u); }

void add_double(const KernelSink& s) {
  s.add("add", "", "f64", lane<D2>([](double a, double b) { return a + b; }));
  s.add("sub", "", "f64", lane<D2>([](double a, double b) { return a - b; }));
  s.add("mul", "", "f64", lane<D2>([](double a, double b) { return a * b; }));
  s.add("fma", "", "f64",
        lane<D3>([](double a, double b, double c) { return __builtin_fma(a, b, c); }));
  s.add("div", "rn", "f64", lane<D2>([](double a, double b) { return a / b; }));
  s.add("rcp", "", "f64", lane<D1>([](double a) { return 1.0 / a; }));
  s.add("sqrt", "", "f64", lane<D1>([](double a) { return __builtin_sqrt(a); }));
  s.add("rsqrt", "", "f64", lane<D1>([](double a) { return 1.0 / __builtin_sqrt(a); }));
  // Only the upper words of argument and result count.
  s.add("rcp", "approx.ftz", "f64", lane<D1>([](double a) { return upper(1.0 / upper(a)); }));
  s.add("rsqrt", "ftz", "f64",
        lane<D1>([](double a) { return upper(1.0 / __builtin_sqrt(upper(a))); }));
  s.add("abs", "", "f64",
        lane<D1>([](double a) { return double_of(bits_of(a) & ~(U64{1} << 63)); }));
  s.add("neg", "", "f64",
        lane<D1>([](double a) { return double_of(bits_of(a) ^ (U64{1} << 63)); }));
  s.add("copysign", "", "f64", lane<D2>([](double a, double b) {
          constexpr U64 kSign = U64{1} << 63;
          return double_of((bits_of(a) & kSign) | (bits_of(b) & ~kSign));
        }));
}

void add_signs(const KernelSink& s) {
  s.add("abs", "", "f32", lane<F1>([](float a) { return float_of(bits_of(a) & 0x7FFFFFFFu); }));
  s.add("neg", "", "f32", lane<F1>([](float a) { return float_of(bits_of(a) ^ 0x80000000u); }));
  s.add("abs", "ftz", "f32",
        lane<F1>([](float a) { return float_of(bits_of(flush(a)) & 0x7FFFFFFFu); }));
  s.add("neg", "ftz", "f32",
        lane<F1>([](float a) { return float_of(bits_of(flush(a)) ^ 0x80000000u); }));
  s.add("copysign", "", "f32", lane<F2>([](float a, float b) {
          return float_of((bits_of(a) & 0x80000000u) | (bits_of(b) & 0x7FFFFFFFu));
        }));
}

void add_functions(const KernelSink& s) {
  const auto reciprocal = [](float a) { return 1.0f / a; };
  const auto root = [](float a) { return __builtin_sqrtf(a); };
  add_ftz<F1>(s, "rcp", "ftz", "", reciprocal);
  add_ftz<F1>(s, "rcp", "approx.ftz", "approx", reciprocal);
  add_ftz<F1>(s, "sqrt", "ftz", "", root);
  add_ftz<F1>(s, "sqrt", "approx.ftz", "approx", root);
  add_ftz<F1>(s, "rsqrt", "ftz", "", [](float a) {
    return static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(a)));
  });
  add_ftz<F1>(s, "ex2", "ftz", "", [](float a) { return exp2_nearest(a); });
  add_ftz<F1>(s, "lg2", "ftz", "", [](float a) { return log2_nearest(a); });
  add_ftz<F1>(s, "sin", "ftz", "",
              [](float a) { return static_cast<float>(__builtin_sin(static_cast<double>(a))); });
  add_ftz<F1>(s, "cos", "ftz", "",
              [](float a) { return static_cast<float>(__builtin_cos(static_cast<double>(a))); });
  s.add("tanh", "", "f32", lane<F1>([](float a) {
          return canonical(static_cast<float>(__builtin_tanh(static_cast<double>(a))));
        }));
}

template <bool kFlush>
void add_slct(const KernelSink& s, const char* ftz) {
  s.add("slct", ftz, "b32.f32", lane<U32(U32, U32, float)>([](U32 a, U32 b, float c) {
          return (kFlush ? flush(c) : c) >= 0.0f ? a : b;
        }));
  s.add("slct", ftz, "b64.f32", lane<U64(U64, U64, float)>([](U64 a, U64 b, float c) {
          return (kFlush ? flush(c) : c) >= 0.0f ? a : b;
        }));
}

}  // namespace

void add_float_kernels(const KernelSink& sink) {
  add_arithmetic<F2, P2>(sink, "add", [](float a, float b) { return a + b; });
  add_arithmetic<F2, P2>(sink, "sub", [](float a, float b) { return a - b; });
  add_arithmetic<F2, P2>(sink, "mul", [](float a, float b) { return a * b; });
  const auto fma = [](float a, float b, float c) { return __builtin_fmaf(a, b, c); };
  add_arithmetic<F3, P3>(sink, "fma", fma);
  add_arithmetic<F3, P3>(sink, "mad", fma);
  const auto quotient = [](float a, float b) { return a / b; };
  add_ftz<F2>(sink, "div", "rn.ftz", "rn", quotient);
  add_ftz<F2>(sink, "div", "approx.ftz", "approx", quotient);
  add_ftz<F2>(sink, "div", "ftz", "", quotient);  // .full
  add_all_extremes<true>(sink);
  add_all_extremes<false>(sink);
  add_signs(sink);
  add_functions(sink);
  add_double(sink);
  add_slct<false>(sink, "");
  add_slct<true>(sink, "ftz");
  sink.add("slct", "", "b32.s32",
           lane<U32(U32, U32, std::int32_t)>(
               [](U32 a, U32 b, std::int32_t c) { return c >= 0 ? a : b; }));
  sink.add("slct", "", "b64.s32",
           lane<U64(U64, U64, std::int32_t)>(
               [](U64 a, U64 b, std::int32_t c) { return c >= 0 ? a : b; }));
}

}  // namespace mxfa::emu::exec::MXEMU_ISA
