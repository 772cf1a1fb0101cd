#include <algorithm>
#include <string_view>

#include "sched/scheduler.h"
#include "trace/tracer.h"

/// Policy::kTimed, and what a trace needs to know of asynchronous work.
namespace mxfa::emu::sched {
namespace {

/// Nominal ticks from issue to completion, so that a timeline looks like one; of no GPU.
std::uint64_t nominal_ticks(const async::AsyncOp& op) {
  constexpr std::uint64_t kMatrix = 128;
  constexpr std::uint64_t kTensorMemory = 32;
  constexpr std::uint64_t kCopy = 512;
  const std::string_view what = op.what();
  if (what.starts_with("wgmma") || what.starts_with("tcgen05.mma")) return kMatrix;
  return what.find("tcgen05") != std::string_view::npos ? kTensorMemory : kCopy;
}

}  // namespace

// The earliest of the work that may complete now.
std::optional<std::pair<Scheduler::Choice, std::uint64_t>> Scheduler::next_due() {
  std::optional<std::pair<Choice, std::uint64_t>> best;
  for (const Resident& resident : residents_) {
    for (const auto& cta : resident.cluster->ctas) {
      if (cta->async.empty()) continue;
      for (const std::size_t op : cta->async.eligible()) {
        const std::uint64_t due = due_.at(&cta->async.at(op));
        if (!best || due < best->second) best = {{nullptr, cta.get(), op}, due};
      }
    }
  }
  return best;
}

// What comes first: the warp furthest behind, or work in flight. Time never goes back.
Scheduler::Choice Scheduler::choose_timed() {
  Agent* next = nullptr;
  std::uint64_t time = 0;
  for (Resident& resident : residents_) {
    for (Agent& agent : resident.agents) {
      if (!can_run(agent)) continue;
      const std::uint64_t at = agent.waiting ? std::max(agent.time, now_) : agent.time;
      if (next != nullptr && at >= time) continue;
      next = &agent;
      time = at;
    }
  }
  const auto due = next_due();
  if (next != nullptr && (!due || time <= due->second)) {
    now_ = std::max(now_, time);
    next->time = time;
    return {next, nullptr, 0};
  }
  if (!due) return {};
  now_ = std::max(now_, due->second);
  return due->first;
}

void Scheduler::note_issues(const exec::Cluster& cluster, std::uint64_t time) {
  if (options_.policy != Policy::kTimed && launch_.tracer == nullptr) return;
  for (const auto& cta : cluster.ctas) {
    for (std::size_t i = 0; i < cta->async.size(); ++i) {
      const async::AsyncOp& op = cta->async.at(i);
      if (due_.contains(&op)) continue;
      due_.emplace(&op, time + nominal_ticks(op));
      if (launch_.tracer != nullptr) launch_.tracer->issue(op, *cta, time);
    }
  }
}

void Scheduler::complete(exec::Cta& cta, std::size_t op) {
  const async::AsyncOp* which = &cta.async.at(op);
  if (launch_.tracer != nullptr) launch_.tracer->complete(*which, now_);
  due_.erase(which);
  cta.async.complete(op);
  ++progress_.count;
  note_issues(cta.cluster, now_);
}

}  // namespace mxfa::emu::sched
