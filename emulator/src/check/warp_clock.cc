#include "check/warp_clock.h"

#include <algorithm>
#include <bit>

namespace mxfa::emu::check {
namespace {

std::size_t index_of(AgentKind kind) {
  return static_cast<std::size_t>(kind) - static_cast<std::size_t>(AgentKind::kCopies);
}

Knowledge& made(std::unique_ptr<Knowledge>& pointer, std::uint32_t home) {
  if (!pointer) pointer = std::make_unique<Knowledge>(home);
  return *pointer;
}

std::unique_ptr<Knowledge> copy_of(const std::unique_ptr<Knowledge>& pointer) {
  return pointer ? std::make_unique<Knowledge>(*pointer) : nullptr;
}

}  // namespace

WarpClock::WarpClock(AgentTable& agents, std::uint32_t warp, std::uint32_t cluster,
                     std::uint32_t lanes)
    : agents_(agents), warp_(warp), cluster_(cluster), threads_(agents.threads_of(warp)) {
  groups_.push_back({lanes, Knowledge(cluster), nullptr, nullptr, false, TensorOrder(cluster)});
}

const WarpClock::Group& WarpClock::group_of(std::uint32_t lane) const {
  return *std::ranges::find_if(groups_,
                               [&](const Group& g) { return ((g.mask >> lane) & 1u) != 0; });
}

template <class Visit>
void WarpClock::for_groups(std::uint32_t mask, const Visit& visit) {
  const std::size_t count = groups_.size();
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t inside = groups_[i].mask & mask;
    if (inside == 0) continue;
    if (inside != groups_[i].mask) {
      groups_[i].mask &= ~inside;
      Group rest{groups_[i].mask,
                 groups_[i].knowledge,
                 copy_of(groups_[i].fenced_release),
                 copy_of(groups_[i].observed),
                 groups_[i].fence_is_cta,
                 groups_[i].tensor};
      groups_[i].mask = inside;
      groups_.push_back(std::move(rest));
    }
    visit(groups_[i]);
  }
}

WarpClock::GroupCounts& WarpClock::counts(AgentKind kind) {
  auto& counts = counts_[index_of(kind)];
  if (!counts) {
    counts = std::make_unique<GroupCounts>();
    counts->agent = agents_.of(kind, warp_);
    counts->open.fill(1);
  }
  return *counts;
}

const WarpClock::GroupCounts* WarpClock::find_counts(AgentKind kind) const {
  return counts_[index_of(kind)].get();
}

void WarpClock::commit_group(AgentKind kind, std::uint32_t lane) {
  counts(kind).committed[lane].push_back(close_batch(kind, lane));
}

void WarpClock::wait_group(AgentKind kind, std::uint32_t lane, std::uint64_t pending) {
  GroupCounts& c = counts(kind);
  std::vector<Clock>& groups = c.committed[lane];
  if (groups.size() <= pending) return;
  const auto end = groups.end() - static_cast<std::ptrdiff_t>(pending);
  c.completed[lane] = *std::prev(end);
  groups.erase(groups.begin(), end);
}

Clock WarpClock::completed(AgentKind kind, std::uint32_t lane) const {
  const GroupCounts* c = find_counts(kind);
  return c == nullptr ? 0 : c->completed[lane];
}

// Where all live lanes take part, the least of them holds for the warp as a whole.
void WarpClock::raise(VectorClock& clock, AgentId whole, const LaneClocks& values,
                      std::uint32_t mask, std::uint32_t live) const {
  if ((live & ~mask) == 0) {
    Clock least = ~Clock{0};
    for (std::uint32_t rest = live; rest != 0; rest &= rest - 1) {
      least = std::min(least, values[static_cast<std::size_t>(std::countr_zero(rest))]);
    }
    if (least > 0 && live != 0) clock.raise(cluster_, whole, least);
  }
  const Clock known = clock.at(cluster_, whole);
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<std::uint32_t>(std::countr_zero(rest));
    if (values[lane] > known) clock.raise(cluster_, agents_.of_lane(whole, lane), values[lane]);
  }
}

