#include "check/shadow.h"

#include <algorithm>
#include <bit>

namespace mxfa::emu::check {
namespace {

/// Concurrent atomics that are remembered for one granule; more are forgotten, oldest first.
constexpr std::size_t kMaxConcurrentWrites = 16;

bool has_lane_code(const AccessRecord& record) {
  return !record.has(AccessRecord::kLaneSet) && !record.has(AccessRecord::kNoLanes);
}

int index_of(Space space) { return space == Space::kGlobal ? 1 : 0; }

}  // namespace

bool MemoryAccessor::same_lane(const AccessRecord& earlier, const AccessRecord& now,
                               std::uint8_t overlap) const {
  if (warp == nullptr || earlier.cluster != knowledge->known.home()) return false;
  const Agent& agent = (*agents)[earlier.cluster][earlier.agent];
  const bool of_warp = agent.kind == AgentKind::kThreads || agent.kind == AgentKind::kCopies ||
                       agent.kind == AgentKind::kBulkReads || agent.kind == AgentKind::kBulkWrites;
  if (!of_warp || agent.place != warp->warp()) return false;
  std::uint32_t lanes = 0;
  for (int unit = 0; unit < 4; ++unit) {
    if (((overlap >> unit) & 1u) == 0) continue;
    const std::uint32_t mask = earlier.lane_mask(unit);
    if (earlier.has(AccessRecord::kTogether) && (now.lane_mask(unit) & ~mask) == 0) continue;
    if (mask != now.lane_mask(unit) || mask == 0 || (mask & (mask - 1)) != 0) return false;
    lanes |= mask;
  }
  if (agent.kind == AgentKind::kThreads) return true;
  for (; lanes != 0; lanes &= lanes - 1) {
    const auto lane = static_cast<std::uint32_t>(std::countr_zero(lanes));
    if (earlier.clock > warp->completed(agent.kind, lane)) return false;
  }
  return true;
}

bool MemoryAccessor::knows(const VectorClock& clock, const AccessRecord& earlier,
                           std::uint8_t overlap) const {
  if (earlier.clock <= clock.at(earlier.cluster, earlier.agent)) return true;
  // Lanes that released on their own.
  std::uint32_t lanes = 0;
  for (int unit = 0; unit < 4; ++unit) {
    if ((overlap >> unit) & 1u) lanes |= earlier.lane_mask(unit);
  }
  if (lanes == 0) return false;
  for (; lanes != 0; lanes &= lanes - 1) {
    const AgentId lane = (*agents)[earlier.cluster].find_lane(
        earlier.agent, static_cast<std::uint32_t>(std::countr_zero(lanes)));
    if (lane == kNoAgent || clock.at(earlier.cluster, lane) < earlier.clock) return false;
  }
  return true;
}

Order MemoryAccessor::order(const AccessRecord& earlier, const AccessRecord& now,
                            std::uint8_t overlap) const {
  if (!knows(knowledge->known, earlier, overlap) && !same_lane(earlier, now, overlap)) {
    const bool executed =
        !knowledge->executed.empty() && knows(knowledge->executed, earlier, overlap);
    return executed ? Order::kExecutionOrder : Order::kUnordered;
  }
  if (!async_proxy || earlier.has(AccessRecord::kAsyncProxy)) return Order::kOrdered;
  const int at = index_of(space);
  if (knows(knowledge->fenced_by_owner[at], earlier, overlap)) return Order::kOrdered;
  return knows(knowledge->fenced[at], earlier, overlap) ? Order::kUnfencedByOwner
                                                        : Order::kUnfenced;
}

// The pairs of section 9.7.16.6.2: they run in the order of their issue.
bool TensorAccessor::pipelined(const AccessRecord& earlier, const AccessRecord& now) const {
  constexpr std::uint8_t kAccumulator = AccessRecord::kAccumulator;
  if (now.lanes == 0) return false;  // cp
  if (earlier.lanes == 0) return true;
  return earlier.lanes == now.lanes && earlier.has(kAccumulator) && now.has(kAccumulator);
}

bool TensorAccessor::knows(const VectorClock& clock, const AccessRecord& earlier) const {
  if (earlier.clock <= clock.at(earlier.cluster, earlier.agent)) return true;
  // Lanes that released on their own: a load or store is over when it is for all of them.
  const AgentTable& agents = (*agents_)[earlier.cluster];
  for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
    const AgentId agent = agents.find_lane(earlier.agent, lane);
    if (agent == kNoAgent || clock.at(earlier.cluster, agent) < earlier.clock) return false;
  }
  return true;
}

