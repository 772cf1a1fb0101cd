#include <bit>
#include <cmath>
#include <cstring>

#include "exec/access.h"
#include "exec/soft_float.h"

/// atom and red. Lanes go one after the other, in ascending order; each step is a compare-and-swap
/// on host memory, since other CTAs may run on other threads. PTX ISA 9.0, section 9.7.13.
namespace mxfa::emu::exec {
namespace {

using ir::Inst;

template <class T>
T integer_result(AtomicOp op, T old, T value, T compare) {
  switch (op) {
    case AtomicOp::kAdd:
      return static_cast<T>(static_cast<std::uint64_t>(old) + static_cast<std::uint64_t>(value));
    case AtomicOp::kMin:
      return old < value ? old : value;
    case AtomicOp::kMax:
      return old > value ? old : value;
    case AtomicOp::kAnd:
      return static_cast<T>(old & value);
    case AtomicOp::kOr:
      return static_cast<T>(old | value);
    case AtomicOp::kXor:
      return static_cast<T>(old ^ value);
    case AtomicOp::kExch:
      return value;
    case AtomicOp::kInc:
      return old >= value ? T{0} : static_cast<T>(old + 1);
    case AtomicOp::kDec:
      return old == 0 || old > value ? value : static_cast<T>(old - 1);
    case AtomicOp::kCas:
      return old == compare ? value : old;
  }
  return old;
}

double decode(NumberFormat format, std::uint32_t bits) {
  const Unpacked u = unpack(format, bits & 0xFFFFu);
  if (u.nan) return std::nan("");
  const double value =
      u.infinity ? HUGE_VAL : std::ldexp(static_cast<double>(u.significand), u.exponent);
  return u.negative ? -value : value;
}

std::uint32_t short_float_result(NumberFormat format, AtomicOp op, std::uint32_t old,
                                 std::uint32_t value) {
  const double a = decode(format, old);
  const double b = decode(format, value);
  double r = a + b;
  if (op != AtomicOp::kAdd) {
    const bool less = a < b || (a == b && std::signbit(a));
    r = std::isnan(a) ? b : std::isnan(b) ? a : less == (op == AtomicOp::kMin) ? a : b;
  }
  return static_cast<std::uint32_t>(
      round_to(format, unpack(NumberFormat::kF64, std::bit_cast<std::uint64_t>(r)), {}));
}

std::uint32_t pair_result(NumberFormat format, AtomicOp op, std::uint32_t old,
                          std::uint32_t value) {
  return short_float_result(format, op, old & 0xFFFFu, value & 0xFFFFu) |
         short_float_result(format, op, old >> 16, value >> 16) << 16;
}

// atom.add.f32 on global memory flushes subnormals; on shared memory it does not.
std::uint32_t f32_result(std::uint32_t old, std::uint32_t value, bool flush) {
  const auto in = [&](std::uint32_t v) {
    return std::bit_cast<float>(flush && (v & 0x7F800000u) == 0 ? v & 0x80000000u : v);
  };
  const float sum = in(old) + in(value);
  if (std::isnan(sum)) return 0x7FFFFFFFu;
  return std::bit_cast<std::uint32_t>(in(std::bit_cast<std::uint32_t>(sum)));
}

struct Step {
  AtomicOp op;
  AtomicType type;
  bool flush;

