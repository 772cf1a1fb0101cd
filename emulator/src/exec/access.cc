#include "exec/access.h"

#include <fmt/format.h>

#include <bit>
#include <string_view>

#include "exec/observer.h"

namespace mxfa::emu::exec {
namespace {

using ir::Inst;

struct Request {
  Warp& warp;
  const Inst& in;
  std::uint32_t mask;
  std::uint32_t bytes;
  Access access;

  bool reads() const { return access != Access::kWrite; }
  bool writes() const { return access != Access::kRead; }
  [[noreturn]] void fail(int lane, const std::string& reason, Fault fault = Fault::kAddress) const {
    warp.fail(in, 1u << lane, reason, fault);
  }
};

template <class Visit>
void for_lanes(std::uint32_t mask, const Visit& visit) {
  for (; mask != 0; mask &= mask - 1) visit(std::countr_zero(mask));
}

void check_alignment(const Request& r, const std::uint64_t (&address)[kLanes]) {
  std::uint64_t low = 0;
  if (r.mask == kFullMask) {
    for (int i = 0; i < kLanes; ++i) low |= address[i];
  } else {
    for_lanes(r.mask, [&](int lane) { low |= address[lane]; });
  }
  if ((low & (r.bytes - 1)) == 0) return;
  for_lanes(r.mask, [&](int lane) {
    if ((address[lane] & (r.bytes - 1)) != 0) {
      r.fail(lane, fmt::format("misaligned address 0x{:x} for {} bytes", address[lane], r.bytes),
             Fault::kAlignment);
    }
  });
}

bool is_contiguous(const Request& r, const std::uint64_t (&address)[kLanes]) {
  if (r.mask != kFullMask) return false;
  std::uint64_t differs = 0;
  for (int i = 0; i < kLanes; ++i) {
    differs |= address[i] ^ (address[0] + static_cast<std::uint64_t>(i) * r.bytes);
  }
  return differs == 0;
}

void check_region(const Request& r, const mem::Region& region, int lane, std::uint64_t address,
                  std::uint64_t bytes) {
  if (!region.contains(address, bytes)) {
    r.fail(lane, fmt::format("access of {} bytes at {}, past its end", r.bytes,
                             mem::describe_address(*r.warp.cta().launch.memory, address)));
  }
  if (r.writes() && !region.writable) {
    r.fail(lane, fmt::format("write to read-only memory '{}'", region.name));
  }
}

void track(const Request& r, mem::InitMap& init, int lane, std::uint64_t offset,
           std::uint64_t bytes, std::string_view where) {
  if (r.reads() && r.warp.cta().launch.checks.uninitialised && !init.all(offset, bytes)) {
    const std::string what =
        fmt::format("read of {} bytes that nobody wrote, at byte {} of {}", r.bytes, offset, where);
    Observer* observer = r.warp.cta().launch.observer;
    if (observer == nullptr || !observer->uninitialised(&r.warp, &r.in, what)) {
      r.fail(lane, what, Fault::kProgram);
    }
  }
  if (r.writes()) init.mark(offset, bytes);
}

mem::Region& region_of(const Request& r, int lane, std::uint64_t address) {
  mem::Region* region = r.warp.last_region;
  if (region == nullptr || !region->contains(address, 1)) {
    region = mem::find_region(*r.warp.cta().launch.memory, address);
    if (region == nullptr) {
      r.fail(lane, fmt::format("access of {} bytes outside of every buffer, at {}", r.bytes,
                               mem::describe_address(*r.warp.cta().launch.memory, address)));
    }
    r.warp.last_region = region;
  }
  return *region;
}

// The whole warp's range at once: marks it and returns true, or leaves errors to the lanes.
bool fits(const Request& r, bool inside, mem::InitMap* init, std::uint64_t offset,
          std::uint64_t bytes) {
  if (!inside) return false;
  if (init == nullptr) return true;
  if (r.reads() && r.warp.cta().launch.checks.uninitialised && !init->all(offset, bytes)) {
    return false;
  }
  if (r.writes()) init->mark(offset, bytes);
  return true;
}

void resolve_global_lane(const Request& r, int lane, std::uint64_t address, std::uint64_t bytes,
                         LanePointers& out) {
  mem::Region& region = region_of(r, lane, address);
  check_region(r, region, lane, address, bytes);
  if (region.tracked) track(r, region.init, lane, address - region.begin, bytes, region.name);
  out.lane[lane] = reinterpret_cast<std::byte*>(address);
}

// All lanes somewhere in one buffer; false, with nothing marked, leaves errors to the lanes.
bool resolve_scattered(const Request& r, const std::uint64_t (&address)[kLanes],
                       LanePointers& out) {
  if (r.mask != kFullMask) return false;
  mem::Region& region = region_of(r, 0, address[0]);
  if (r.bytes > region.size || (r.writes() && !region.writable)) return false;
  bool inside = true;
  for (const std::uint64_t one : address) inside &= one - region.begin <= region.size - r.bytes;
  if (!inside) return false;
  if (region.tracked && r.reads() && r.warp.cta().launch.checks.uninitialised) {
    for (const std::uint64_t one : address) {
      if (!region.init.all(one - region.begin, r.bytes)) return false;
    }
  }
  for (int i = 0; i < kLanes; ++i) out.lane[i] = reinterpret_cast<std::byte*>(address[i]);
  if (region.tracked && r.writes()) {
    for (const std::uint64_t one : address) region.init.mark(one - region.begin, r.bytes);
  }
  return true;
}

void resolve_global(const Request& r, const std::uint64_t (&address)[kLanes], LanePointers& out) {
  if (out.contiguous) {
    const std::uint64_t bytes = std::uint64_t{r.bytes} * kLanes;
    mem::Region& region = region_of(r, 0, address[0]);
    if (fits(r, region.contains(address[0], bytes) && (region.writable || !r.writes()),
             region.tracked ? &region.init : nullptr, address[0] - region.begin, bytes)) {
      out.lane[0] = reinterpret_cast<std::byte*>(address[0]);
      return;
    }
    out.contiguous = false;
  }
  if (resolve_scattered(r, address, out)) return;
  for_lanes(r.mask, [&](int lane) { resolve_global_lane(r, lane, address[lane], r.bytes, out); });
}

void check_no_barrier(const Request& r, const Cta& cta, int lane, std::uint64_t offset,
                      std::uint64_t bytes) {
  if (!r.writes() || cta.mbarriers.size() == 0) return;
  const auto hit = cta.mbarriers.overlapping(static_cast<std::uint32_t>(offset),
                                             static_cast<std::uint32_t>(bytes));
  if (hit) {
    r.fail(lane, fmt::format("ordinary write to the live mbarrier at shared offset {}", *hit),
           Fault::kProgram);
  }
}

void resolve_shared_lane(const Request& r, int lane, std::uint64_t address, std::uint64_t bytes,
                         LanePointers& out) {
  Cta& own = r.warp.cta();
  const auto rank = static_cast<std::uint32_t>(address >> mem::kRankShift);
  Cta* cta = rank == own.rank ? &own : own.cluster.find(rank);
  if (cta == nullptr || (address >> 32) != 0) {
    r.fail(lane, fmt::format("shared address 0x{:x} of no block of the cluster", address));
  }
  if (cta->exited()) r.fail(lane, "access to the shared memory of a block that has exited");
  const std::uint64_t offset = address & mem::kOffsetMask;
  if (!cta->smem.contains(offset, bytes)) {
    r.fail(lane, fmt::format("access of {} bytes at shared offset {}, outside of {} bytes", r.bytes,
                             offset, cta->smem.size()));
  }
  check_no_barrier(r, *cta, lane, offset, bytes);
  track(r, cta->smem.init(), lane, offset, bytes, "shared memory");
  out.lane[lane] = cta->smem.data() + offset;
}

void resolve_shared(const Request& r, const std::uint64_t (&address)[kLanes], LanePointers& out) {
  if (out.contiguous) {
    const std::uint64_t bytes = std::uint64_t{r.bytes} * kLanes;
    Cta& own = r.warp.cta();
    const std::uint64_t offset = address[0] - own.shared_base();
    if (own.mbarriers.size() == 0 &&
        fits(r, own.smem.contains(offset, bytes), &own.smem.init(), offset, bytes)) {
      out.lane[0] = own.smem.data() + offset;
      return;
    }
    out.contiguous = false;
  }
  for_lanes(r.mask, [&](int lane) { resolve_shared_lane(r, lane, address[lane], r.bytes, out); });
}

void resolve_local_lane(const Request& r, int lane, std::uint64_t address, LanePointers& out) {
  const std::uint32_t size = r.warp.cta().launch.kernel->local_bytes;
  if (r.bytes > size || address > size - r.bytes) {
    r.fail(lane, fmt::format("access of {} bytes at local offset {}, outside of {} bytes", r.bytes,
                             address, size));
  }
  out.lane[lane] = r.warp.local(lane) + address;
}

void resolve_param_lane(const Request& r, int lane, std::uint64_t address, LanePointers& out) {
  const Launch& launch = r.warp.cta().launch;
  const auto begin = reinterpret_cast<std::uint64_t>(launch.params.data());
  const bool variable = (r.in.c & AccessFlags::kVariable) != 0;
  const std::uint64_t offset = variable ? address : address - begin;
  if (r.bytes > launch.params.size() || offset > launch.params.size() - r.bytes) {
    r.fail(lane, fmt::format("access of {} bytes outside of the parameters", r.bytes));
  }
  if (r.writes()) r.fail(lane, "write to kernel parameters");
  out.lane[lane] = const_cast<std::byte*>(launch.params.data()) + offset;
}

void resolve_generic(const Request& r, const std::uint64_t (&address)[kLanes], LanePointers& out) {
  std::uint64_t tags = 0;
  for_lanes(r.mask, [&](int lane) { tags |= address[lane] >> 56; });
  if (tags == 0) return resolve_global(r, address, out);
  constexpr std::uint64_t kAddress = (std::uint64_t{1} << 56) - 1;
  out.contiguous = false;
  for_lanes(r.mask, [&](int lane) {
    const std::uint64_t inside = address[lane] & kAddress;
    switch (static_cast<mem::Window>(mem::window_tag(address[lane]))) {
      case mem::Window::kGlobal:
        return resolve_global_lane(r, lane, address[lane], r.bytes, out);
      case mem::Window::kShared:
        return resolve_shared_lane(r, lane, inside, r.bytes, out);
      case mem::Window::kLocal:
        return resolve_local_lane(r, lane, inside, out);
    }
    r.fail(lane, fmt::format("generic address 0x{:x} of no window", address[lane]));
  });
}

void resolve_space(const Request& r, LanePointers& out) {
  Warp& warp = r.warp;
  const Inst& in = r.in;
  alignas(64) std::uint64_t address[kLanes];
  lane_addresses(warp, in, address);
  check_alignment(r, address);
  out.contiguous = is_contiguous(r, address);
  switch (static_cast<MemorySpace>(in.a)) {
    case MemorySpace::kGlobal:
    case MemorySpace::kConst:
      return resolve_global(r, address, out);
    case MemorySpace::kShared:
      return resolve_shared(r, address, out);
    case MemorySpace::kLocal:
      out.contiguous = false;
      return for_lanes(r.mask, [&](int lane) { resolve_local_lane(r, lane, address[lane], out); });
    case MemorySpace::kParam:
      out.contiguous = false;
      return for_lanes(r.mask, [&](int lane) { resolve_param_lane(r, lane, address[lane], out); });
    case MemorySpace::kGeneric:
      return resolve_generic(r, address, out);
  }
}

}  // namespace

void lane_addresses(const Warp& warp, const Inst& in, std::uint64_t (&address)[kLanes]) {
  const auto offset = static_cast<std::uint64_t>(in.imm);
  if ((in.c & AccessFlags::kVariable) != 0) {
    const bool shared = static_cast<MemorySpace>(in.a) == MemorySpace::kShared;
    const std::uint64_t value = offset + (shared ? warp.cta().shared_base() : 0);
    for (std::uint64_t& lane : address) lane = value;
  } else if ((in.c & AccessFlags::kWideAddress) != 0) {
    const auto* row = warp.row<const std::uint64_t>(in.op[1]);
    for (int i = 0; i < kLanes; ++i) address[i] = row[i] + offset;
  } else {
    const auto* row = warp.row<const std::uint32_t>(in.op[1]);
    for (int i = 0; i < kLanes; ++i) {
      address[i] = static_cast<std::uint32_t>(row[i] + static_cast<std::uint32_t>(offset));
    }
  }
}

void resolve(Warp& warp, const Inst& in, std::uint32_t mask, std::uint32_t bytes, Access access,
             LanePointers& out) {
  resolve_space({warp, in, mask, bytes, access}, out);
  if (Observer* observer = warp.cta().launch.observer) {
    observer->access({warp, in, mask, bytes, access, out});
  }
}

std::byte* shared_pointer(Cta& cta, std::uint64_t address, std::uint32_t bytes) {
  const auto rank = static_cast<std::uint32_t>(address >> mem::kRankShift);
  Cta* target = (address >> 32) != 0 ? nullptr : cta.cluster.find(rank);
  const std::uint64_t offset = address & mem::kOffsetMask;
  if (target == nullptr || !target->smem.contains(offset, bytes)) return nullptr;
  return target->smem.data() + offset;
}

}  // namespace mxfa::emu::exec
