#include <bit>
#include <chrono>
#include <cstring>

#include "exec/handlers.h"
#include "exec/machine.h"

/// Special registers, predicate logic, packs and unpacks, addresses of the cluster. PTX ISA 9.0,
/// sections 9.7.9 (mov, mapa, isspacep) and 10.
namespace mxfa::emu::exec {
namespace {

using ir::Inst;

template <class Visit>
void for_lanes(std::uint32_t mask, const Visit& visit) {
  for (; mask != 0; mask &= mask - 1) visit(std::countr_zero(mask));
}

Warp& warp_of(Context& c) { return static_cast<Warp&>(c); }

Dim3 thread_index(const Warp& warp, int lane) {
  const Dim3& block = warp.cta().launch.block;
  const std::uint32_t thread = warp.index() * kLanes + static_cast<std::uint32_t>(lane);
  return {thread % block[0], thread / block[0] % block[1], thread / block[0] / block[1]};
}

// Counts instructions, so that a run with the same seed reads the same clock.
std::uint64_t clock_of(const Warp& warp) {
  return warp.cta().cluster.progress.count + warp.executed();
}

std::uint64_t uniform_value(const Warp& warp, SpecialRegister id) {
  using enum SpecialRegister;
  const Cta& cta = warp.cta();
  const Launch& launch = cta.launch;
  const auto at = [&](SpecialRegister first) {
    return static_cast<std::size_t>(id) - static_cast<std::size_t>(first);
  };
  if (id >= kNtidX && id <= kNtidZ) return launch.block[at(kNtidX)];
  if (id >= kCtaidX && id <= kCtaidZ) return cta.ctaid[at(kCtaidX)];
  if (id >= kNctaidX && id <= kNctaidZ) return launch.grid[at(kNctaidX)];
  if (id >= kClusteridX && id <= kClusteridZ) return cta.cluster.id[at(kClusteridX)];
  if (id >= kNclusteridX && id <= kNclusteridZ) return launch.cluster_grid()[at(kNclusteridX)];
  if (id >= kClusterCtaidX && id <= kClusterCtaidZ) {
    const std::size_t i = at(kClusterCtaidX);
    return cta.ctaid[i] % launch.cluster[i];
  }
  if (id >= kClusterNctaidX && id <= kClusterNctaidZ) return launch.cluster[at(kClusterNctaidX)];
  switch (id) {
    case kWarpId:
      return warp.index();
    case kNwarpId:
      return cta.warps.size();
    case kSmId:
      return cta.cluster.index % 132;
    case kNsmId:
      return 132;
    case kGridId:
      return 1;
    case kClock:
    case kClock64:
      return clock_of(warp);
    case kClockHi:
      return clock_of(warp) >> 32;
    case kGlobalTimer:
    case kGlobalTimerLo:
      return clock_of(warp);
    case kGlobalTimerHi:
      return clock_of(warp) >> 32;
    case kClusterCtarank:
      return cta.rank;
    case kClusterNctarank:
      return cta.cluster.ctas.size();
    case kDynamicSmemSize:
      return launch.dynamic_shared;
    case kTotalSmemSize:
      return cta.smem.size();
    default:
      return 0;
  }
}

std::uint64_t lane_value(const Warp& warp, SpecialRegister id, int lane) {
  using enum SpecialRegister;
  const std::uint64_t bit = std::uint64_t{1} << lane;
  switch (id) {
    case kTidX:
      return thread_index(warp, lane)[0];
    case kTidY:
      return thread_index(warp, lane)[1];
    case kTidZ:
      return thread_index(warp, lane)[2];
    case kLaneId:
      return static_cast<std::uint64_t>(lane);
    case kLanemaskEq:
      return bit;
    case kLanemaskLe:
      return (bit << 1) - 1;
    case kLanemaskLt:
      return bit - 1;
    case kLanemaskGe:
      return kFullMask & ~(bit - 1);
    case kLanemaskGt:
      return kFullMask & ~((bit << 1) - 1);
    default:
      return uniform_value(warp, id);
  }
}

bool is_wide(SpecialRegister id) {
  return id == SpecialRegister::kGridId || id == SpecialRegister::kClock64 ||
         id == SpecialRegister::kGlobalTimer;
}

void copy_part(std::byte* to, const std::byte* from, std::uint8_t part_bits) {
  std::memcpy(to, from, part_bits / 8u);
}

}  // namespace

void read_special(Context& c, const Inst& in, std::uint32_t mask) {
  const Warp& warp = warp_of(c);
  const auto id = static_cast<SpecialRegister>(in.imm);
  for_lanes(mask, [&](int lane) {
    const std::uint64_t value = lane_value(warp, id, lane);
    if (is_wide(id)) {
      c.row<std::uint64_t>(in.op[0])[lane] = value;
    } else {
      c.row<std::uint32_t>(in.op[0])[lane] = static_cast<std::uint32_t>(value);
    }
  });
}

void shared_address(Context& c, const Inst& in, std::uint32_t mask) {
  const std::uint32_t value = warp_of(c).cta().shared_base() + static_cast<std::uint32_t>(in.imm);
  for_lanes(mask, [&](int lane) {
    if (in.a == 8) {
      c.row<std::uint64_t>(in.op[0])[lane] = value;
    } else {
      c.row<std::uint32_t>(in.op[0])[lane] = value;
    }
  });
}

void predicate_logic(Context& c, const Inst& in, std::uint32_t mask) {
  const std::uint32_t a = c.pred(in.op[1]);
  switch (static_cast<PredOp>(in.a)) {
    case PredOp::kAnd:
      return c.set_pred(in.op[0], a & c.pred(in.op[2]), mask);
    case PredOp::kOr:
      return c.set_pred(in.op[0], a | c.pred(in.op[2]), mask);
    case PredOp::kXor:
      return c.set_pred(in.op[0], a ^ c.pred(in.op[2]), mask);
    case PredOp::kNot:
      return c.set_pred(in.op[0], ~a, mask);
    case PredOp::kMov:
      return c.set_pred(in.op[0], a, mask);
  }
}

// Parts of less than 32 bits lie in 4-byte slots.
void pack_rows(Context& c, const Inst& in, std::uint32_t mask) {
  const std::int32_t* rows = warp_of(c).cta().launch.kernel->lists.data() + in.extra;
  const std::size_t part_slot = in.a == 64 ? 8 : 4;
  auto* d = c.row<std::byte>(in.op[0]);
  for_lanes(mask, [&](int lane) {
    const auto l = static_cast<std::size_t>(lane);
    std::byte value[16] = {};
    for (std::size_t i = 0; i < in.b; ++i) {
      copy_part(value + i * (in.a / 8u), c.row<const std::byte>(rows[i]) + l * part_slot, in.a);
    }
    std::memcpy(d + l * in.c, value, in.c);
  });
}

void unpack_rows(Context& c, const Inst& in, std::uint32_t mask) {
  const std::int32_t* rows = warp_of(c).cta().launch.kernel->lists.data() + in.extra;
  const std::size_t part_slot = in.a == 64 ? 8 : 4;
  const auto* source = c.row<const std::byte>(in.op[0]);
  for_lanes(mask, [&](int lane) {
    const auto l = static_cast<std::size_t>(lane);
    std::byte value[16];
    std::memcpy(value, source + l * in.c, in.c);
    for (std::size_t i = 0; i < in.b; ++i) {
      std::byte part[8] = {};
      copy_part(part, value + i * (in.a / 8u), in.a);
      std::memcpy(c.row<std::byte>(rows[i]) + l * part_slot, part, part_slot);
    }
  });
}

void move_128(Context& c, const Inst& in, std::uint32_t mask) {
  auto* d = c.row<std::byte>(in.op[0]);
  const auto* a = c.row<const std::byte>(in.op[1]);
  for_lanes(mask, [&](int lane) { std::memmove(d + 16 * lane, a + 16 * lane, 16); });
}

void map_address(Context& c, const Inst& in, std::uint32_t mask) {
  Warp& warp = warp_of(c);
  for_lanes(mask, [&](int lane) {
    const std::uint64_t address = in.a == 8 ? c.row<const std::uint64_t>(in.op[1])[lane]
                                            : c.row<const std::uint32_t>(in.op[1])[lane];
    const auto rank = static_cast<std::uint32_t>(address >> mem::kRankShift) & 0xFFu;
    if (in.b != 0) {  // getctarank
      c.row<std::uint32_t>(in.op[0])[lane] = rank;
      return;
    }
    const std::uint32_t wanted = c.row<const std::uint32_t>(in.op[2])[lane];
    if (warp.cta().cluster.find(wanted) == nullptr) {
      warp.fail(in, 1u << lane, "mapa to a block that the cluster does not have");
    }
    const std::uint64_t mapped = (address & ~(std::uint64_t{0xFF} << mem::kRankShift)) |
                                 std::uint64_t{wanted} << mem::kRankShift;
    if (in.a == 8) {
      c.row<std::uint64_t>(in.op[0])[lane] = mapped;
    } else {
      c.row<std::uint32_t>(in.op[0])[lane] = static_cast<std::uint32_t>(mapped);
    }
  });
}

void is_space(Context& c, const Inst& in, std::uint32_t mask) {
  std::uint32_t bits = 0;
  for_lanes(mask, [&](int lane) {
    const std::uint8_t tag = mem::window_tag(c.row<const std::uint64_t>(in.op[1])[lane]);
    const auto space = static_cast<MemorySpace>(in.a);
    const auto wanted = space == MemorySpace::kShared  ? mem::Window::kShared
                        : space == MemorySpace::kLocal ? mem::Window::kLocal
                                                       : mem::Window::kGlobal;
    if (tag == static_cast<std::uint8_t>(wanted)) bits |= 1u << lane;
  });
  c.set_pred(in.op[0], bits, mask);
}

}  // namespace mxfa::emu::exec