  std::uint64_t operator()(std::uint64_t old, std::uint64_t value, std::uint64_t compare) const {
    using S32 = std::int32_t;
    using S64 = std::int64_t;
    const auto low = static_cast<std::uint32_t>(old);
    const auto with = static_cast<std::uint32_t>(value);
    switch (type) {
      case AtomicType::kU32:
        return integer_result(op, low, with, static_cast<std::uint32_t>(compare));
      case AtomicType::kS32:
        return static_cast<std::uint32_t>(
            integer_result(op, static_cast<S32>(low), static_cast<S32>(with), S32{0}));
      case AtomicType::kU64:
        return integer_result(op, old, value, compare);
      case AtomicType::kS64:
        return static_cast<std::uint64_t>(
            integer_result(op, static_cast<S64>(old), static_cast<S64>(value), S64{0}));
      case AtomicType::kB16:
        return integer_result(op, static_cast<std::uint16_t>(old),
                              static_cast<std::uint16_t>(value),
                              static_cast<std::uint16_t>(compare));
      case AtomicType::kF16:
        return short_float_result(NumberFormat::kF16, op, low, with);
      case AtomicType::kBF16:
        return short_float_result(NumberFormat::kBF16, op, low, with);
      case AtomicType::kF16x2:
        return pair_result(NumberFormat::kF16, op, low, with);
      case AtomicType::kBF16x2:
        return pair_result(NumberFormat::kBF16, op, low, with);
      case AtomicType::kF32:
        return f32_result(low, with, flush);
      case AtomicType::kF64:
        return std::bit_cast<std::uint64_t>(std::bit_cast<double>(old) +
                                            std::bit_cast<double>(value));
    }
    return old;
  }
};

std::uint32_t type_bytes(AtomicType type) {
  switch (type) {
    case AtomicType::kU64:
    case AtomicType::kS64:
    case AtomicType::kF64:
      return 8;
    case AtomicType::kB16:
    case AtomicType::kF16:
    case AtomicType::kBF16:
      return 2;
    default:
      return 4;
  }
}

template <class T>
std::uint64_t exchange(std::byte* at, const Step& step, std::uint64_t value,
                       std::uint64_t compare) {
  auto* memory = reinterpret_cast<T*>(at);
  T old = __atomic_load_n(memory, __ATOMIC_ACQUIRE);
  for (;;) {
    const T next = static_cast<T>(step(old, value, compare));
    if (__atomic_compare_exchange_n(memory, &old, next, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE)) {
      return old;
    }
  }
}

std::uint64_t read_lane(const Context& c, std::int32_t row, int lane, bool wide) {
  if (row == ir::kNoOperand) return 0;
  return wide ? c.row<const std::uint64_t>(row)[lane] : c.row<const std::uint32_t>(row)[lane];
}

}  // namespace

void atomic(Context& c, const Inst& in, std::uint32_t mask) {
  Warp& warp = static_cast<Warp&>(c);
  const auto type = static_cast<AtomicType>((in.extra >> 8) & 0xFFu);
  const std::uint32_t bytes = type_bytes(type);
  const bool wide = bytes == 8;
  LanePointers at;
  resolve(warp, in, mask, bytes * in.b, Access::kReadWrite, at);
  const std::int32_t* rows = warp.cta().launch.kernel->lists.data() + (in.extra >> 16);
  const Step step{static_cast<AtomicOp>(in.extra & 0xFFu), type,
                  static_cast<MemorySpace>(in.a) != MemorySpace::kShared};
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    std::byte* base =
        at.contiguous ? at.lane[0] + static_cast<std::size_t>(lane) * bytes * in.b : at.lane[lane];
    for (int i = 0; i < in.b; ++i) {
      std::byte* memory = base + static_cast<std::size_t>(i) * bytes;
      const std::uint64_t value = read_lane(c, rows[i], lane, wide);
      const std::uint64_t compare = read_lane(c, in.op[3], lane, wide);
      // cas: the list holds the value to compare with, op[3] the new one.
      const bool cas = step.op == AtomicOp::kCas;
      const std::uint64_t a = cas ? compare : value;
      const std::uint64_t b = cas ? value : 0;
      const std::uint64_t old = bytes == 8   ? exchange<std::uint64_t>(memory, step, a, b)
                                : bytes == 4 ? exchange<std::uint32_t>(memory, step, a, b)
                                             : exchange<std::uint16_t>(memory, step, a, b);
      if (in.op[0] == ir::kNoOperand) continue;
      if (wide) {
        c.row<std::uint64_t>(in.op[0])[lane] = old;
      } else {
        c.row<std::uint32_t>(in.op[0])[lane] = static_cast<std::uint32_t>(old);
      }
    }
  }
  warp.note_poll();
  ++warp.cta().cluster.progress.count;
}

}  // namespace mxfa::emu::exec
