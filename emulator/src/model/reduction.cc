#include "model/reduction.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "model/fault.h"
#include "mx/bits.h"

namespace mxfa::emu::model {
namespace {

bool is_bitwise(ReduceOp op) {
  return op == ReduceOp::kAnd || op == ReduceOp::kOr || op == ReduceOp::kXor;
}

constexpr unsigned bit(ReduceType type) { return 1u << static_cast<unsigned>(type); }
constexpr unsigned kInts32 = bit(ReduceType::kU32) | bit(ReduceType::kS32);
constexpr unsigned kHalves = bit(ReduceType::kF16) | bit(ReduceType::kBF16);
constexpr unsigned kU64Bit = bit(ReduceType::kU64);

unsigned valid_types(ReduceTarget target, ReduceOp op) {
  const bool remote = target == ReduceTarget::kSharedCluster;
  switch (op) {
    case ReduceOp::kAdd:
      if (remote) return kInts32 | kU64Bit;
      return kInts32 | kU64Bit | kHalves | bit(ReduceType::kF32) |
             bit(target == ReduceTarget::kGlobal ? ReduceType::kF64 : ReduceType::kF32Ftz);
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      if (remote) return kInts32;
      return kInts32 | kU64Bit | bit(ReduceType::kS64) | kHalves;
    case ReduceOp::kInc:
    case ReduceOp::kDec:
      return bit(ReduceType::kU32);
    default:
      return bit(ReduceType::kB32) | (remote ? 0u : bit(ReduceType::kB64));
  }
}

template <class T>
T reduce_int(ReduceOp op, T old, T value) {
  using Unsigned = std::make_unsigned_t<T>;
  switch (op) {
    case ReduceOp::kAdd:
      return static_cast<T>(static_cast<Unsigned>(old) + static_cast<Unsigned>(value));
    case ReduceOp::kMin:
      return old < value ? old : value;
    case ReduceOp::kMax:
      return old > value ? old : value;
    case ReduceOp::kInc:
      return old >= value ? T{0} : static_cast<T>(old + 1);
    case ReduceOp::kDec:
      return old == 0 || old > value ? value : static_cast<T>(old - 1);
    case ReduceOp::kAnd:
      return old & value;
    case ReduceOp::kOr:
      return old | value;
    case ReduceOp::kXor:
      return old ^ value;
  }
  return old;
}

float flush(float value) {
  const std::uint32_t bits = mx::float_bits(value);
  return (bits & 0x7F800000u) == 0 ? mx::bits_float(bits & 0x80000000u) : value;
}

float add_f32(float old, float value) {
  const float sum = old + value;
  return mx::is_nan(sum) ? mx::bits_float(0x7FFFFFFFu) : sum;
}
float add_f32_ftz(float old, float value) { return flush(add_f32(flush(old), flush(value))); }

/// f16 and bf16 widen exactly. One FP32 addition and a second rounding equal one rounding: FP32
/// has more than 2p+2 bits for both, and sums in the subnormal range are exact.
template <auto Decode, auto Encode>
std::uint16_t reduce_half(ReduceOp op, std::uint16_t old, std::uint16_t value) {
  const float x = Decode(old);
  const float y = Decode(value);
  if (op == ReduceOp::kAdd) {
    const float sum = x + y;
    return mx::is_nan(sum) ? std::uint16_t{0x7FFF} : Encode(sum);
  }
  if (mx::is_nan(x)) return mx::is_nan(y) ? std::uint16_t{0x7FFF} : value;
  if (mx::is_nan(y)) return old;
  const bool old_is_less = x < y || (x == y && std::signbit(x) && !std::signbit(y));
  return old_is_less == (op == ReduceOp::kMin) ? old : value;
}

template <class T, class Function>
void each(std::span<std::byte> destination, std::span<const std::byte> source, Function function) {
  for (std::size_t at = 0; at + sizeof(T) <= destination.size(); at += sizeof(T)) {
    T old;
    T value;
    std::memcpy(&old, destination.data() + at, sizeof(T));
    std::memcpy(&value, source.data() + at, sizeof(T));
    const T result = function(old, value);
    std::memcpy(destination.data() + at, &result, sizeof(T));
  }
}

}  // namespace

std::string_view reduce_op_name(ReduceOp op) {
  constexpr std::string_view kNames[] = {"add", "min", "max", "inc", "dec", "and", "or", "xor"};
  return kNames[static_cast<int>(op)];
}

std::string_view reduce_type_name(ReduceType type) {
  constexpr std::string_view kNames[] = {"u32", "s32",  "u64", "s64", "b32",    "b64",
                                         "f16", "bf16", "f32", "f64", "f32.ftz"};
  return kNames[static_cast<int>(type)];
}

std::size_t reduce_type_bytes(ReduceType type) {
  constexpr std::size_t kBytes[] = {4, 4, 8, 8, 4, 8, 2, 2, 4, 8, 4};
  return kBytes[static_cast<int>(type)];
}

ReduceType reduce_type_of(TensorType type, ReduceOp op) {
  switch (type) {
    case TensorType::kU32:
      return is_bitwise(op) ? ReduceType::kB32 : ReduceType::kU32;
    case TensorType::kS32:
      return is_bitwise(op) ? ReduceType::kB32 : ReduceType::kS32;
    case TensorType::kU64:
      return is_bitwise(op) ? ReduceType::kB64 : ReduceType::kU64;
    case TensorType::kS64:
      return is_bitwise(op) ? ReduceType::kB64 : ReduceType::kS64;
    case TensorType::kF16:
      return ReduceType::kF16;
    case TensorType::kBF16:
      return ReduceType::kBF16;
    case TensorType::kF32:
      return ReduceType::kF32;
    case TensorType::kF32Ftz:
      return ReduceType::kF32Ftz;
    case TensorType::kF64:
      return ReduceType::kF64;
    default:
      break;
  }
  fault("tensor reduction type", "a 32 or 64-bit integer, f16, bf16 or f32",
        std::string(tensor_type_name(type)));
}

void check_reduction(ReduceTarget target, ReduceOp op, ReduceType type) {
  if ((valid_types(target, op) & bit(type)) == 0) {
    fault(fmt::format("reduction .{} type", reduce_op_name(op)), "a combination of the ISA's table",
          fmt::format(".{}.{}", reduce_op_name(op), reduce_type_name(type)));
  }
}

void reduce_elements(ReduceOp op, ReduceType type, std::span<std::byte> destination,
                     std::span<const std::byte> source) {
  const auto integers = [op](auto old, auto value) { return reduce_int(op, old, value); };
  switch (type) {
    case ReduceType::kU32:
    case ReduceType::kB32:
      return each<std::uint32_t>(destination, source, integers);
    case ReduceType::kS32:
      return each<std::int32_t>(destination, source, integers);
    case ReduceType::kU64:
    case ReduceType::kB64:
      return each<std::uint64_t>(destination, source, integers);
    case ReduceType::kS64:
      return each<std::int64_t>(destination, source, integers);
    case ReduceType::kF16:
      return each<std::uint16_t>(destination, source, [op](std::uint16_t a, std::uint16_t b) {
        return reduce_half<mx::decode_f16, mx::encode_f16>(op, a, b);
      });
    case ReduceType::kBF16:
      return each<std::uint16_t>(destination, source, [op](std::uint16_t a, std::uint16_t b) {
        return reduce_half<mx::decode_bf16, mx::encode_bf16>(op, a, b);
      });
    case ReduceType::kF32:
      return each<float>(destination, source, add_f32);
    case ReduceType::kF32Ftz:
      return each<float>(destination, source, add_f32_ftz);
    case ReduceType::kF64:
      return each<double>(destination, source, [](double a, double b) { return a + b; });
  }
}

}  // namespace mxfa::emu::model
