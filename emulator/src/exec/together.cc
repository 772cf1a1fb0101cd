#include <algorithm>
#include <bit>
#include <cstring>

#include "exec/handlers.h"
#include "exec/machine.h"

/// Operations across the lanes of a warp. Lanes with the same member mask form a group; several
/// groups may meet in one instruction. PTX ISA 9.0, sections 9.7.9.6 and 9.7.13.
namespace mxfa::emu::exec {
namespace {

using ir::Inst;

/// What a lane gets from a lane that does not take part: the ISA leaves it open.
constexpr std::uint32_t kUndefined = 0xBADC0DEDu;

/// Calls visit(group) for each set of active lanes with equal member masks.
template <class Visit>
void for_groups(const std::uint32_t* members, std::uint32_t mask, const Visit& visit) {
  while (mask != 0) {
    const std::uint32_t first = members[std::countr_zero(mask)];
    std::uint32_t group = 0;
    for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      if (members[lane] == first) group |= 1u << lane;
    }
    visit(group);
    mask &= ~group;
  }
}

template <class Visit>
void for_lanes(std::uint32_t mask, const Visit& visit) {
  for (; mask != 0; mask &= mask - 1) visit(std::countr_zero(mask));
}

/// The source lane of shfl and whether it is in range; PTX ISA pseudocode of shfl.sync.
struct Source {
  int lane;
  bool in_range;
};
Source source_lane(ShflMode mode, int lane, std::uint32_t b, std::uint32_t c) {
  const auto segment = static_cast<int>((c >> 8) & 31u);
  const auto clamp = static_cast<int>(c & 31u);
  const auto value = static_cast<int>(b & 31u);
  const int least = lane & segment;
  const int most = least | (clamp & ~segment);
  int from = lane;
  bool in_range = false;
  switch (mode) {
    case ShflMode::kUp:
      from = lane - value;
      in_range = from >= most;
      break;
    case ShflMode::kDown:
      from = lane + value;
      in_range = from <= most;
      break;
    case ShflMode::kBfly:
      from = lane ^ value;
      in_range = from <= most;
      break;
    case ShflMode::kIdx:
      from = least | (value & ~segment);
      in_range = from <= most;
      break;
  }
  return {in_range ? from : lane, in_range};
}

float combine_float(ReduxOp op, float a, float b, bool nan_wins) {
  const bool a_nan = a != a;
  const bool b_nan = b != b;
  if (nan_wins && (a_nan || b_nan)) return a_nan ? a : b;
  if (a_nan) return b;
  if (b_nan) return a;
  if (a == b) return std::bit_cast<std::uint32_t>(a) >> 31 == (op == ReduxOp::kMin) ? a : b;
  return (a < b) == (op == ReduxOp::kMin) ? a : b;
}

std::uint32_t combine_integer(ReduxOp op, std::uint32_t a, std::uint32_t b, bool is_signed) {
  const bool less = is_signed ? static_cast<std::int32_t>(a) < static_cast<std::int32_t>(b) : a < b;
  switch (op) {
    case ReduxOp::kAdd:
      return a + b;
    case ReduxOp::kMin:
      return less ? a : b;
    case ReduxOp::kMax:
      return less ? b : a;
    case ReduxOp::kAnd:
      return a & b;
    case ReduxOp::kOr:
      return a | b;
    default:
      return a ^ b;
  }
}

std::uint32_t reduce(const Inst& in, const std::uint32_t* values, std::uint32_t group) {
  const auto op = static_cast<ReduxOp>(in.a);
  const bool is_float = (in.b & ReduxFlags::kFloat) != 0;
  std::uint32_t result = 0;
  bool first = true;
  for_lanes(group, [&](int lane) {
    std::uint32_t value = values[lane];
    if ((in.b & ReduxFlags::kAbs) != 0) value &= 0x7FFFFFFFu;
    if (first) {
      result = value;
    } else if (is_float) {
      result = std::bit_cast<std::uint32_t>(combine_float(op, std::bit_cast<float>(result),
                                                          std::bit_cast<float>(value),
                                                          (in.b & ReduxFlags::kNan) != 0));
    } else {
      result = combine_integer(op, result, value, (in.b & ReduxFlags::kSigned) != 0);
    }
    first = false;
  });
  return is_float && (result & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FFFFFFFu : result;
}

}  // namespace

void shuffle(Context& c, const Inst& in, std::uint32_t mask) {
  auto* d = c.row<std::uint32_t>(in.op[0]);
  const auto* a = c.row<const std::uint32_t>(in.op[2]);
  const auto* b = c.row<const std::uint32_t>(in.op[3]);
  const auto* control = c.row<const std::uint32_t>(in.op[4]);
  const auto* members = c.row<const std::uint32_t>(in.op[5]);
  std::uint32_t values[kLanes];
  std::memcpy(values, a, sizeof(values));
  std::uint32_t in_range = 0;
  for_lanes(mask, [&](int lane) {
    const Source from = source_lane(static_cast<ShflMode>(in.a), lane, b[lane], control[lane]);
    const bool takes_part = ((mask & members[lane]) >> from.lane & 1u) != 0;
    d[lane] = takes_part ? values[from.lane] : kUndefined;
    if (from.in_range) in_range |= 1u << lane;
  });
  c.set_pred(in.op[1], in_range, mask);
}

void vote(Context& c, const Inst& in, std::uint32_t mask) {
  const auto mode = static_cast<VoteMode>(in.a);
  const std::uint32_t p = c.pred(in.op[1]);
  for_groups(c.row<const std::uint32_t>(in.op[2]), mask, [&](std::uint32_t group) {
    const std::uint32_t ballot = p & group;
    if (mode == VoteMode::kBallot) {
      auto* d = c.row<std::uint32_t>(in.op[0]);
      return for_lanes(group, [&](int lane) { d[lane] = ballot; });
    }
    const bool all = ballot == group;
    const bool any = ballot != 0;
    const bool result = mode == VoteMode::kAll ? all : mode == VoteMode::kAny ? any : all || !any;
    c.set_pred(in.op[0], result ? kFullMask : 0, group);
  });
}

void match(Context& c, const Inst& in, std::uint32_t mask) {
  const bool all = in.a != 0;
  auto* d = c.row<std::uint32_t>(in.op[0]);
  const std::int32_t source = in.op[all ? 2 : 1];
  const auto value = [&](int lane) {
    return in.b == 8 ? c.row<const std::uint64_t>(source)[lane]
                     : c.row<const std::uint32_t>(source)[lane];
  };
  for_groups(c.row<const std::uint32_t>(in.op[all ? 3 : 2]), mask, [&](std::uint32_t group) {
    std::uint32_t equal[kLanes] = {};
    for_lanes(group, [&](int lane) {
      for_lanes(group, [&](int other) {
        if (value(lane) == value(other)) equal[lane] |= 1u << other;
      });
    });
    const bool same = equal[std::countr_zero(group)] == group;
    for_lanes(group, [&](int lane) { d[lane] = all ? (same ? group : 0) : equal[lane]; });
    if (all) c.set_pred(in.op[1], same ? kFullMask : 0, group);
  });
}

void active_mask(Context& c, const Inst& in, std::uint32_t mask) {
  auto* d = c.row<std::uint32_t>(in.op[0]);
  for_lanes(mask, [&](int lane) { d[lane] = mask; });
}

// The lowest lane, as hardware does; the ISA lets it be any.
void elect(Context& c, const Inst& in, std::uint32_t mask) {
  for_groups(c.row<const std::uint32_t>(in.op[2]), mask, [&](std::uint32_t group) {
    const int leader = std::countr_zero(group);
    auto* d = c.row<std::uint32_t>(in.op[0]);
    for_lanes(group, [&](int lane) { d[lane] = static_cast<std::uint32_t>(leader); });
    c.set_pred(in.op[1], 1u << leader, group);
  });
}

void redux(Context& c, const Inst& in, std::uint32_t mask) {
  auto* d = c.row<std::uint32_t>(in.op[0]);
  const auto* a = c.row<const std::uint32_t>(in.op[1]);
  for_groups(c.row<const std::uint32_t>(in.op[2]), mask, [&](std::uint32_t group) {
    const std::uint32_t result = reduce(in, a, group);
    for_lanes(group, [&](int lane) { d[lane] = result; });
  });
}

}  // namespace mxfa::emu::exec
