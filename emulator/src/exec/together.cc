#include <algorithm>
#include <bit>
#include <span>

#include "exec/handlers.h"
#include "exec/machine.h"
#include "model/warp_ops.h"

/// Operations across the lanes of a warp, but for shfl (lanes/together.cc). Lanes with the same
/// member mask form a group; several groups may meet in one instruction. PTX ISA 9.0, sections
/// 9.7.9.6 and 9.7.13.
namespace mxfa::emu::exec {
namespace {

using ir::Inst;

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

std::uint32_t reduce(const Inst& in, const std::uint32_t* values, std::uint32_t group) {
  const std::span<const std::uint32_t, kLanes> lanes(values, kLanes);
  const auto op = static_cast<model::ReduxOp>(in.a);
  if ((in.b & ReduxFlags::kFloat) != 0) {
    return model::redux_f32(op == model::ReduxOp::kMax, (in.b & ReduxFlags::kAbs) != 0,
                            (in.b & ReduxFlags::kNan) != 0, lanes, group);
  }
  return model::redux_int(op, (in.b & ReduxFlags::kSigned) != 0, lanes, group);
}

}  // namespace

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