Order TensorAccessor::order(const AccessRecord& earlier, const AccessRecord& now,
                            std::uint8_t) const {
  const auto knows = [&](const VectorClock& clock) { return this->knows(clock, earlier); };
  if (earlier.agent == now.agent && earlier.clock == now.clock) return Order::kOrdered;
  if (knows(order_->complete)) return Order::kOrdered;
  const Agent& agent = (*agents_)[earlier.cluster][earlier.agent];
  if (agent.place == warp) {
    const bool loads = agent.kind == AgentKind::kTensorLoads;
    const bool stores = agent.kind == AgentKind::kTensorStores;
    if (loads && earlier.clock <= loads_done) return Order::kOrdered;
    if (stores && earlier.clock <= stores_done) return Order::kOrdered;
  }
  const bool finished = knows(knowledge_->tensor.finished);
  if (synchronous) return finished ? Order::kOrdered : Order::kUnordered;
  const Agent& own = (*agents_)[now.cluster][now.agent];
  const bool pipes = agent.kind == AgentKind::kTensorPipe && own.kind == AgentKind::kTensorPipe;
  const bool pair = pipes && pipelined(earlier, now);
  if (pipes && earlier.agent == now.agent) return pair ? Order::kOrdered : Order::kIssueOrder;
  if (pair && knows(order_->issued)) return Order::kOrdered;
  if (knows(knowledge_->tensor.complete) || (pair && knows(knowledge_->tensor.issued))) {
    return Order::kNoAfterFence;
  }
  return finished ? Order::kNoBeforeFence : Order::kUnordered;
}

// Each lane touches what it has touched itself: program order.
inline bool Shadow::by_same_threads(const AccessRecord& earlier, const Touch& t) {
  const AccessRecord& now = t.record;
  return earlier.agent == t.by.threads && earlier.cluster == now.cluster &&
         earlier.lanes == now.lanes && t.by.threads != kNoAgent && has_lane_code(earlier) &&
         has_lane_code(now);
}

// The common case without any lookup beyond one clock.
inline bool Shadow::clearly_ordered(const AccessRecord& earlier, const Touch& t) {
  if ((earlier.units & t.record.units) == 0 || by_same_threads(earlier, t)) return true;
  const Accessor& by = t.by;
  if (by.knows_home_only && earlier.cluster != t.record.cluster) return false;
  if (earlier.clock > by.sure->at(earlier.cluster, earlier.agent)) return false;
  return !by.async_proxy || earlier.has(AccessRecord::kAsyncProxy);
}

// A write that has been read since comes before this one where the readers do, unless a proxy fence
// was missing.
inline bool Shadow::covered(const AccessRecord& write, std::uint8_t read, const Touch& t) {
  if (clearly_ordered(write, t)) return true;
  const bool same_proxy = !t.by.async_proxy || write.has(AccessRecord::kAsyncProxy);
  return t.write && same_proxy && (write.units & t.record.units & ~read) == 0;
}

void Shadow::check(const AccessRecord& earlier, bool earlier_writes, const Touch& t,
                   std::uint32_t unit_bytes) {
  if (clearly_ordered(earlier, t)) return;
  const auto overlap = static_cast<std::uint8_t>(earlier.units & t.record.units);
  const bool strong = earlier.has(AccessRecord::kStrong) && t.record.has(AccessRecord::kStrong);
  if (strong && sink_.morally_strong(earlier, t.record)) return;
  const Order order = t.by.order(earlier, t.record, overlap);
  if (order == Order::kOrdered) return;
  const auto first = static_cast<std::uint32_t>(std::countr_zero(std::uint32_t{overlap}));
  const auto last = static_cast<std::uint32_t>(std::bit_width(std::uint32_t{overlap}));
  sink_.conflict({earlier, t.record, earlier_writes, t.write, order,
                  t.address + std::uint64_t{first} * unit_bytes, (last - first) * unit_bytes});
}

void Shadow::touch_units(Granule& granule, const Touch& t, std::uint32_t unit_bytes) {
  if (granule.extra != 0) return touch_slow(granule, t, unit_bytes);
  if (!covered(granule.write, granule.read.units, t)) check(granule.write, true, t, unit_bytes);
  if (t.write) {
    if (!clearly_ordered(granule.read, t)) check(granule.read, false, t, unit_bytes);
    return insert_write(granule, t);
  }
  insert_read(granule, t);
}