// What the lanes' asynchronous copies have completed, and their proxy fences.
void WarpClock::add_own_async(std::uint32_t mask, std::uint32_t live, Knowledge& into) const {
  for (const auto& counts : counts_) {
    if (counts) raise(into.known, counts->agent, counts->completed, mask, live);
  }
  if (!any_fence_) return;
  for (int space = 0; space < 2; ++space) {
    for (VectorClock* clock : {&into.fenced[space], &into.fenced_by_owner[space]}) {
      raise(*clock, threads_, fenced_[space], mask, live);
      for (const auto& counts : counts_) {
        if (counts) raise(*clock, counts->agent, counts->fenced[space], mask, live);
      }
    }
  }
}

// tcgen05 work of the lanes themselves. A load or store is over where all lanes of the warp say so.
void WarpClock::add_own_tensor(std::uint32_t mask, std::uint32_t live, TensorOrder& into) const {
  if (!any_tensor_) return;
  for (const Accesses& accesses : accesses_) {
    if (accesses.done == 0) continue;
    raise(into.finished, accesses.agent, accesses.waited, mask, live);
    raise(into.complete, accesses.agent, accesses.let_go, mask, live);
  }
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<std::uint32_t>(std::countr_zero(rest));
    if (tensor_let_go_[lane] == 0) continue;
    into.issued.raise(cluster_, agents_.of(AgentKind::kTensorPipe, warp_ * kLanes + lane),
                      tensor_let_go_[lane]);
  }
}

void WarpClock::release(std::uint32_t mask, std::uint32_t live, Knowledge& into) {
  for (const Group& group : groups_) {
    if ((group.mask & mask) != 0) into.join(group.knowledge);
  }
  if ((live & ~mask) == 0) {
    into.known.raise(cluster_, threads_, now_);
  } else {
    for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      const auto lane = static_cast<std::uint32_t>(std::countr_zero(rest));
      into.known.raise(cluster_, agents_.of_lane(threads_, lane), now_);
    }
  }
  add_own_async(mask, live, into);
  add_own_tensor(mask, live, into.tensor);
  ++now_;
}

bool WarpClock::has_fenced_release(std::uint32_t mask) const {
  TensorOrder own(cluster_);
  add_own_tensor(mask, mask, own);
  return !own.empty() || std::ranges::any_of(groups_, [&](const Group& g) {
    return (g.mask & mask) != 0 && (g.fenced_release || !g.knowledge.tensor.empty());
  });
}

bool WarpClock::fence_is_cta(std::uint32_t mask) const {
  return std::ranges::any_of(
      groups_, [&](const Group& g) { return (g.mask & mask) != 0 && g.fence_is_cta; });
}

void WarpClock::release_fenced(std::uint32_t mask, std::uint32_t live, Knowledge& into) const {
  std::uint32_t lanes = 0;
  for (const Group& group : groups_) {
    if ((group.mask & mask) == 0) continue;
    into.tensor.join(group.knowledge.tensor);
    if (!group.fenced_release) continue;
    into.join(*group.fenced_release);
    lanes |= group.mask & mask;
  }
  add_own_tensor(mask, live, into.tensor);
  raise(into.known, threads_, thread_fence_, lanes, live);
  add_own_async(lanes, live, into);
}

void WarpClock::acquire(std::uint32_t mask, const Knowledge& from) {
  const bool news = std::ranges::any_of(groups_, [&](const Group& group) {
    return (group.mask & mask) != 0 && !group.knowledge.covers(from);
  });
  if (!news) return;
  for_groups(mask, [&](Group& group) { group.knowledge.join(from); });
}

void WarpClock::meet_at(std::uint32_t mask, const Knowledge& from) {
  for_groups(mask, [&](Group& group) { group.knowledge.join(from); });
  // Equal groups become one; pending fences keep a group apart.
  const auto plain = [&](const Group& g) {
    return (g.mask & ~mask) == 0 && !g.fenced_release && !g.observed;
  };
  const auto first = std::ranges::find_if(groups_, plain);
  if (first == groups_.end()) return;
  for (auto it = first + 1; it != groups_.end();) {
    const bool same_order = first->tensor.covers(it->tensor) && it->tensor.covers(first->tensor);
    if (!plain(*it) || !same_order) {
      ++it;
      continue;
    }
    first->mask |= it->mask;
    it = groups_.erase(it);
  }
}

