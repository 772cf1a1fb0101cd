#pragma once

#include <cstdint>
#include <vector>

#include "check/agents.h"

/// Who knows what: the happens-before relation as vector clocks.
namespace mxfa::emu::check {

/// For each agent the clock up to which its accesses come before. Agents are those of the home
/// cluster; what reaches it from other clusters through global memory is kept apart.
class VectorClock {
 public:
  explicit VectorClock(std::uint32_t home = 0) : home_(home) {}

  std::uint32_t home() const { return home_; }
  Clock at(AgentId agent) const { return agent < own_.size() ? own_[agent] : 0; }
  Clock at(std::uint32_t cluster, AgentId agent) const {
    return cluster == home_ ? at(agent) : foreign_at(cluster, agent);
  }
  /// Of an agent of the home cluster.
  void raise(AgentId agent, Clock clock) { raise_in(own_, agent, clock); }
  void raise(std::uint32_t cluster, AgentId agent, Clock clock) {
    raise_in(get(cluster), agent, clock);
  }
  void join(const VectorClock& other);
  /// Everything that `other` knows is known here.
  bool covers(const VectorClock& other) const;
  /// Keeps what both know. An agent of one lane is known where its warp's agent is.
  void meet(const VectorClock& other, const AgentTable& agents);
  bool empty() const { return own_.empty() && foreign_.empty(); }
  bool home_only() const { return foreign_.empty(); }
  void clear() {
    own_.clear();
    foreign_.clear();
  }

 private:
  struct Foreign {
    std::uint32_t cluster = 0;
    std::vector<Clock> clocks;
  };
  static void raise_in(std::vector<Clock>& clocks, AgentId agent, Clock clock) {
    if (agent >= clocks.size()) clocks.resize(agent + 1u);
    if (clocks[agent] < clock) clocks[agent] = clock;
  }
  Clock foreign_at(std::uint32_t cluster, AgentId agent) const;
  const std::vector<Clock>* find(std::uint32_t cluster) const;
  std::vector<Clock>& get(std::uint32_t cluster);

  std::uint32_t home_;
  std::vector<Clock> own_;
  std::vector<Foreign> foreign_;
};

enum class Space : std::uint8_t { kShared, kGlobal, kTensor };

/// Work of tcgen05 that later work of tcgen05 comes after: work that is complete, and work that has
/// only been issued, which suffices for the pairs that the ISA calls pipelined.
struct TensorOrder {
  explicit TensorOrder(std::uint32_t home = 0) : complete(home), issued(home), finished(home) {}
  VectorClock complete;
  VectorClock issued;
  VectorClock finished;  ///< complete as well, but no tcgen05 fence has let it go

  void join(const TensorOrder& other) {
    complete.join(other.complete);
    issued.join(other.issued);
    finished.join(other.finished);
  }
  bool covers(const TensorOrder& other) const {
    return complete.covers(other.complete) && issued.covers(other.issued) &&
           finished.covers(other.finished);
  }
  bool empty() const { return complete.empty() && issued.empty() && finished.empty(); }
  void clear() {
    complete.clear();
    issued.clear();
    finished.clear();
  }
};

/// Everything that synchronisation carries from one thread to another.
struct Knowledge {
  explicit Knowledge(std::uint32_t home = 0)
      : known(home),
        fenced{VectorClock(home), VectorClock(home)},
        fenced_by_owner{VectorClock(home), VectorClock(home)},
        executed(home),
        tensor(home) {}

  VectorClock known;
  VectorClock fenced[2];           ///< by Space: a proxy fence follows, by anybody on the way
  VectorClock fenced_by_owner[2];  ///< by whoever made the access
  VectorClock
      executed;  ///< came before in time, through a relaxed cluster barrier: no memory order
  /// What tcgen05.fence::before_thread_sync or .commit has let go, whatever the memory order of the
  /// synchronisation that carried it; it counts after a fence::after_thread_sync.
  TensorOrder tensor;

  void join(const Knowledge& other);
  bool covers(const Knowledge& other) const;
  void meet(const Knowledge& other, const AgentTable& agents);
  bool empty() const { return known.empty(); }
  void clear();
};

}  // namespace mxfa::emu::check