void Shadow::touch_slow(Granule& granule, const Touch& t, std::uint32_t unit_bytes) {
  Extra& extra = *extras_[granule.extra];
  if (extra.split) return touch_split(granule, t);
  std::uint8_t read = 0;
  if (t.write) {
    read = granule.read.units;
    for (const AccessRecord& earlier : extra.reads) read |= earlier.units;
  }
  const auto check_write = [&](const AccessRecord& earlier) {
    if (!covered(earlier, read, t)) check(earlier, true, t, unit_bytes);
  };
  check_write(granule.write);
  for (const AccessRecord& earlier : extra.writes) check_write(earlier);
  if (!t.write) return insert_read(granule, t);
  check(granule.read, false, t, unit_bytes);
  for (const AccessRecord& earlier : extra.reads) check(earlier, false, t, unit_bytes);
  insert_write(granule, t);
}

// Words of a granule whose bytes have histories of their own. A write to all of them ends that.
void Shadow::touch_split(Granule& granule, const Touch& t) {
  const std::uint32_t index = granule.extra;
  for (std::uint32_t word = 0; word < 4; ++word) {
    if (((t.record.units >> word) & 1u) == 0) continue;
    Touch part = t;
    part.record.units = 0xF;
    if (has_lane_code(t.record)) {
      part.record.lanes = lane_code((t.record.lanes >> (5 * word)) & 31u, 0xF);
    }
    part.address = t.address + 4ull * word;
    touch_units(extras_[index]->fine[word], part, 1);
  }
  if (!t.write || t.record.units != 0xF) return;
  for (Granule& fine : extras_[index]->fine) {
    if (fine.extra != 0) drop_extra(fine);
  }
  drop_extra(granule);
  granule.write = t.record;
  granule.read = {};
}

void Shadow::forget(Granule& granule) {
  if (granule.extra != 0) drop_extra(granule);
  granule = {};
}

void Shadow::touch_bytes(Granule& granule, std::uint32_t word, const Touch& t) {
  Extra& extra = extra_of(granule);
  const std::uint32_t index = granule.extra;
  if (!extra.split) {
    std::vector<AccessRecord> writes = std::move(extra.writes);
    std::vector<AccessRecord> reads = std::move(extra.reads);
    extra.writes.clear();
    extra.reads.clear();
    extra.split = true;
    writes.push_back(granule.write);
    reads.push_back(granule.read);
    granule.write = {};
    granule.read = {};
    const auto give = [&](const AccessRecord& record, std::uint32_t to, bool write) {
      if (((record.units >> to) & 1u) == 0) return;
      AccessRecord part = record;
      part.units = 0xF;
      if (has_lane_code(record)) {
        part.lanes = lane_code((record.lanes >> (5 * to)) & 31u, 0xF);
      }
      AccessRecord& slot = write ? extras_[index]->fine[to].write : extras_[index]->fine[to].read;
      if (slot.units == 0) {
        slot = part;
        return;
      }
      Granule& fine = extras_[index]->fine[to];
      Extra& more = extra_of(fine);
      (write ? more.writes : more.reads).push_back(part);
    };
    for (std::uint32_t to = 0; to < 4; ++to) {
      for (const AccessRecord& record : writes) give(record, to, true);
      for (const AccessRecord& record : reads) give(record, to, false);
    }
  }
  Touch part = t;
  part.address = t.address + 4ull * word;
  touch_units(extras_[index]->fine[word], part, 1);
}

Shadow::Extra& Shadow::extra_of(Granule& granule) {
  if (granule.extra == 0) {
    if (free_.empty()) {
      granule.extra = static_cast<std::uint32_t>(extras_.size());
      extras_.push_back(std::make_unique<Extra>());
    } else {
      granule.extra = free_.back();
      free_.pop_back();
    }
  }
  return *extras_[granule.extra];
}

void Shadow::drop_extra(Granule& granule) {
  Extra& extra = *extras_[granule.extra];
  extra.writes.clear();
  extra.reads.clear();
  extra.prune_at = kFewReads;
  extra.split = false;
  extra.fine = {};
  free_.push_back(granule.extra);
  granule.extra = 0;
}

// The same work, done again: whoever comes after the later one comes after the earlier one.
bool Shadow::repeats(const AccessRecord& earlier, const AccessRecord& now) {
  return earlier.agent == now.agent && earlier.lanes == now.lanes && earlier.line == now.line &&
         earlier.cluster == now.cluster && earlier.flags == now.flags && earlier.clock <= now.clock;
}

// A later access stands for an earlier one that comes before it and touched nothing else.
bool Shadow::outdated(const AccessRecord& earlier, const Touch& t) const {
  if ((earlier.units & ~t.record.units) != 0) return false;
  if (earlier.units == 0 || by_same_threads(earlier, t) || repeats(earlier, t.record)) return true;
  if (t.by.knows_home_only && earlier.cluster != t.record.cluster) return false;
  switch (t.by.order(earlier, t.record, earlier.units)) {
    case Order::kOrdered:
    case Order::kUnfenced:
    case Order::kUnfencedByOwner:
    case Order::kExecutionOrder:
    case Order::kIssueOrder:  // whatever waits for the later one has waited for the earlier one
      return true;
    default:
      return false;
  }
}

