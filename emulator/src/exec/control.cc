#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "exec/handlers.h"
#include "exec/observer.h"

/// Barriers and the rest of control. PTX ISA 9.0, sections 9.7.12 and 9.7.13.
namespace mxfa::emu::exec {
namespace {

using ir::Inst;

Warp& warp_of(Context& c) { return static_cast<Warp&>(c); }

std::uint32_t uniform(const Warp& warp, const Inst& in, std::uint32_t mask, std::int32_t operand,
                      const char* what) {
  const auto* row = warp.row<const std::uint32_t>(operand);
  const std::uint32_t value = row[std::countr_zero(mask)];
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    if (row[std::countr_zero(rest)] != value) {
      warp.fail(in, mask, fmt::format("{} differs between lanes", what));
    }
  }
  return value;
}

void write_results(NamedBarrier& barrier) {
  for (const NamedBarrier::Result& result : barrier.results) {
    const auto operation = static_cast<BarrierOp>(result.operation);
    if (operation == BarrierOp::kPopc) {
      auto* row = result.warp->row<std::uint32_t>(result.row);
      for (int i = 0; i < kLanes; ++i) {
        if ((result.mask >> i) & 1u) row[i] = barrier.votes_true;
      }
    } else {
      const bool value = operation == BarrierOp::kAnd ? barrier.votes_true == barrier.votes
                                                      : barrier.votes_true != 0;
      result.warp->set_pred(result.row, value ? kFullMask : 0, result.mask);
    }
  }
}

void complete(Cta& cta, NamedBarrier& barrier) {
  write_results(barrier);
  barrier.results.clear();
  barrier.arrived = 0;
  barrier.votes = 0;
  barrier.votes_true = 0;
  barrier.in_use = false;
  if (Observer* observer = cta.launch.observer) {
    observer->barrier_complete(cta, static_cast<std::uint32_t>(&barrier - cta.barriers.data()));
  }
  ++barrier.gate.generation;
  ++cta.cluster.progress.count;
}

void check_complete(Cta& cta, NamedBarrier& barrier) {
  if (barrier.in_use && barrier.arrived > 0 && barrier.arrived >= threads_needed(cta, barrier)) {
    complete(cta, barrier);
  }
}

// The barrier's parameters come with the first arrival of each generation.
void open_barrier(Warp& warp, const Inst& in, std::uint32_t mask, NamedBarrier& barrier) {
  const bool unnumbered = in.op[1] == ir::kNoOperand;
  const std::uint32_t count =
      unnumbered ? 0 : uniform(warp, in, mask, in.op[1], "the thread count of a barrier");
  if (!unnumbered &&
      (count == 0 || count % kLanes != 0 || count > warp.cta().warps.size() * kLanes)) {
    warp.fail(in, mask,
              fmt::format("barrier of {} threads: expected a multiple of 32, at most the block's",
                          count));
  }
  if (barrier.in_use && (barrier.unnumbered != unnumbered || barrier.expected != count)) {
    warp.fail(in, mask, "barrier in use with another thread count");
  }
  barrier.in_use = true;
  barrier.unnumbered = unnumbered;
  barrier.expected = count;
}

}  // namespace

std::uint32_t threads_needed(const Cta& cta, const NamedBarrier& barrier) {
  return barrier.unnumbered ? cta.live_warps * kLanes : barrier.expected;
}

void Cta::on_exit(std::uint32_t warp) {
  ++cluster.progress.count;
  const std::uint32_t live = warps[warp]->live();
  if (live == 0) --live_warps;
  for (NamedBarrier& barrier : barriers) {
    // The lanes that are left may all have arrived already.
    std::uint32_t& lanes = barrier.lanes[warp];
    if (lanes != 0 && (live & ~lanes) == 0) {
      lanes = 0;
      barrier.arrived += kLanes;
    }
    if (live == 0) check_complete(*this, barrier);
  }
  cluster.check_barrier();
  if (!exited()) return;
  if (launch.observer != nullptr) {
    drain();
    launch.observer->exited(*this);
  }
  check_exit();
}

