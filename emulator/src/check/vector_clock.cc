#include "check/vector_clock.h"

#include <algorithm>

namespace mxfa::emu::check {
namespace {

void join_into(std::vector<Clock>& to, const std::vector<Clock>& from) {
  if (to.size() < from.size()) to.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = std::max(to[i], from[i]);
}

bool covers_all(const std::vector<Clock>& known, const std::vector<Clock>& other) {
  for (std::size_t i = 0; i < other.size(); ++i) {
    if (other[i] > (i < known.size() ? known[i] : 0)) return false;
  }
  return true;
}

}  // namespace

const std::vector<Clock>* VectorClock::find(std::uint32_t cluster) const {
  if (cluster == home_) return &own_;
  const auto it = std::ranges::lower_bound(foreign_, cluster, {}, &Foreign::cluster);
  return it != foreign_.end() && it->cluster == cluster ? &it->clocks : nullptr;
}

std::vector<Clock>& VectorClock::get(std::uint32_t cluster) {
  if (cluster == home_) return own_;
  const auto it = std::ranges::lower_bound(foreign_, cluster, {}, &Foreign::cluster);
  if (it != foreign_.end() && it->cluster == cluster) return it->clocks;
  return foreign_.insert(it, {cluster, {}})->clocks;
}

Clock VectorClock::foreign_at(std::uint32_t cluster, AgentId agent) const {
  const std::vector<Clock>* clocks = find(cluster);
  return clocks != nullptr && agent < clocks->size() ? (*clocks)[agent] : 0;
}

void VectorClock::join(const VectorClock& other) {
  if (!other.own_.empty()) join_into(get(other.home_), other.own_);
  for (const Foreign& foreign : other.foreign_) join_into(get(foreign.cluster), foreign.clocks);
}

bool VectorClock::covers(const VectorClock& other) const {
  static const std::vector<Clock> kNothing;
  const auto covered = [&](std::uint32_t cluster, const std::vector<Clock>& clocks) {
    const std::vector<Clock>* known = find(cluster);
    return covers_all(known == nullptr ? kNothing : *known, clocks);
  };
  return covered(other.home_, other.own_) &&
         std::ranges::all_of(other.foreign_, [&](const Foreign& foreign) {
           return covered(foreign.cluster, foreign.clocks);
         });
}

void VectorClock::meet(const VectorClock& other, const AgentTable& agents) {
  const std::vector<Clock> before = own_;
  const auto effective = [&](const auto& clock_of, AgentId agent) {
    return std::max(clock_of(agent), clock_of(agents[agent].whole));
  };
  const auto mine = [&](AgentId agent) { return agent < before.size() ? before[agent] : 0; };
  const auto theirs = [&](AgentId agent) { return other.at(agent); };
  own_.resize(std::max(own_.size(), other.own_.size()));
  for (std::size_t i = 1; i < own_.size(); ++i) {
    const auto agent = static_cast<AgentId>(i);
    own_[i] = std::min<Clock>(effective(mine, agent), effective(theirs, agent));
  }
  for (Foreign& foreign : foreign_) {
    for (std::size_t i = 0; i < foreign.clocks.size(); ++i) {
      foreign.clocks[i] =
          std::min(foreign.clocks[i], other.at(foreign.cluster, static_cast<AgentId>(i)));
    }
  }
}

void Knowledge::join(const Knowledge& other) {
  known.join(other.known);
  for (int space = 0; space < 2; ++space) {
    fenced[space].join(other.fenced[space]);
    fenced_by_owner[space].join(other.fenced_by_owner[space]);
  }
  executed.join(other.executed);
  tensor.join(other.tensor);
}

bool Knowledge::covers(const Knowledge& other) const {
  for (int space = 0; space < 2; ++space) {
    if (!fenced[space].covers(other.fenced[space])) return false;
    if (!fenced_by_owner[space].covers(other.fenced_by_owner[space])) return false;
  }
  return known.covers(other.known) && executed.covers(other.executed) &&
         tensor.covers(other.tensor);
}

void Knowledge::meet(const Knowledge& other, const AgentTable& agents) {
  known.meet(other.known, agents);
  for (int space = 0; space < 2; ++space) {
    fenced[space].meet(other.fenced[space], agents);
    fenced_by_owner[space].meet(other.fenced_by_owner[space], agents);
  }
}

void Knowledge::clear() {
  known.clear();
  for (int space = 0; space < 2; ++space) {
    fenced[space].clear();
    fenced_by_owner[space].clear();
  }
  executed.clear();
  tensor.clear();
}

}  // namespace mxfa::emu::check
