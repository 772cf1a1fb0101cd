#include "exec/convert.h"

#include <bit>
#include <cstring>

namespace mxfa::emu::exec {
namespace {

bool is_subnormal_f32(NumberFormat format, std::uint64_t bits) {
  return format == NumberFormat::kF32 && (bits & 0x7F800000u) == 0;
}

std::uint64_t nan_integer(NumberFormat from, NumberFormat to) {
  const int bits = format_bits(to);
  if (from != NumberFormat::kF64 && bits != 64) return 0;
  return std::uint64_t{1} << (bits - 1);
}

std::uint64_t clamp_integer(NumberFormat to, const Unpacked& value) {
  return round_to_integer(to, value, Rounding::kZero, 0);
}

std::uint64_t to_float(const ConvertSpec& spec, Unpacked value, std::uint32_t random) {
  if ((spec.flags & ConvertSpec::kIntegral) != 0) value = round_integral(value, spec.mode);
  if ((spec.flags & ConvertSpec::kRelu) != 0 && value.negative && !value.nan) value = Unpacked{};
  if ((spec.flags & ConvertSpec::kSaturate) != 0) {
    if (value.nan || value.negative) value = Unpacked{};
    if (value.infinity) value = Unpacked{false, false, false, 1, 0};
  }
  RoundingRule rule{spec.mode, (spec.flags & ConvertSpec::kFinite) != 0, random, 0};
  if (spec.mode == Rounding::kStochastic) {
    rule.random_bits = 16;
  }
  std::uint64_t bits = round_to(spec.to, value, rule);
  if ((spec.flags & ConvertSpec::kSaturate) != 0) {
    const std::uint64_t one = round_to(spec.to, Unpacked{false, false, false, 1, 0}, {});
    if (bits > one) bits = one;  // non-negative floats compare as integers
  }
  if ((spec.flags & ConvertSpec::kFlush) != 0 && is_subnormal_f32(spec.to, bits)) {
    bits &= 0x80000000u;
  }
  return bits;
}

std::uint64_t load(const std::byte* row, int lane, std::uint8_t slot) {
  std::uint64_t value = 0;
  std::memcpy(&value, row + static_cast<std::size_t>(lane) * slot, slot);
  return value;
}

void store(std::byte* row, int lane, std::uint8_t slot, std::uint64_t value) {
  std::memcpy(row + static_cast<std::size_t>(lane) * slot, &value, slot);
}

std::uint64_t convert_lane(const ConvertSpec& spec, const std::byte* const* sources, int lane) {
  const std::uint64_t first = load(sources[0], lane, spec.from_slot);
  const int to_bits = spec.to == NumberFormat::kE2M1 ? 4 : format_bits(spec.to);
  const int from_bits = spec.from == NumberFormat::kE2M1 ? 4 : format_bits(spec.from);
  switch (spec.shape) {
    case ConvertShape::kOne:
      return convert(spec, first, 0);
    case ConvertShape::kJoin: {
      const std::uint64_t second = load(sources[1], lane, spec.from_slot);
      const std::uint32_t random = spec.mode == Rounding::kStochastic
                                       ? static_cast<std::uint32_t>(load(sources[2], lane, 4))
                                       : 0;
      return convert(spec, first, random >> 16) << to_bits |
             convert(spec, second, random & 0xFFFFu);
    }
    case ConvertShape::kEach: {
      const std::uint64_t low = first & ((std::uint64_t{1} << from_bits) - 1);
      return convert(spec, first >> from_bits, 0) << to_bits | convert(spec, low, 0);
    }
    case ConvertShape::kFour:
      break;
  }
  const auto random = static_cast<std::uint32_t>(load(sources[4], lane, 4));
  std::uint64_t result = 0;
  for (int i = 0; i < 4; ++i) {
    // The ISA leaves open how elements share the bits; pairs take one half each here.
    const std::uint32_t part = i % 2 == 0 ? random >> 16 : random & 0xFFFFu;
    result = result << to_bits | convert(spec, load(sources[i], lane, spec.from_slot), part);
  }
  return result;
}

}  // namespace

std::uint64_t convert(const ConvertSpec& spec, std::uint64_t bits, std::uint32_t random) {
  if ((spec.flags & ConvertSpec::kFlush) != 0 && is_subnormal_f32(spec.from, bits)) {
    bits &= 0x80000000u;
  }
  const Unpacked value = unpack(spec.from, bits);
  if (!is_integer(spec.to)) return to_float(spec, value, random);
  std::uint64_t result = 0;
  if (!is_integer(spec.from)) {
    result = round_to_integer(spec.to, value, spec.mode, nan_integer(spec.from, spec.to));
  } else if ((spec.flags & ConvertSpec::kSaturate) != 0) {
    result = clamp_integer(spec.to, value);
  } else {
    result = value.negative ? 0 - value.significand : value.significand;
  }
  const int unused = 64 - format_bits(spec.to);
  if (is_signed_integer(spec.to)) {
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(result << unused) >> unused);
  }
  return result << unused >> unused;
}

void convert_lanes(Context& c, const ir::Inst& in, std::uint32_t mask) {
  const auto spec = std::bit_cast<ConvertSpec>(in.imm);
  auto* d = c.row<std::byte>(in.op[0]);
  const std::byte* sources[5];
  for (int i = 0; i < 5; ++i) {
    sources[i] = in.op[i + 1] == ir::kNoOperand ? nullptr : c.row<const std::byte>(in.op[i + 1]);
  }
  for (int i = 0; i < kLanes; ++i) {
    if ((mask >> i) & 1u) store(d, i, spec.to_slot, convert_lane(spec, sources, i));
  }
}

}  // namespace mxfa::emu::exec
