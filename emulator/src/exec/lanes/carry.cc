#include "exec/lanes/lane.h"

/// Extended-precision arithmetic with the carry flag CC.CF, kept as one bit a lane. PTX ISA 9.0,
/// section 9.7.2. Subtraction stores the borrow.
namespace mxfa::emu::exec::MXEMU_ISA {
namespace {

__extension__ using U128 = unsigned __int128;

enum class Step { kAdd, kSub, kMulLow, kMulHigh };

template <class T, Step kStep>
struct Sum {
  T value;
  bool carry;

  static Sum of(T a, T b, T c, bool carry_in) {
    constexpr int kBits = static_cast<int>(sizeof(T)) * 8;
    using U = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
    if (kStep == Step::kSub) {
      const U128 wide = U128{static_cast<U>(a)} - static_cast<U>(b) - (carry_in ? 1u : 0u);
      return {static_cast<T>(static_cast<U>(wide)), ((wide >> kBits) & 1u) != 0};
    }
    U x = static_cast<U>(a);
    U y = static_cast<U>(b);
    if (kStep == Step::kMulLow || kStep == Step::kMulHigh) {
      // Both factors extended by their own sign: right modulo 2^128 for either kind.
      const U128 product = static_cast<U128>(a) * static_cast<U128>(b);
      x = kStep == Step::kMulLow ? static_cast<U>(product) : static_cast<U>(product >> kBits);
      y = static_cast<U>(c);
    }
    const U128 wide = U128{x} + y + (carry_in ? 1u : 0u);
    return {static_cast<T>(static_cast<U>(wide)), ((wide >> kBits) & 1u) != 0};
  }
};

template <class T, Step kStep, bool kIn, bool kOut>
void carry_step(Context& c, const Inst& in, std::uint32_t mask) {
  constexpr bool kThree = kStep == Step::kMulLow || kStep == Step::kMulHigh;
  auto* d = c.row<Slot<T>>(in.op[0]);
  const auto* a = c.row<const Slot<T>>(in.op[1]);
  const auto* b = c.row<const Slot<T>>(in.op[2]);
  const auto* e = kThree ? c.row<const Slot<T>>(in.op[3]) : b;
  std::uint32_t carry = 0;
  for (int i = 0; i < kLanes; ++i) {
    if (((mask >> i) & 1u) == 0) continue;
    const auto sum = Sum<T, kStep>::of(static_cast<T>(a[i]), static_cast<T>(b[i]),
                                       static_cast<T>(e[i]), kIn && ((c.carry >> i) & 1u) != 0);
    d[i] = pack<T>(sum.value);
    carry |= static_cast<std::uint32_t>(sum.carry) << i;
  }
  if (kOut) c.carry = (c.carry & ~mask) | carry;
}

template <class T>
void add_type(const KernelSink& s, const char* type) {
  s.add("add", "cc", type, &carry_step<T, Step::kAdd, false, true>);
  s.add("addc", "", type, &carry_step<T, Step::kAdd, true, false>);
  s.add("addc", "cc", type, &carry_step<T, Step::kAdd, true, true>);
  s.add("sub", "cc", type, &carry_step<T, Step::kSub, false, true>);
  s.add("subc", "", type, &carry_step<T, Step::kSub, true, false>);
  s.add("subc", "cc", type, &carry_step<T, Step::kSub, true, true>);
  s.add("mad", "lo.cc", type, &carry_step<T, Step::kMulLow, false, true>);
  s.add("mad", "hi.cc", type, &carry_step<T, Step::kMulHigh, false, true>);
  s.add("madc", "lo", type, &carry_step<T, Step::kMulLow, true, false>);
  s.add("madc", "lo.cc", type, &carry_step<T, Step::kMulLow, true, true>);
  s.add("madc", "hi", type, &carry_step<T, Step::kMulHigh, true, false>);
  s.add("madc", "hi.cc", type, &carry_step<T, Step::kMulHigh, true, true>);
}

}  // namespace

void add_carry_kernels(const KernelSink& sink) {
  add_type<std::uint32_t>(sink, "u32");
  add_type<std::int32_t>(sink, "s32");
  add_type<std::uint64_t>(sink, "u64");
  add_type<std::int64_t>(sink, "s64");
}

}  // namespace mxfa::emu::exec::MXEMU_ISA
