#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "check/checker.h"
#include "exec/handlers.h"

/// From records to words.
namespace mxfa::emu::check {
namespace {

std::string role_name(std::uint8_t role) {
  std::string text;
  const auto add = [&](std::uint8_t bit, const char* name) {
    if ((role & bit) != 0) text += fmt::format("{}{}", text.empty() ? "" : "+", name);
  };
  add(Role::kLoads, "load");
  add(Role::kMatrix, "MMA");
  add(Role::kStores, "store");
  add(Role::kCopies, "copy");
  add(Role::kTensorMemory, "TMEM");
  return text;
}

std::string lanes_text(std::uint32_t mask) {
  if (mask == 0 || mask == 0xFFFFFFFFu) return {};
  if (std::has_single_bit(mask)) return fmt::format(", lane {}", std::countr_zero(mask));
  return fmt::format(", lanes 0x{:08x}", mask);
}

std::uint32_t lanes_of(const AccessRecord& record) {
  std::uint32_t lanes = 0;
  for (int unit = 0; unit < 4; ++unit) {
    if ((record.units >> unit) & 1) lanes |= record.lane_mask(unit);
  }
  return lanes;
}

}  // namespace

std::string Checker::cta_name(std::uint32_t cluster, std::uint32_t rank) const {
  const exec::Dim3 grid = launch_.cluster_grid();
  const exec::Dim3& size = launch_.cluster;
  const exec::Dim3 at{cluster % grid[0] * size[0] + rank % size[0],
                      cluster / grid[0] % grid[1] * size[1] + rank / size[0] % size[1],
                      cluster / grid[0] / grid[1] * size[2] + rank / size[0] / size[1]};
  return fmt::format("block ({},{},{})", at[0], at[1], at[2]);
}

std::string Checker::warp_name(std::uint32_t cluster, std::uint32_t warp) const {
  const auto of_block = static_cast<std::uint32_t>((exec::volume(launch_.block) + 31) / 32);
  const std::string role = role_name(roles_[cluster][warp]);
  return fmt::format("{}, warp {}{}", cta_name(cluster, warp / of_block), warp % of_block,
                     role.empty() ? "" : " (" + role + ")");
}

std::string Checker::who(const exec::Warp& warp, std::uint32_t mask) const {
  const exec::Cta& cta = warp.cta();
  const auto of_block = static_cast<std::uint32_t>(cta.warps.size());
  return warp_name(static_cast<std::uint32_t>(cta.cluster.index),
                   cta.rank * of_block + warp.index()) +
         lanes_text(mask);
}

std::string Checker::who(const AccessRecord& record) const {
  const Agent& agent = agents_[record.cluster][record.agent];
  const bool of_warp =
      agent.kind == AgentKind::kTensorLoads || agent.kind == AgentKind::kTensorStores;
  if (of_warp) return warp_name(record.cluster, agent.place);
  if (agent.kind == AgentKind::kTensorPipe) {
    return warp_name(record.cluster, agent.place / kLanes) +
           lanes_text(1u << (agent.place % kLanes));
  }
  if (record.has(AccessRecord::kNoLanes)) {
    const std::uint32_t lane = record.lanes >> 16;
    return "asynchronous work of " + warp_name(record.cluster, record.lanes & 0xFFFF) +
           (lane < kLanes ? lanes_text(1u << lane) : "");
  }
  const char* whose = agent.kind == AgentKind::kThreads ? "" : "asynchronous work of ";
  return whose + warp_name(record.cluster, agent.place) + lanes_text(lanes_of(record));
}

std::string Checker::what(const AccessRecord& record, bool writes) const {
  const char* access = record.has(AccessRecord::kStrong) ? (writes ? "atomic" : "strong read")
                       : writes                          ? "write"
                                                         : "read";
  switch (agents_[record.cluster][record.agent].kind) {
    case AgentKind::kThreads:
      return access;
    case AgentKind::kCopies:
      return fmt::format("{} of cp.async", access);
    case AgentKind::kBulkReads:
    case AgentKind::kBulkWrites:
      return fmt::format("{} of a bulk store", access);
    case AgentKind::kWgmma:
      return fmt::format("{} of wgmma", access);
    case AgentKind::kTensorPipe:
      return fmt::format("{} of {}", access, record.lanes == 0 ? "tcgen05.cp" : "tcgen05.mma");
    case AgentKind::kTensorLoads:
      return "read of tcgen05.ld";
    case AgentKind::kTensorStores:
      return "write of tcgen05.st";
    default:
      return fmt::format("{} of a copy that completes at an mbarrier", access);
  }
}

std::string Checker::missing(const Conflict& conflict) const {
  const AccessRecord& first = conflict.first;
  const AccessRecord& second = conflict.second;
  switch (conflict.order) {
    case Order::kIssueOrder:
      return "a wait for a commit between them: nothing but the order of issue orders these two";
    case Order::kExecutionOrder:
      return "memory order: barrier.cluster.arrive.relaxed has none (drop .relaxed, or a fence "
             "before it)";
    case Order::kNoBeforeFence:
      return "tcgen05.fence::before_thread_sync between the first (or its wait) and what "
             "synchronises";
    case Order::kNoAfterFence:
      return "tcgen05.fence::after_thread_sync between the wait and the issue of the second";
    default:
      break;
  }
  if (conflict.order != Order::kUnordered) {
    const bool owner = conflict.order == Order::kUnfencedByOwner;
    return fmt::format("fence.proxy.async by the thread of the first access, before it {}{}",
                       "synchronises with the second",
                       owner ? " (only another thread on the way has one)" : "");
  }
  const Agent& agent = agents_[first.cluster][first.agent];
  switch (agent.kind) {
    case AgentKind::kCopies:
      return "cp.async.wait_group by the same thread (or a wait for the mbarrier that its copies "
             "arrive at), then a barrier to the second";
    case AgentKind::kBulkReads:
      return "cp.async.bulk.wait_group.read by the same thread, then a barrier to the second";
    case AgentKind::kBulkWrites:
      return "cp.async.bulk.wait_group (without .read) by the same thread, then a barrier to the "
             "second";
    case AgentKind::kWgmma:
      return "wgmma.wait_group for the first, then a barrier to the second";
    case AgentKind::kTensorPipe:
      return "tcgen05.commit after the first, and a wait for its mbarrier before the second";
    case AgentKind::kTensorLoads:
    case AgentKind::kTensorStores:
      return fmt::format(
          "tcgen05.wait::{} in the warp of the first, then a barrier to the second {}",
          agent.kind == AgentKind::kTensorLoads ? "ld" : "st",
          "from all its lanes (bar.warp.sync where one arrives for the warp)");
    case AgentKind::kBarrier:
      return fmt::format(
          "a wait for phase {} of the mbarrier at shared offset {} before the second",
          first.clock - 1 - barrier_base(first), agent.place & mem::kOffsetMask);
    default:
      break;
  }
  if (space_ == Space::kTensor) return "an order between the two";
  const bool async = second.has(AccessRecord::kAsyncProxy) || second.has(AccessRecord::kNoLanes);
  if (first.cluster != second.cluster) {
    return "a release by the first and an acquire by the second at gpu scope, through an atomic";
  }
  const bool same_warp = first.agent == second.agent;
  return fmt::format(
      "{} after the first and before the {}second",
      same_warp ? "bar.warp.sync" : "a barrier, or an mbarrier arrival and its wait,",
      async ? "issue of the " : "");
}

Clock Checker::barrier_base(const AccessRecord& record) const {
  const auto it = barrier_bases_.find({record.cluster, record.agent});
  return it == barrier_bases_.end() ? 0 : it->second;
}

Findings::Place Checker::place(const Conflict& conflict) const {
  Findings::Place place;
  place.begin = conflict.address;
  place.end = conflict.address + conflict.bytes;
  if (space_ == Space::kTensor) {
    place.space = fmt::format("tensor memory of {}", cta_name(conflict_cluster_, conflict_rank_));
    place.unit = "columns";
    place.begin = conflict.address / model::kTmemLanes;
    place.end = place.begin + 1;
    return place;
  }
  if (space_ == Space::kShared) {
    place.space = fmt::format("shared memory of {}", cta_name(conflict_cluster_, conflict_rank_));
    return place;
  }
  const mem::Region* region = mem::find_region(*launch_.memory, conflict.address);
  place.space = fmt::format("global buffer '{}'", region == nullptr ? "?" : region->name);
  if (region != nullptr) {
    place.begin -= region->begin;
    place.end -= region->begin;
  }
  return place;
}

void Checker::conflict(const Conflict& conflict) {
  const AccessRecord& first = conflict.first;
  const AccessRecord& second = conflict.second;
  const bool unordered = conflict.order == Order::kUnordered;
  const bool tensor = space_ == Space::kTensor;
  // A read before a write of the async proxy: completion orders it in practice.
  if (conflict.order == Order::kUnfencedByOwner && !conflict.first_writes) return;
  Findings::Finding finding;
  if (conflict.order == Order::kUnfencedByOwner || conflict.order == Order::kIssueOrder ||
      conflict.order == Order::kExecutionOrder ||
      (conflict.order == Order::kUnfenced && !conflict.first_writes)) {
    finding.level = practice();
  }
  // Lanes of one instruction, which may have come to it one after the other.
  const bool same_instruction = unordered && first.line == second.line &&
                                first.agent == second.agent && first.cluster == second.cluster &&
                                first.clock == second.clock && conflict.first_writes &&
                                conflict.second_writes && !second.has(AccessRecord::kNoLanes);
  if (same_instruction) return same_address(second);
  const Rule rule = conflict.order == Order::kExecutionOrder ? Rule::kExecutionOrder
                    : conflict.order == Order::kIssueOrder   ? Rule::kIssueOrder
                    : unordered                              ? Rule::kRace
                    : tensor                                 ? Rule::kTensorFence
                                                             : Rule::kProxyFence;
  const std::uint32_t variant = (conflict.first_writes ? 1u : 0u) |
                                (conflict.second_writes ? 2u : 0u) |
                                static_cast<std::uint32_t>(conflict.order) << 2;
  const Findings::Key key{rule, first.line, second.line, variant};
  const Findings::Place at = place(conflict);
  if (findings_.repeat(key, at.begin, at.end)) return;
  finding.place = at;
  finding.first = {first.line, who(first), what(first, conflict.first_writes)};
  finding.second = {second.line, who(second), what(second, conflict.second_writes)};
  finding.missing = missing(conflict);
  findings_.add(key, std::move(finding));
}

// Often meant so, with equal values.
void Checker::same_address(const AccessRecord& record) {
  const Findings::Key key{Rule::kSameAddress, 0, record.line, 0};
  if (findings_.repeat(key)) return;
  Findings::Finding finding;
  finding.level = HazardLevel::kWarning;
  finding.second = {record.line, who(record), what(record, true)};
  finding.missing = "one lane that writes for all: which value stays is not defined";
  findings_.add(key, std::move(finding));
}

// Strong accesses of one location do not race where each scope includes the other thread.
bool Checker::morally_strong(const AccessRecord& a, const AccessRecord& b) const {
  if (!a.has(AccessRecord::kCtaScope) && !b.has(AccessRecord::kCtaScope)) return true;
  if (a.cluster != b.cluster) return false;
  const auto of_block = static_cast<std::uint32_t>((exec::volume(launch_.block) + 31) / 32);
  const auto block = [&](const AccessRecord& record) {
    return agents_[record.cluster][record.agent].place / of_block;
  };
  return block(a) == block(b);
}

}  // namespace mxfa::emu::check
