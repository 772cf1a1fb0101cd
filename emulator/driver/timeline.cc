#include "timeline.h"

#include <algorithm>
#include <set>
#include <utility>

namespace mxfa::emu::driver {
namespace {

// SplitMix64.
std::uint64_t next_random(std::uint64_t& state) {
  std::uint64_t z = state += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace

void Timeline::configure(Policy policy, std::uint64_t seed) {
  policy_ = policy;
  random_ = seed;
}

OpPtr Timeline::submit(std::uint64_t owner, std::function<void()> run,
                       std::span<const OpPtr> after) {
  auto op = std::make_shared<Op>();
  op->run = std::move(run);
  op->owner = owner;
  op->number = next_number_++;
  for (const OpPtr& earlier : after) {
    if (earlier == nullptr || earlier->done) continue;
    op->after.push_back(earlier);
    earlier->dependents.push_back(op);
    ++op->waits;
  }
  pending_.emplace(op->number, op);
  if (op->waits == 0) make_ready(op);
  if (policy_ == Policy::kEarliest) run_until(op);
  return op;
}

void Timeline::make_ready(const OpPtr& op) {
  const auto at = std::ranges::upper_bound(ready_, op->number, {},
                                           [](const OpPtr& other) { return other->number; });
  ready_.insert(at, op);
}

void Timeline::run_until(const OpPtr& op) {
  while (!op->done) execute(choose(op));
}

void Timeline::run_all(std::uint64_t owner) {
  for (;;) {
    const auto it = std::ranges::find_if(
        pending_, [&](const auto& item) { return item.second->owner == owner; });
    if (it == pending_.end()) return;
    run_until(OpPtr(it->second));
  }
}

// Something is always ready: ops wait for earlier ones only.
std::size_t Timeline::choose(const OpPtr& wanted) {
  switch (policy_) {
    case Policy::kEarliest:
      return 0;
    case Policy::kLatest:
      return choose_needed(wanted);
    case Policy::kLifo:
    case Policy::kStarve:
      return ready_.size() - 1;
    default:
      return next_random(random_) % ready_.size();
  }
}

std::size_t Timeline::choose_needed(const OpPtr& wanted) const {
  std::set<const Op*> needed{wanted.get()};
  std::vector<const Op*> open{wanted.get()};
  while (!open.empty()) {
    const Op* op = open.back();
    open.pop_back();
    for (const OpPtr& earlier : op->after) {
      if (!earlier->done && needed.insert(earlier.get()).second) open.push_back(earlier.get());
    }
  }
  const auto it =
      std::ranges::find_if(ready_, [&](const OpPtr& op) { return needed.contains(op.get()); });
  return static_cast<std::size_t>(it - ready_.begin());
}

void Timeline::execute(std::size_t index) {
  const OpPtr op = ready_[index];
  ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(index));
  const std::function<void()> run = std::move(op->run);
  if (run) run();
  finish(op);
}

void Timeline::finish(const OpPtr& op) {
  if (op->done) return;  // dropped while it ran
  op->done = true;
  op->finished = std::chrono::steady_clock::now();
  pending_.erase(op->number);
  op->after.clear();
  for (const OpPtr& later : std::exchange(op->dependents, {})) {
    if (--later->waits == 0 && !later->done) make_ready(later);
  }
}

void Timeline::drop(std::uint64_t owner) {
  std::vector<OpPtr> dropped;
  for (const auto& [number, op] : pending_) {
    if (op->owner == owner) dropped.push_back(op);
  }
  for (const OpPtr& op : dropped) {
    op->run = {};
    finish(op);
  }
  std::erase_if(ready_, [](const OpPtr& op) { return op->done; });
}

}  // namespace mxfa::emu::driver