void WarpClock::proxy_fence(std::uint32_t mask, bool shared, bool global) {
  const bool wanted[2] = {shared, global};
  any_fence_ = true;
  for (int space = 0; space < 2; ++space) {
    if (!wanted[space]) continue;
    for_groups(mask,
               [&](Group& group) { group.knowledge.fenced[space].join(group.knowledge.known); });
    for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      const auto lane = static_cast<std::size_t>(std::countr_zero(rest));
      fenced_[space][lane] = now_;
      for (const auto& counts : counts_) {
        if (counts) counts->fenced[space][lane] = counts->completed[lane];
      }
    }
  }
  ++now_;
}

void WarpClock::thread_fence(std::uint32_t mask, const Fence& fence) {
  for_groups(mask, [&](Group& group) {
    if (fence.acquires && group.observed) {
      group.knowledge.join(*group.observed);
      group.observed.reset();
    }
    if (!fence.releases) return;
    group.fence_is_cta = fence.cta_scope && (group.fence_is_cta || !group.fenced_release);
    made(group.fenced_release, group.knowledge.known.home()).join(group.knowledge);
  });
  if (!fence.releases) return;
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    thread_fence_[static_cast<std::size_t>(std::countr_zero(rest))] = now_;
  }
  ++now_;
}

void WarpClock::observe(std::uint32_t mask, const Knowledge& from) {
  for_groups(mask, [&](Group& group) {
    made(group.observed, group.knowledge.known.home()).join(from);
    group.knowledge.tensor.join(from.tensor);
  });
}

void WarpClock::wait_accesses(std::uint32_t mask, bool load) {
  Accesses& accesses = accesses_[load ? 0 : 1];
  if (accesses.issued == 0) return;
  accesses.done = accesses.issued;
  accesses.agent = agents_.of(load ? AgentKind::kTensorLoads : AgentKind::kTensorStores, warp_);
  any_tensor_ = true;
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    accesses.waited[static_cast<std::size_t>(std::countr_zero(rest))] = accesses.done;
  }
}

void WarpClock::tensor_fence_before(std::uint32_t mask) {
  any_tensor_ = true;
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<std::size_t>(std::countr_zero(rest));
    for (Accesses& accesses : accesses_) accesses.let_go[lane] = accesses.waited[lane];
    tensor_let_go_[lane] = tensor_issued_[lane];
  }
}

void WarpClock::tensor_fence_after(std::uint32_t mask) {
  for_groups(mask, [&](Group& group) { group.tensor.join(group.knowledge.tensor); });
}

TensorOrder WarpClock::tensor_order() const {
  TensorOrder all(cluster_);
  for (const Group& group : groups_) all.join(group.tensor);
  return all;
}

void WarpClock::learn(std::uint32_t mask, std::uint32_t cluster, AgentId agent, Clock clock) {
  const bool news = std::ranges::any_of(groups_, [&](const Group& group) {
    return (group.mask & mask) != 0 && group.knowledge.known.at(cluster, agent) < clock;
  });
  if (!news) return;
  for_groups(mask, [&](Group& group) { group.knowledge.known.raise(cluster, agent, clock); });
}

void WarpClock::fence_init(std::uint32_t mask, AgentId barrier, Clock clock) {
  for_groups(mask, [&](Group& group) {
    Knowledge& released = made(group.fenced_release, cluster_);
    released.known.raise(barrier, clock);
    for (Knowledge* knowledge : {&released, &group.knowledge}) {
      knowledge->fenced[0].raise(barrier, clock);
      knowledge->fenced_by_owner[0].raise(barrier, clock);
    }
  });
}

void WarpClock::release_executed(std::uint32_t mask, std::uint32_t live, Knowledge& into) {
  Knowledge all(cluster_);
  release(mask, live, all);
  into.executed.join(all.known);
  into.executed.join(all.executed);
}

}  // namespace mxfa::emu::check
