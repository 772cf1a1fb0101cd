#include <bit>
#include <cmath>
#include <string>

#include "exec/baseline.h"
#include "exec/soft_float.h"

/// FP16 and BF16 arithmetic, one or two values a register. Each operation is done in double with
/// one rounding to the short format. PTX ISA 9.0, sections 9.7.4 and 9.7.5.
namespace mxfa::emu::exec {
namespace {

using ir::Inst;

struct Half {
  NumberFormat format;

  double decode(std::uint32_t bits, bool flush) const {
    const Unpacked u = unpack(format, bits & 0xFFFFu);
    if (u.nan) return std::nan("");
    if (u.infinity) return u.negative ? -HUGE_VAL : HUGE_VAL;
    const double value = std::ldexp(static_cast<double>(u.significand), u.exponent);
    const double kept = flush && value < 6.103515625e-5 ? 0.0 : value;  // FP16: 2^-14
    return u.negative ? -kept : kept;
  }
  std::uint32_t encode(double value) const {
    return static_cast<std::uint32_t>(
        round_to(format, unpack(NumberFormat::kF64, std::bit_cast<std::uint64_t>(value)), {}));
  }
};

struct Rules {
  bool flush = false;
  bool saturate = false;
  bool relu = false;
};

// The sum a * b + c rounded to odd, so that the rounding that follows sees which side it lies on.
double fused(double a, double b, double c) {
  const double product = a * b;  // exact: 22 bits at most
  const double sum = product + c;
  if (!std::isfinite(sum)) return sum;
  const double part = sum - product;
  const double rest = (product - (sum - part)) + (c - part);
  auto bits = std::bit_cast<std::uint64_t>(sum);
  if (rest != 0.0 && (bits & 1u) == 0) bits += (rest > 0.0) == (sum > 0.0) ? 1u : ~0ull;
  return std::bit_cast<double>(bits);
}

template <bool kMax>
double extreme(double a, double b) {
  if (std::isnan(a)) return b;
  if (std::isnan(b)) return a;
  if (a == b) return kMax == std::signbit(a) ? b : a;
  return (a < b) != kMax ? a : b;
}

// Each operation takes up to three values and gives one.
using Function = double (*)(double, double, double);

double add(double a, double b, double) { return a + b; }
double sub(double a, double b, double) { return a - b; }
double mul(double a, double b, double) { return a * b; }
double exp2_of(double a, double, double) { return std::exp2(a); }
double tanh_of(double a, double, double) { return std::tanh(a); }
template <bool kMax, bool kNan, bool kAbs, bool kSign>
double min_max(double a, double b, double) {
  const double x = kAbs ? std::fabs(a) : a;
  const double y = kAbs ? std::fabs(b) : b;
  if (kNan && (std::isnan(a) || std::isnan(b))) return std::nan("");
  const double r = extreme<kMax>(x, y);
  return kSign && std::signbit(a) != std::signbit(b) && !std::isnan(r) ? -r : r;
}

double finish(double value, const Rules& rules, double flush_below) {
  if (rules.flush && std::fabs(value) < flush_below) value = std::copysign(0.0, value);
  if (rules.saturate) return value > 0.0 ? std::fmin(value, 1.0) : 0.0;
  if (rules.relu && !std::isnan(value)) return value > 0.0 ? value : 0.0;
  return value;
}

/// in.op[0] = d, the operands follow; kParts values of 16 bits a register.
template <NumberFormat kFormat, int kParts, int kArity, Function kFunction, Rules kRules>
void run(Context& c, const Inst& in, std::uint32_t mask) {
  constexpr Half kHalf{kFormat};
  auto* d = c.row<std::uint32_t>(in.op[0]);
  const std::uint32_t* s[3];
  for (int k = 0; k < 3; ++k) s[k] = c.row<const std::uint32_t>(in.op[k < kArity ? k + 1 : 1]);
  for (int i = 0; i < kLanes; ++i) {
    if (((mask >> i) & 1u) == 0) continue;
    std::uint32_t result = 0;
    for (int part = 0; part < kParts; ++part) {
      const int shift = 16 * part;
      double v[3];
      for (int k = 0; k < 3; ++k) v[k] = kHalf.decode(s[k][i] >> shift, kRules.flush);
      const double r = kArity == 3 ? fused(v[0], v[1], v[2]) : kFunction(v[0], v[1], v[2]);
      result |= kHalf.encode(finish(r, kRules, 6.103515625e-5)) << shift;
    }
    d[i] = result;
  }
}

// Sign operations keep NaN payloads.
template <int kParts, bool kAbs>
void sign(Context& c, const Inst& in, std::uint32_t mask) {
  constexpr std::uint32_t kSigns = kParts == 2 ? 0x80008000u : 0x8000u;
  auto* d = c.row<std::uint32_t>(in.op[0]);
  const auto* a = c.row<const std::uint32_t>(in.op[1]);
  for (int i = 0; i < kLanes; ++i) {
    if ((mask >> i) & 1u) d[i] = kAbs ? a[i] & ~kSigns : a[i] ^ kSigns;
  }
}

using Predicate = bool (*)(double, double);
template <int kOp>
bool compare_values(double a, double b) {
  const bool nan = std::isnan(a) || std::isnan(b);
  switch (kOp) {
    case 0:
      return a == b;
    case 1:
      return !nan && a != b;
    case 2:
      return a < b;
    case 3:
      return a <= b;
    case 4:
      return a > b;
    case 5:
      return a >= b;
    case 6:
      return nan || a == b;
    case 7:
      return nan || a != b;
    case 8:
      return nan || a < b;
    case 9:
      return nan || a <= b;
    case 10:
      return nan || a > b;
    case 11:
      return nan || a >= b;
    case 12:
      return !nan;
    default:
      return nan;
  }
}

std::uint32_t combine(std::uint8_t how, std::uint32_t bits, std::uint32_t with) {
  return how == 1 ? bits & with : how == 2 ? bits | with : how == 3 ? bits ^ with : bits;
}

/// As Compare in lanes/lane.h; for two values a register p is the lower and q the upper one's.
template <NumberFormat kFormat, int kParts, Predicate kPredicate, bool kFlush>
void compare(Context& c, const Inst& in, std::uint32_t mask) {
  constexpr Half kHalf{kFormat};
  const auto* a = c.row<const std::uint32_t>(in.op[2]);
  const auto* b = c.row<const std::uint32_t>(in.op[3]);
  std::uint32_t bits[2] = {0, 0};
  for (int i = 0; i < kLanes; ++i) {
    for (int part = 0; part < kParts; ++part) {
      const bool r = kPredicate(kHalf.decode(a[i] >> (16 * part), kFlush),
                                kHalf.decode(b[i] >> (16 * part), kFlush));
      bits[part] |= (r ? 1u : 0u) << i;
    }
  }
  const std::uint32_t with = c.pred(in.op[4]);
  c.set_pred(in.op[0], combine(in.a, bits[0], with), mask);
  c.set_pred(in.op[1], combine(in.a, kParts == 2 ? bits[1] : ~bits[0], with), mask);
}

template <NumberFormat kFormat, int kParts>
struct Adder {
  const KernelSink& s;
  const char* type;