void Shadow::insert_write(Granule& granule, const Touch& t) {
  const std::uint8_t units = t.record.units;
  if (granule.extra == 0 && (granule.write.units & ~units) == 0 &&
      (granule.read.units & ~units) == 0 && !t.record.has(AccessRecord::kStrong)) {
    granule.write = t.record;
    granule.read.units = 0;
    return;
  }
  Extra& extra = extra_of(granule);
  std::vector<AccessRecord> kept;
  const auto keep = [&](AccessRecord earlier, std::vector<AccessRecord>& to) {
    const bool concurrent = earlier.has(AccessRecord::kStrong) &&
                            t.record.has(AccessRecord::kStrong) && !outdated(earlier, t);
    if (!concurrent) earlier.units &= static_cast<std::uint8_t>(~units);
    if (earlier.units != 0) to.push_back(earlier);
  };
  keep(granule.write, kept);
  for (const AccessRecord& earlier : extra.writes) keep(earlier, kept);
  if (kept.size() > kMaxConcurrentWrites) kept.erase(kept.begin());
  extra.writes = std::move(kept);
  granule.write = t.record;
  std::vector<AccessRecord> reads;
  keep(granule.read, reads);
  for (const AccessRecord& earlier : extra.reads) keep(earlier, reads);
  granule.read.units = 0;
  if (!reads.empty()) {
    granule.read = reads.back();
    reads.pop_back();
  }
  extra.reads = std::move(reads);
  if (extra.writes.empty() && extra.reads.empty()) drop_extra(granule);
}

// Of reads by the same lanes, the last one stands for all.
void Shadow::prune_reads(Extra& extra, const Touch& t) {
  std::vector<AccessRecord>& reads = extra.reads;
  const auto same = [](const AccessRecord& a, const AccessRecord& b) {
    return a.cluster == b.cluster && a.agent == b.agent && a.lanes == b.lanes &&
           a.units == b.units && a.flags == b.flags;
  };
  const auto hash = [](const AccessRecord& r) {
    const std::uint64_t who = std::uint64_t{r.cluster} << 32 | std::uint64_t{r.agent} << 16 |
                              std::uint64_t{r.units} << 8 | r.flags;
    return static_cast<std::size_t>(((who ^ std::uint64_t{r.lanes} << 20) * 0x9E3779B97F4A7C15u) >>
                                    32);
  };
  // Open addressing: number of the record among those that stay, from 1.
  const std::size_t slots = std::bit_ceil(2 * reads.size());
  seen_.assign(slots, 0);
  std::size_t kept = reads.size();  // those that stay move to the back, newest first
  for (std::size_t i = reads.size(); i-- > 0;) {
    const AccessRecord read = reads[i];
    if (outdated(read, t)) continue;
    std::size_t slot = hash(read) % slots;
    while (seen_[slot] != 0 && !same(reads[seen_[slot] - 1], read)) slot = (slot + 1) % slots;
    if (seen_[slot] != 0) {
      AccessRecord& newer = reads[seen_[slot] - 1];
      if (newer.clock < read.clock) newer = read;
      continue;
    }
    reads[--kept] = read;
    seen_[slot] = static_cast<std::uint32_t>(kept + 1);
  }
  reads.erase(reads.begin(), reads.begin() + static_cast<std::ptrdiff_t>(kept));
  extra.prune_at = std::max(kFewReads, 2 * reads.size());
}

// What all warps of a launch read has many records: only the newest are looked at one by one.
void Shadow::insert_read(Granule& granule, const Touch& t) {
  const bool replaces = granule.read.units == 0 || outdated(granule.read, t);
  if (replaces && granule.extra == 0) {
    granule.read = t.record;
    return;
  }
  Extra& extra = extra_of(granule);
  if (replaces) {
    granule.read = t.record;
    if (extra.reads.size() > kFewReads) return;
    std::erase_if(extra.reads, [&](const AccessRecord& r) { return outdated(r, t); });
    if (extra.writes.empty() && extra.reads.empty()) drop_extra(granule);
    return;
  }
  const std::size_t size = extra.reads.size();
  for (std::size_t i = size - std::min(size, kFewReads); i < size; ++i) {
    if (!outdated(extra.reads[i], t)) continue;
    extra.reads[i] = t.record;
    return;
  }
  extra.reads.push_back(t.record);
  if (extra.reads.size() > extra.prune_at) prune_reads(extra, t);
}

}  // namespace mxfa::emu::check
