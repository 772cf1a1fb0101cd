#include <algorithm>

#include "check/checker.h"

/// mbarriers. PTX ISA 9.0, section 9.7.13.15.
namespace mxfa::emu::check {

BarrierState& Checker::barrier(const exec::SharedPlace& place) {
  ClusterState& cluster = state(place.cta->cluster);
  auto& all = cluster.blocks[place.cta->rank].mbarriers;
  const auto [it, fresh] = all.try_emplace(place.offset, cluster.index);
  if (fresh) {
    const std::uint32_t address = place.cta->shared_base() | place.offset;
    it->second.agent = cluster.agents.of(AgentKind::kBarrier, address);
  }
  return it->second;
}

// Whoever uses a barrier must come after its init.
BarrierState* Checker::check_barrier_use(const BarrierUse& use) {
  BarrierState& at = barrier(use.place);
  const WarpState& own = state(use.warp);
  for (const WarpClock::Group& group : own.clock.groups()) {
    const std::uint32_t lanes = group.mask & use.mask;
    if (lanes == 0 || group.knowledge.known.at(at.agent) >= at.base) continue;
    const Findings::Key key{Rule::kMbarrierInit, at.init_line, use.in.line, 0};
    if (findings_.repeat(key)) continue;
    Findings::Finding finding;
    finding.first = {at.init_line, "some other thread", "mbarrier.init"};
    finding.second = {use.in.line, who(use.warp, lanes), "use of the mbarrier"};
    finding.missing = "a barrier between the init and this thread";
    findings_.add(key, std::move(finding));
  }
  return &at;
}

void Checker::mbarrier_init(const BarrierUse& use) {
  BarrierState& at = barrier(use.place);
  // Clocks go on from an earlier life of the same address.
  at.base = std::max(at.base, at.complete.known.at(at.agent)) + 1;
  at.init_line = use.in.line;
  barrier_bases_[{state(use.place.cta->cluster).index, at.agent}] = at.base;
  at.last_op = 0;
  at.pending.clear();
  at.complete.clear();
  WarpState& own = state(use.warp);
  own.clock.learn(use.mask, at.agent, at.base);
  for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
    if (((use.mask >> lane) & 1u) != 0) own.inits.push_back({lane, at.agent, at.base});
  }
}

void Checker::mbarrier_inval(const BarrierUse& use) {
  BarrierState& at = barrier(use.place);
  at.base = std::max(at.base, at.complete.known.at(at.agent));
  at.last_op = 0;
}

void Checker::mbarrier_expect(const BarrierUse& use) { check_barrier_use(use); }

void Checker::mbarrier_arrive(const BarrierUse& use) {
  BarrierState& at = *check_barrier_use(use);
  WarpClock& clock = state(use.warp).clock;
  if (use.relaxed) {
    clock.release_fenced(use.mask, use.warp.live(), at.pending);
  } else {
    clock.release(use.mask, use.warp.live(), at.pending);
  }
}

void Checker::mbarrier_unobserved(const BarrierUse& use) {
  const Findings::Key key{Rule::kMbarrierPhase, 0, use.in.line, 0};
  if (findings_.repeat(key)) return;
  Findings::Finding finding;
  finding.second = {use.in.line, who(use.warp, use.mask), "arrival at the mbarrier"};
  finding.missing = "a wait for the phase before, by anybody, that comes before this arrival";
  findings_.add(key, std::move(finding));
}

void Checker::mbarrier_phase(const exec::SharedPlace& place) {
  BarrierState& at = barrier(place);
  const std::int64_t done = place.cta->mbarriers.at(place.offset, "mbarrier").phase();
  at.complete.join(at.pending);
  at.pending.clear();
  at.complete.known.raise(at.agent, at.base + static_cast<Clock>(done));
}

void Checker::mbarrier_wait(const BarrierUse& use, bool complete, std::int64_t phase) {
  BarrierState& at = *check_barrier_use(use);
  findings_.count_wait(use.in.line, complete, phase < 0);
  if (!complete || phase < 0) return;
  WarpClock& clock = state(use.warp).clock;
  if (use.relaxed) {
    clock.observe(use.mask, at.complete);
  } else {
    clock.acquire(use.mask, at.complete);
  }
}

}  // namespace mxfa::emu::check