  template <int kArity, Function kFunction>
  void op(const char* name) const {
    s.add(name, "", type, &run<kFormat, kParts, kArity, kFunction, Rules{}>);
    if constexpr (kFormat == NumberFormat::kF16) {
      s.add(name, "ftz", type, &run<kFormat, kParts, kArity, kFunction, Rules{.flush = true}>);
    }
  }
  template <int kArity, Function kFunction>
  void saturating(const char* name) const {
    op<kArity, kFunction>(name);
    if constexpr (kFormat == NumberFormat::kF16) {
      s.add(name, "sat", type, &run<kFormat, kParts, kArity, kFunction, Rules{.saturate = true}>);
      s.add(name, "ftz.sat", type,
            &run<kFormat, kParts, kArity, kFunction, Rules{.flush = true, .saturate = true}>);
    }
  }
  template <bool kMax>
  void extremes() const {
    const char* name = kMax ? "max" : "min";
    op<2, min_max<kMax, false, false, false>>(name);
    add_variant<min_max<kMax, true, false, false>>(name, "NaN", "ftz.NaN");
    add_variant<min_max<kMax, false, true, true>>(name, "xorsign.abs", "ftz.xorsign.abs");
    add_variant<min_max<kMax, true, true, true>>(name, "NaN.xorsign.abs", "ftz.NaN.xorsign.abs");
  }
  template <Function kFunction>
  void add_variant(const char* name, const char* plain, const char* ftz) const {
    s.add(name, plain, type, &run<kFormat, kParts, 2, kFunction, Rules{}>);
    if constexpr (kFormat == NumberFormat::kF16) {
      s.add(name, ftz, type, &run<kFormat, kParts, 2, kFunction, Rules{.flush = true}>);
    }
  }
  template <int kOp>
  void comparison(const char* name, const char* ftz) const {
    s.add("setp", name, type, &compare<kFormat, kParts, compare_values<kOp>, false>);
    s.add("setp", ftz, type, &compare<kFormat, kParts, compare_values<kOp>, true>);
  }

  void all() const {
    saturating<2, add>("add");
    saturating<2, sub>("sub");
    saturating<2, mul>("mul");
    saturating<3, add>("fma");
    s.add("fma", "relu", type, &run<kFormat, kParts, 3, add, Rules{.relu = true}>);
    s.add("fma", "ftz.relu", type,
          &run<kFormat, kParts, 3, add, Rules{.flush = true, .relu = true}>);
    extremes<true>();
    extremes<false>();
    op<1, tanh_of>("tanh");
    op<1, exp2_of>("ex2");
    s.add("ex2", "ftz", type, &run<kFormat, kParts, 1, exp2_of, Rules{}>);
    for (const char* ftz : {"", "ftz"}) {
      s.add("abs", ftz, type, &sign<kParts, true>);
      s.add("neg", ftz, type, &sign<kParts, false>);
    }
    comparison<0>("eq", "eq.ftz");
    comparison<1>("ne", "ne.ftz");
    comparison<2>("lt", "lt.ftz");
    comparison<3>("le", "le.ftz");
    comparison<4>("gt", "gt.ftz");
    comparison<5>("ge", "ge.ftz");
    comparison<6>("equ", "equ.ftz");
    comparison<7>("neu", "neu.ftz");
    comparison<8>("ltu", "ltu.ftz");
    comparison<9>("leu", "leu.ftz");
    comparison<10>("gtu", "gtu.ftz");
    comparison<11>("geu", "geu.ftz");
    comparison<12>("num", "num.ftz");
    comparison<13>("nan", "nan.ftz");
  }
};

}  // namespace

void add_half_kernels(const KernelSink& sink) {
  Adder<NumberFormat::kF16, 1>{sink, "f16"}.all();
  Adder<NumberFormat::kF16, 2>{sink, "f16x2"}.all();
  Adder<NumberFormat::kBF16, 1>{sink, "bf16"}.all();
  Adder<NumberFormat::kBF16, 2>{sink, "bf16x2"}.all();
}

}  // namespace mxfa::emu::exec
