#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "check/vector_clock.h"

namespace mxfa::emu::check {

/// The time of one warp. Each lane knows by program order what it did itself; of what others did,
/// lanes that have synchronised alike know the same and form a group. What other lanes of the warp
/// did is known only through synchronisation, as the ISA has it: converged or not.
class WarpClock {
 public:
  struct Group {
    std::uint32_t mask = 0;
    Knowledge knowledge;
    /// What a strong write releases because of a fence before it, and what a fence acquires
    /// because of strong reads before it. Null until there is something.
    std::unique_ptr<Knowledge> fenced_release;
    std::unique_ptr<Knowledge> observed;
    bool fence_is_cta = false;  ///< the fence reaches no further than the block
    TensorOrder tensor;         ///< what the last fence::after_thread_sync has let in
  };
  struct Fence {
    bool acquires = false;
    bool releases = false;
    bool cta_scope = false;
  };

  WarpClock(AgentTable& agents, std::uint32_t warp, std::uint32_t cluster, std::uint32_t lanes);

  AgentId threads() const { return threads_; }
  std::uint32_t warp() const { return warp_; }
  /// The clock of accesses that happen now.
  Clock now() const { return now_; }
  const std::vector<Group>& groups() const { return groups_; }
  const Group& group_of(std::uint32_t lane) const;

  /// Joins what the lanes in `mask` know and have done into `into`. `live`: the warp's lanes that
  /// have not exited; where all of them are in the mask, the warp is released as a whole.
  void release(std::uint32_t mask, std::uint32_t live, Knowledge& into);
  void acquire(std::uint32_t mask, const Knowledge& from);
  /// As acquire(), from something that these lanes have released into: they then know the same.
  void meet_at(std::uint32_t mask, const Knowledge& from);

  /// fence.proxy.async in these spaces.
  void proxy_fence(std::uint32_t mask, bool shared, bool global);
  /// fence.{acquire,release,acq_rel,sc}.
  void thread_fence(std::uint32_t mask, const Fence& fence);
  /// What a relaxed write releases: what was known and done at the last fence, and tcgen05 work.
  void release_fenced(std::uint32_t mask, std::uint32_t live, Knowledge& into) const;
  bool has_fenced_release(std::uint32_t mask) const;
  bool fence_is_cta(std::uint32_t mask) const;
  /// A strong read of something released, without memory order of its own.
  void observe(std::uint32_t mask, const Knowledge& from);
  /// Raises what the lanes know of one agent.
  void learn(std::uint32_t mask, AgentId agent, Clock clock) {
    learn(mask, cluster_, agent, clock);
  }
  void learn(std::uint32_t mask, std::uint32_t cluster, AgentId agent, Clock clock);
  /// fence.mbarrier_init for one barrier: the async proxy sees its init, and so does whoever a
  /// relaxed write of these lanes reaches.
  void fence_init(std::uint32_t mask, AgentId barrier, Clock clock);
  /// What the lanes have done and know, as mere execution order.
  void release_executed(std::uint32_t mask, std::uint32_t live, Knowledge& into);

  // tcgen05. Loads and stores are counted by warp, mma and cp by lane. That they have been waited
  // for, and let go by a fence, each lane knows of itself alone.
  Clock issue_tensor(std::uint32_t lane) { return ++tensor_issued_[lane]; }
  Clock tensor_issued(std::uint32_t lane) const { return tensor_issued_[lane]; }
  Clock issue_access(bool load) { return ++accesses_[load ? 0 : 1].issued; }
  void wait_accesses(std::uint32_t mask, bool load);
  Clock accesses_done(bool load) const { return accesses_[load ? 0 : 1].done; }
  void tensor_fence_before(std::uint32_t mask);
  void tensor_fence_after(std::uint32_t mask);
  /// Of all lanes together.
  TensorOrder tensor_order() const;

  /// Asynchronous copies, lane by lane: the clock counts batches, which end at each commit and
  /// wherever else the copies so far are told from later ones.
  Clock open_batch(AgentKind kind, std::uint32_t lane) { return counts(kind).open[lane]; }
  /// Returns the batch that ends.
  Clock close_batch(AgentKind kind, std::uint32_t lane) { return counts(kind).open[lane]++; }
  void commit_group(AgentKind kind, std::uint32_t lane);
  /// All but the newest `pending` groups of the lane are complete.
  void wait_group(AgentKind kind, std::uint32_t lane, std::uint64_t pending);
  /// Batches of the lane that it has seen complete.
  Clock completed(AgentKind kind, std::uint32_t lane) const;

 private:
  struct GroupCounts {
    AgentId agent = kNoAgent;
    std::array<Clock, kLanes> open{};  ///< number of the batch that is filling up, from 1
    std::array<Clock, kLanes> completed{};
    std::array<std::vector<Clock>, kLanes> committed;  ///< last batches of groups not waited for
    std::array<Clock, kLanes> fenced[2] = {};  ///< completed at the last proxy fence, by Space
  };
  using LaneClocks = std::array<Clock, kLanes>;
  static constexpr std::size_t kGroupKinds = 3;

  GroupCounts& counts(AgentKind kind);
  const GroupCounts* find_counts(AgentKind kind) const;
  void raise(VectorClock& clock, AgentId whole, const LaneClocks& values, std::uint32_t mask,
             std::uint32_t live) const;
  void add_own_async(std::uint32_t mask, std::uint32_t live, Knowledge& into) const;
  void add_own_tensor(std::uint32_t mask, std::uint32_t live, TensorOrder& into) const;
  /// Calls visit(group) for each group inside `mask`, splitting those that lie across its border.
  template <class Visit>
  void for_groups(std::uint32_t mask, const Visit& visit);

  AgentTable& agents_;
  std::uint32_t warp_;
  std::uint32_t cluster_;
  AgentId threads_;
  Clock now_ = 1;
  std::vector<Group> groups_;
  LaneClocks fenced_[2] = {};  ///< clock of each lane's last proxy fence, by Space
  struct Accesses {
    AgentId agent = kNoAgent;
    Clock issued = 0;
    Clock done = 0;
    LaneClocks waited{};  ///< what each lane has waited for
    LaneClocks let_go{};  ///< the same at its last fence::before_thread_sync
  };
  Accesses accesses_[2];  ///< tcgen05.ld, .st
  LaneClocks tensor_issued_{};
  LaneClocks tensor_let_go_{};  ///< tensor_issued_ at the lane's last fence::before_thread_sync
  bool any_tensor_ = false;     ///< anything has been waited for or let go
  LaneClocks thread_fence_{};   ///< clock of each lane's last releasing fence
  bool any_fence_ = false;
  std::unique_ptr<GroupCounts> counts_[kGroupKinds];
};

}  // namespace mxfa::emu::check