void cta_barrier(Context& c, const Inst& in, std::uint32_t mask) {
  Warp& warp = warp_of(c);
  Cta& cta = warp.cta();
  const std::uint32_t id = uniform(warp, in, mask, in.op[0], "the number of a barrier");
  if (id >= cta.barriers.size()) warp.fail(in, mask, fmt::format("barrier {} of 0..15", id));
  NamedBarrier& barrier = cta.barriers[id];
  open_barrier(warp, in, mask, barrier);
  const auto operation = static_cast<BarrierOp>(in.a);
  // Lanes may come one by one where the instruction is not aligned; the warp counts when all have.
  std::uint32_t& lanes = barrier.lanes[warp.index()];
  if ((lanes & mask) != 0) warp.fail(in, mask, "lanes arrive twice at one barrier");
  lanes |= mask;
  if (operation >= BarrierOp::kPopc) {
    const std::uint32_t votes = c.pred(in.op[3]);
    barrier.votes += static_cast<std::uint32_t>(std::popcount(mask));
    barrier.votes_true += static_cast<std::uint32_t>(std::popcount(mask & votes));
    barrier.results.push_back({&warp, in.op[2], mask, in.a});
  }
  const bool waits = operation != BarrierOp::kArrive;
  if (waits) warp.wait_at(barrier.gate);
  if (Observer* observer = cta.launch.observer) observer->barrier_arrive(warp, mask, id, waits);
  ++cta.cluster.progress.count;
  if ((warp.live() & ~lanes) != 0) return;
  lanes = 0;
  barrier.arrived += kLanes;
  const std::uint32_t needed = threads_needed(cta, barrier);
  if (barrier.arrived > needed) warp.fail(in, mask, "more threads at a barrier than it is for");
  if (barrier.arrived < needed) return;
  // The last arrival does not wait: the gate it would wait at opens before its ticket is taken.
  complete(cta, barrier);
  if (waits) warp.pass_gate();
}

void cluster_barrier(Context& c, const Inst& in, std::uint32_t mask) {
  Warp& warp = warp_of(c);
  Cta& cta = warp.cta();
  Cluster& cluster = cta.cluster;
  const std::size_t slot = cta.rank * cta.warps.size() + warp.index();
  std::uint32_t& waiting = warp.cluster_waits;
  Observer* observer = cta.launch.observer;
  if (in.a == 0) {
    if ((waiting & mask) != 0) warp.fail(in, mask, "barrier.cluster.arrive twice without a wait");
    waiting |= mask;
    cluster.arrived[slot] |= mask;
    if (observer != nullptr) observer->cluster_arrive(warp, mask, in.c != 0);
    for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      warp.cluster_tickets[static_cast<std::size_t>(std::countr_zero(rest))] =
          cluster.gate.generation;
    }
    ++cluster.progress.count;
    cluster.check_barrier();
    return;
  }
  if ((waiting & mask) != mask) {
    warp.fail(in, mask, "barrier.cluster.wait without a barrier.cluster.arrive before it");
  }
  const int first = std::countr_zero(mask);
  const std::uint64_t ticket = warp.cluster_tickets[static_cast<std::size_t>(first)];
  waiting &= ~mask;
  const bool passed = cluster.gate.generation != ticket;
  if (!passed) warp.wait_at(cluster.gate);
  if (observer != nullptr) observer->cluster_wait(warp, mask, passed);
}

void fence(Context& c, const Inst& in, std::uint32_t mask) {
  Warp& warp = warp_of(c);
  if (Observer* observer = warp.cta().launch.observer) observer->fence(warp, in, mask);
}
void no_operation(Context&, const Inst&, std::uint32_t) {}

void trap(Context& c, const Inst& in, std::uint32_t mask) { warp_of(c).fail(in, mask, "trap"); }

void no_branch_target(Context& c, const Inst& in, std::uint32_t mask) {
  const std::uint32_t index = c.row<const std::uint32_t>(in.op[0])[std::countr_zero(mask)];
  warp_of(c).fail(in, mask, fmt::format("the list of targets has no entry {}", index));
}

// An increase takes what decreases of other warps have left, and waits until there is enough.
// Registers of warps that have exited stay theirs, as the ISA names no other way back.
void set_max_registers(Context& c, const Inst& in, std::uint32_t) {
  Warp& warp = warp_of(c);
  Cta& cta = warp.cta();
  const auto count = static_cast<std::uint32_t>(in.imm);
  const bool increase = in.a != 0;
  if (warp.max_registers != 0 && increase == (count > warp.max_registers)) {
    if (increase && count - warp.max_registers > cta.spare_registers) return warp.retry();
    cta.spare_registers += warp.max_registers - count;  // modulo 2^32
    warp.max_registers = count;
    ++cta.cluster.progress.count;
  }
  if (Observer* observer = cta.launch.observer) observer->set_max_registers(warp, in);
}

// Launches do not overlap: what a kernel depends on has ended before it begins.
void grid_dependency(Context& c, const Inst& in, std::uint32_t mask) {
  Warp& warp = warp_of(c);
  if (Observer* observer = warp.cta().launch.observer) observer->grid_dependency(warp, in, mask);
}

}  // namespace mxfa::emu::exec
