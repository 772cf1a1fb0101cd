#include "check/checker.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "exec/handlers.h"

namespace mxfa::emu::check {
namespace {

using exec::Warp;
using ir::Inst;

// Stands before instructions that name registers of wgmma.
void watched(exec::Context& c, const Inst& in, std::uint32_t mask) {
  Warp& warp = static_cast<Warp&>(c);
  const exec::Launch& launch = warp.cta().launch;
  launch.observer->matrix_registers(warp, in);
  const Inst& original = launch.kernel->code[static_cast<std::size_t>(&in - launch.code)];
  original.exec(c, original, mask);
}

}  // namespace

ClusterState::ClusterState(exec::Cluster& the_cluster, AgentTable& the_agents)
    : cluster(the_cluster),
      index(static_cast<std::uint32_t>(the_cluster.index)),
      warps_of_block(static_cast<std::uint32_t>(the_cluster.ctas[0]->warps.size())),
      agents(the_agents),
      barrier(index) {
  for (const auto& cta : cluster.ctas) {
    blocks.emplace_back(*cta, index);
    blocks.back().last_wgmma.resize(cta->warpgroups.size());
    for (const auto& warp : cta->warps) {
      const auto slot = static_cast<std::uint32_t>(warps.size());
      warps.emplace_back(agents, slot, index, warp->live(), *warp);
      warps.back().clock.learn(warp->live(), agents.of(AgentKind::kStart, cta->rank), 1);
    }
  }
}

Checker::Checker(exec::Launch& launch, CheckReport& report)
    : launch_(launch), findings_(*launch.kernel, report), shadow_(*this) {
  launch_.observer = this;
  launch_.warnings->sink = [this, sink = launch_.warnings->sink](const std::string& text) {
    if (sink) sink(text);
    Findings::Finding finding;
    finding.level = HazardLevel::kWarning;
    finding.second = {0, "the program", text};
    findings_.add({Rule::kPractice, 0, 0, practices_++}, std::move(finding));
  };
  const ir::Kernel& kernel = *launch.kernel;
  if (kernel.matrix_registers.empty()) return;
  code_ = kernel.code;
  uses_begin_.assign(code_.size() + 1, 0);
  for (const ir::MatrixRegisterUse& use : kernel.matrix_registers) ++uses_begin_[use.inst + 1];
  for (std::size_t i = 0; i < code_.size(); ++i) uses_begin_[i + 1] += uses_begin_[i];
  for (const ir::MatrixRegisterUse& use : kernel.matrix_registers) {
    Inst& in = code_[use.inst];
    if (in.exec != &exec::wgmma_mma) in.exec = &watched;
  }
  launch_.code = code_.data();
}

void Checker::begin(exec::Cluster& cluster) {
  const auto index = static_cast<std::uint32_t>(cluster.index);
  const auto warps =
      static_cast<std::uint32_t>(cluster.ctas.size() * cluster.ctas[0]->warps.size());
  cluster.observed = std::make_shared<ClusterState>(cluster, agents_.add(index, warps));
  if (roles_.size() <= index) roles_.resize(index + 1u);
  roles_[index].assign(warps, 0);
}

bool Checker::uninitialised(const Warp* warp, const Inst* in, const std::string& what) {
  const std::uint32_t line = in != nullptr ? in->line : current_ != nullptr ? current_->line : 0;
  const Findings::Key key{Rule::kUninitialised, 0, line, 0};
  if (findings_.repeat(key)) return true;
  Findings::Finding finding;
  finding.second = {line, "", what};
  if (warp != nullptr) {
    finding.second.who = who(*warp, 0);
  } else if (current_ != nullptr) {
    finding.second.who = who(op_record(*current_));
  }
  finding.missing = "whatever should have written these bytes, or a wait for it";
  findings_.add(key, std::move(finding));
  return true;
}

void Checker::warp_barrier(Warp& warp, std::uint32_t mask) {
  WarpClock& clock = state(warp).clock;
  Knowledge all(state(warp.cta().cluster).index);
  clock.release(mask, warp.live(), all);
  clock.meet_at(mask, all);
}

void Checker::barrier_arrive(Warp& warp, std::uint32_t mask, std::uint32_t barrier, bool waits) {
  ClusterState& cluster = state(warp.cta().cluster);
  ThreadBarrier& at = cluster.blocks[warp.cta().rank].barrier(barrier);
  WarpState& own = cluster.warp(warp);
  own.clock.release(mask, warp.live(), at.pending);
  if (waits) at.waiting.emplace_back(&own, mask);
}

void Checker::barrier_complete(exec::Cta& cta, std::uint32_t barrier) {
  ThreadBarrier& at = state(cta.cluster).blocks[cta.rank].barrier(barrier);
  for (const auto& [warp, mask] : at.waiting) warp->clock.meet_at(mask, at.pending);
  at.waiting.clear();
  at.pending.clear();
}

void Checker::cluster_arrive(Warp& warp, std::uint32_t mask, bool relaxed) {
  ClusterState& cluster = state(warp.cta().cluster);
  WarpClock& clock = cluster.warp(warp).clock;
  if (relaxed) {
    clock.release_fenced(mask, warp.live(), cluster.barrier.pending);
    clock.release_executed(mask, warp.live(), cluster.barrier.pending);
  } else {
    clock.release(mask, warp.live(), cluster.barrier.pending);
  }
}

void Checker::cluster_complete(exec::Cluster& the_cluster) {
  ClusterState& cluster = state(the_cluster);
  ThreadBarrier& at = cluster.barrier;
  // That everybody has started is known even where no memory is ordered.
  for (std::uint32_t rank = 0; rank < cluster.blocks.size(); ++rank) {
    at.pending.known.raise(cluster.agents.of(AgentKind::kStart, rank), 1);
  }
  at.complete.join(at.pending);
  at.pending.clear();
  for (const auto& [warp, mask] : at.waiting) warp->clock.acquire(mask, at.complete);
  at.waiting.clear();
}

void Checker::cluster_wait(Warp& warp, std::uint32_t mask, bool passed) {
  ClusterState& cluster = state(warp.cta().cluster);
  WarpState& own = cluster.warp(warp);
  if (passed) {
    own.clock.acquire(mask, cluster.barrier.complete);
  } else {
    cluster.barrier.waiting.emplace_back(&own, mask);
  }
}

void Checker::fence(Warp& warp, const Inst& in, std::uint32_t mask) {
  using exec::FenceFlags;
  WarpState& own = state(warp);
  const auto has = [&](std::uint8_t flag) { return (in.b & flag) != 0; };
  switch (static_cast<exec::FenceKind>(in.a)) {
    case exec::FenceKind::kThread:
      return own.clock.thread_fence(
          mask, {has(FenceFlags::kAcquire), has(FenceFlags::kRelease), has(FenceFlags::kCtaScope)});
    case exec::FenceKind::kProxyAsync:
      return own.clock.proxy_fence(mask, has(FenceFlags::kShared), has(FenceFlags::kGlobal));
    case exec::FenceKind::kMbarrierInit:
      // Makes the lanes' own inits visible, to the async proxy and through relaxed arrivals.
      std::erase_if(own.inits, [&](const WarpState::Init& init) {
        if (((mask >> init.lane) & 1u) == 0) return false;
        const std::uint32_t lane = 1u << init.lane;
        own.clock.fence_init(lane, init.agent, init.clock);
        return true;
      });
      return;
    default:
      return;
  }
}

void Checker::set_max_registers(Warp& warp, const Inst& in) {
  WarpState& own = state(warp);
  const auto count = static_cast<std::uint32_t>(in.imm);
  const bool increase = in.a != 0;
  const auto report = [&](const std::string& text, std::uint32_t other) {
    const Findings::Key key{Rule::kMaxRegisters, other, in.line, 0};
    if (findings_.repeat(key)) return;
    Findings::Finding finding;
    if (other != 0) finding.first = {other, who(warp, 0), "setmaxnreg"};
    finding.second = {in.line, who(warp, 0), "setmaxnreg"};
    finding.missing = text;
    findings_.add(key, std::move(finding));
  };
  if (own.max_registers != 0 &&
      (increase ? count < own.max_registers : count > own.max_registers)) {
    report(fmt::format("{} to {} where the warp has {} registers a thread",
                       increase ? "an increase" : "a decrease", count, own.max_registers),
           own.max_registers_line);
  }
  own.max_registers = count;
  own.max_registers_line = in.line;
}

}  // namespace mxfa::emu::check
