#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>

#include "exec/baseline.h"

/// Arithmetic in the rounding modes rz, rm and rp: the host's own, one lane at a time. Volatile
/// operands keep the compiler from moving work out of the rounding mode.
namespace mxfa::emu::exec {
namespace {

using ir::Inst;

enum class Op { kAdd, kSub, kMul, kFma, kDiv, kRcp, kSqrt };

template <class T>
T flush_to_zero(T v) {
  return std::fpclassify(v) == FP_SUBNORMAL ? std::copysign(T{0}, v) : v;
}

template <Op kOp, class T>
T evaluate(T a, T b, T c) {
  volatile T x = a;
  volatile T y = b;
  volatile T z = c;
  volatile T r{};
  switch (kOp) {
    case Op::kAdd:
      r = x + y;
      break;
    case Op::kSub:
      r = x - y;
      break;
    case Op::kMul:
      r = x * y;
      break;
    case Op::kFma:
      r = std::fma(x, y, z);
      break;
    case Op::kDiv:
      r = x / y;
      break;
    case Op::kRcp:
      r = T{1} / x;
      break;
    case Op::kSqrt:
      r = std::sqrt(x);
      break;
  }
  return r;
}

template <class T>
T canonical_nan() {
  if constexpr (sizeof(T) == 4) {
    const std::uint32_t bits = 0x7FFFFFFFu;
    float v;
    std::memcpy(&v, &bits, 4);
    return v;
  }
  return std::numeric_limits<T>::quiet_NaN();
}

template <Op kOp, class T, bool kFlush, bool kSaturate>
T one(T a, T b, T c) {
  if (kFlush) {
    a = flush_to_zero(a);
    b = flush_to_zero(b);
    c = flush_to_zero(c);
  }
  T r = evaluate<kOp, T>(a, b, c);
  if (kFlush) r = flush_to_zero(r);
  if (kSaturate) return r > T{0} ? (r < T{1} ? r : T{1}) : T{0};
  return std::isnan(r) ? canonical_nan<T>() : r;
}

constexpr int arity(Op op) {
  return op == Op::kFma ? 3 : (op == Op::kRcp || op == Op::kSqrt ? 1 : 2);
}

/// kPairs: the operation on both halves of a 64-bit register of two floats.
template <Op kOp, class T, int kMode, bool kFlush, bool kSaturate, bool kPairs>
void run(Context& c, const Inst& in, std::uint32_t mask) {
  constexpr int kParts = kPairs ? 2 : 1;
  auto* d = c.row<std::byte>(in.op[0]);
  const auto* a = c.row<const std::byte>(in.op[1]);
  const auto* b = arity(kOp) > 1 ? c.row<const std::byte>(in.op[2]) : a;
  const auto* e = arity(kOp) > 2 ? c.row<const std::byte>(in.op[3]) : a;
  const auto load = [](const std::byte* row, int index) {
    T value;
    std::memcpy(&value, row + static_cast<std::size_t>(index) * sizeof(T), sizeof(T));
    return value;
  };
  const int saved = std::fegetround();
  std::fesetround(kMode);
  for (int i = 0; i < kLanes; ++i) {
    if (((mask >> i) & 1u) == 0) continue;
    for (int part = i * kParts; part < (i + 1) * kParts; ++part) {
      const T r = one<kOp, T, kFlush, kSaturate>(load(a, part), load(b, part), load(e, part));
      std::memcpy(d + static_cast<std::size_t>(part) * sizeof(T), &r, sizeof(T));
    }
  }
  std::fesetround(saved);
}

template <Op kOp, int kMode>
void add_mode(const KernelSink& s, const char* name, const char* (&m)[4]) {
  s.add(name, m[0], "f32", &run<kOp, float, kMode, false, false, false>);
  s.add(name, m[1], "f32", &run<kOp, float, kMode, true, false, false>);
  s.add(name, m[0], "f64", &run<kOp, double, kMode, false, false, false>);
  if constexpr (kOp == Op::kAdd || kOp == Op::kSub || kOp == Op::kMul || kOp == Op::kFma) {
    s.add(name, m[2], "f32", &run<kOp, float, kMode, false, true, false>);
    s.add(name, m[3], "f32", &run<kOp, float, kMode, true, true, false>);
    s.add(name, m[0], "f32x2", &run<kOp, float, kMode, false, false, true>);
    s.add(name, m[1], "f32x2", &run<kOp, float, kMode, true, false, true>);
  }
}

template <Op kOp>
void add_op(const KernelSink& s, const char* name) {
  const char* rz[4] = {"rz", "rz.ftz", "rz.sat", "rz.ftz.sat"};
  const char* rm[4] = {"rm", "rm.ftz", "rm.sat", "rm.ftz.sat"};
  const char* rp[4] = {"rp", "rp.ftz", "rp.sat", "rp.ftz.sat"};
  add_mode<kOp, FE_TOWARDZERO>(s, name, rz);
  add_mode<kOp, FE_DOWNWARD>(s, name, rm);
  add_mode<kOp, FE_UPWARD>(s, name, rp);
}

}  // namespace

void add_directed_kernels(const KernelSink& sink) {
  add_op<Op::kAdd>(sink, "add");
  add_op<Op::kSub>(sink, "sub");
  add_op<Op::kMul>(sink, "mul");
  add_op<Op::kFma>(sink, "fma");
  add_op<Op::kDiv>(sink, "div");
  add_op<Op::kRcp>(sink, "rcp");
  add_op<Op::kSqrt>(sink, "sqrt");
}

}  // namespace mxfa::emu::exec
