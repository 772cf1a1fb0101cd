#include "sched/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "trace/tracer.h"

namespace mxfa::emu::sched {
namespace {

/// Instructions of a turn, at most. Long turns are cheap: a warp's registers stay in the cache.
/// Every fourth or so is brief, so that warps also go on side by side.
constexpr std::uint32_t kMaxQuantum = 512;
constexpr std::uint32_t kBriefQuantum = 32;
constexpr std::uint32_t kTimedQuantum = 8;
/// Turns after which the starved get one: others may spin on what they hold, and every warp of a
/// GPU gets on at some time.
constexpr int kPatience = 1024;
/// Instructions without effect after which asynchronous work that is kept for last goes on: the
/// warps that run may spin on memory that only it lets others write.
constexpr std::uint64_t kSpinPatience = 1 << 16;
/// Rounds in which every poll fails before the launch counts as stuck: sleeps may run out.
constexpr int kMaxRetries = 256;
/// How long a stuck scheduler waits for the memory effects of other threads that also seem stuck.
constexpr auto kGrace = std::chrono::milliseconds(200);

bool in_flight(const exec::Cluster& cluster) {
  return std::ranges::any_of(cluster.ctas, [](const auto& cta) { return !cta->async.empty(); });
}

}  // namespace

Scheduler::Scheduler(exec::Launch& launch, const LaunchOptions& options, const Share& share,
                     Team& team)
    : launch_(launch),
      options_(options),
      share_(share),
      team_(team),
      random_(options.seed, share.first),
      next_(share.first) {
  victim_ = random_.next();
  progress_.cancel_next = [this]() -> std::optional<std::uint64_t> {
    if (next_ >= share_.count) return std::nullopt;
    const std::uint64_t index = next_;
    next_ += share_.step;
    return index;
  };
}

LaunchStats Scheduler::run() {
  admit();
  while (!residents_.empty()) {
    if (team_.cancelled.load(std::memory_order_relaxed)) return stats_;
    if (options_.policy == Policy::kEarliest) {
      complete_all_async();
      retire();
      admit();
      if (residents_.empty()) break;
    }
    const Choice choice = choose();
    bool finished = false;
    if (choice.agent != nullptr) {
      run_agent(*choice.agent);
      finished = choice.agent->exited;
    } else if (choice.cta != nullptr) {
      complete(*choice.cta, choice.op);
      finished = true;
    } else {
      if (stuck()) report_stuck();
      finished = true;  // others may have exited while it waited
    }
    if (!finished) continue;
    retire();
    admit();
  }
  return stats_;
}

void Scheduler::admit() {
  candidates_at_ = kNever;
  const auto limit = static_cast<std::size_t>(std::max(options_.resident_clusters, 1));
  while (residents_.size() < limit && next_ < share_.count) {
    Resident resident;
    resident.slot = free_slot();
    resident.cluster =
        std::make_unique<exec::Cluster>(launch_, progress_, next_, columns_of(resident.slot));
    next_ += share_.step;
    for (const auto& cta : resident.cluster->ctas) {
      const std::uint64_t victim = victim_ % cta->warps.size();
      for (const auto& warp : cta->warps) {
        resident.agents.push_back(
            {.warp = warp.get(), .victim = warp->index() == victim, .time = now_});
      }
    }
    residents_.push_back(std::move(resident));
  }
}

std::size_t Scheduler::free_slot() const {
  std::size_t slot = 0;
  const auto taken = [&](const Resident& resident) { return resident.slot == slot; };
  while (std::ranges::any_of(residents_, taken)) ++slot;
  return slot;
}

// Neighbouring slots are on the same SMs, one for each CTA of a cluster.
const exec::SmColumns& Scheduler::columns_of(std::size_t slot) {
  const std::size_t sm = slot / static_cast<std::size_t>(std::max(options_.clusters_per_sm, 1));
  while (columns_.size() <= sm) {
    exec::SmColumns& columns = columns_.emplace_back(exec::volume(launch_.cluster));
    for (auto& one : columns) one = std::make_shared<model::TmemColumns>();
  }
  return columns_[sm];
}

void Scheduler::retire() {
  std::erase_if(residents_, [&](const Resident& resident) {
    if (!resident.cluster->exited() || in_flight(*resident.cluster)) return false;
    for (const Agent& agent : resident.agents) {
      stats_.warp_instructions += agent.warp->executed();
      stats_.thread_instructions += agent.warp->thread_instructions();
    }
    return true;
  });
}

bool Scheduler::can_run(const Agent& agent) const {
  return !agent.exited && (!agent.waiting || agent.seen != progress_.count);
}

Scheduler::Choice Scheduler::choose() {
  if (options_.policy == Policy::kTimed) return choose_timed();
  const Policy policy = options_.policy;
  const bool async_now = policy == Policy::kLatest     ? spent_ > kSpinPatience
                         : policy == Policy::kEarliest ? false
                                                       : random_.below(4) == 0;
  if (async_now) {
    const Choice choice = choose_async(policy == Policy::kLifo);
    if (choice.cta != nullptr) return choice;
  }
  const Choice warp = choose_warp();
  return warp.agent != nullptr ? warp : choose_async(options_.policy == Policy::kLifo);
}

// Warps that can go on, without the victim where others can, as a rule.
const std::vector<Scheduler::Agent*>& Scheduler::find_candidates() {
  if (candidates_at_ != progress_.count) {
    candidates_.clear();
    unstarved_.clear();
    for (Resident& resident : residents_) {
      for (Agent& agent : resident.agents) {
        if (!can_run(agent)) continue;
        candidates_.push_back(&agent);
        if (!agent.victim) unstarved_.push_back(&agent);
      }
    }
    candidates_at_ = progress_.count;
  }
  if (options_.policy != Policy::kStarve) return candidates_;
  if (!unstarved_.empty() && ++starved_ <= kPatience) return unstarved_;
  starved_ = 0;
  return candidates_;
}

Scheduler::Choice Scheduler::choose_warp() {
  const std::vector<Agent*>& candidates = find_candidates();
  const std::size_t count = candidates.size();
  if (count == 0) return {};
  std::size_t wanted = 0;
  switch (options_.policy) {
    case Policy::kEarliest:
      wanted = turn_++ % count;
      break;
    case Policy::kLifo:
      wanted = random_.below(8) == 0 ? random_.below(count) : count - 1;
      break;
    default:
      wanted = random_.below(count);
      break;
  }
  return {candidates[wanted], nullptr, 0};
}

Scheduler::Choice Scheduler::choose_async(bool newest) {
  std::vector<Choice> all;
  for (Resident& resident : residents_) {
    for (const auto& cta : resident.cluster->ctas) {
      if (cta->async.empty()) continue;
      for (const std::size_t op : cta->async.eligible()) all.push_back({nullptr, cta.get(), op});
    }
  }
  if (all.empty()) return {};
  return newest ? all.back() : all[random_.below(all.size())];
}

void Scheduler::complete_all_async() {
  for (Resident& resident : residents_) {
    for (const auto& cta : resident.cluster->ctas) {
      for (auto ops = cta->async.eligible(); !ops.empty(); ops = cta->async.eligible()) {
        complete(*cta, ops[0]);
      }
    }
  }
}

std::uint32_t Scheduler::quantum() {
  const std::uint64_t most = random_.below(4) == 0 ? kBriefQuantum : kMaxQuantum;
  return 1 + static_cast<std::uint32_t>(random_.below(most));
}

void Scheduler::run_agent(Agent& agent) {
  const std::uint64_t before = agent.warp->executed();
  const std::uint64_t progress = progress_.count;
  const bool timed = options_.policy == Policy::kTimed;
  std::uint64_t& time = timed ? agent.time : now_;
  if (launch_.tracer != nullptr) launch_.tracer->begin_run(time);
  const exec::Outcome outcome = agent.warp->run(timed ? kTimedQuantum : quantum());
  time += agent.warp->executed() - before;
  agent.exited = outcome == exec::Outcome::kExited;
  note_issues(agent.warp->cta().cluster, time);
  agent.waiting = outcome == exec::Outcome::kBlocked || outcome == exec::Outcome::kPolled;
  if ((agent.exited || agent.waiting) && candidates_at_ == progress_.count) {
    std::erase(candidates_, &agent);  // to look at all of them again takes far longer
    std::erase(unstarved_, &agent);
  }
  // What it did before it began to wait does not help it; what others do afterwards may.
  agent.seen = progress_.count;
  if (progress_.count != last_progress_ || progress != progress_.count) {
    last_progress_ = progress_.count;
    spent_ = 0;
    retries_ = 0;
    return;
  }
  spent_ += agent.warp->executed() - before;
  if (spent_ > options_.spin_budget) report_stuck();
}

// Nobody can go on: polls are tried again for a while, then other threads get their chance.
bool Scheduler::stuck() {
  candidates_at_ = kNever;
  const bool polling = std::ranges::any_of(residents_, [](const Resident& resident) {
    return std::ranges::any_of(resident.agents, [](const Agent& agent) {
      return !agent.warp->exited() && agent.warp->runnable();
    });
  });
  if (polling && retries_++ < kMaxRetries) {
    for (Resident& resident : residents_) {
      for (Agent& agent : resident.agents) agent.waiting = false;
    }
    return false;
  }
  return !polling || team_.size == 1 || !wait_for_others();
}

bool Scheduler::wait_for_others() {
  team_.moving.fetch_sub(1);
  auto deadline = std::chrono::steady_clock::now() + kGrace;
  const std::uint64_t before = progress_.count;
  while (!team_.cancelled.load()) {
    for (Resident& resident : residents_) {
      for (Agent& agent : resident.agents) {
        agent.waiting = false;
        if (!agent.warp->exited() && agent.warp->runnable()) run_agent(agent);
      }
    }
    if (progress_.count != before) break;
    if (team_.moving.load() > 0) deadline = std::chrono::steady_clock::now() + kGrace;
    if (std::chrono::steady_clock::now() > deadline) {
      team_.moving.fetch_add(1);
      return false;
    }
    std::this_thread::yield();
  }
  team_.moving.fetch_add(1);
  retries_ = 0;
  return true;
}

void Scheduler::report_stuck() const {
  const bool loop = spent_ > options_.spin_budget;
  std::string report = loop ? fmt::format("no effect in {} instructions: endless loop", spent_)
                            : "deadlock: no warp can go on";
  int lines = 0;
  for (const Resident& resident : residents_) {
    for (const Agent& agent : resident.agents) {
      if (agent.warp->exited()) continue;
      for (const std::string& line : agent.warp->describe()) {
        if (++lines <= 64) report += "\n  " + line;
      }
    }
    for (const auto& cta : resident.cluster->ctas) {
      for (std::size_t i = 0; i < cta->async.size(); ++i) {
        if (++lines <= 64) report += "\n  in flight: " + cta->async.at(i).describe();
      }
    }
  }
  throw PtxError({launch_.kernel->source->name, 0, {}},
                 fmt::format("kernel {}: {}", launch_.kernel->name, report), Fault::kStuck);
}

}  // namespace mxfa::emu::sched
