#include "check/vector_clock.h"

#include "check/shadow.h"
#include "check/warp_clock.h"
#include "support.h"

/// The core of the hazard checker by itself: clocks, what warps know, shadow memory.
namespace mxfa::emu::test {
namespace {

using namespace check;

constexpr std::uint32_t kAll = 0xFFFFFFFFu;

TEST(VectorClock, JoinIsTheMaximumAndCoversIsTheOrder) {
  VectorClock a;
  VectorClock b;
  EXPECT_TRUE(a.covers(b));
  a.raise(1, 5);
  a.raise(2, 1);
  a.raise(1, 3);  // never back
  b.raise(2, 7);
  b.raise(9, 2);
  EXPECT_EQ(a.at(1), 5u);
  EXPECT_EQ(a.at(9), 0u);
  EXPECT_FALSE(a.covers(b));
  EXPECT_FALSE(b.covers(a));
  VectorClock both = a;
  both.join(b);
  EXPECT_TRUE(both.covers(a) && both.covers(b));
  EXPECT_EQ(both.at(1), 5u);
  EXPECT_EQ(both.at(2), 7u);
  EXPECT_EQ(both.at(9), 2u);
  both.clear();
  EXPECT_TRUE(both.empty());
  EXPECT_FALSE(both.covers(a));
}

TEST(VectorClock, OtherClustersAreKeptApart) {
  VectorClock home(3);
  VectorClock other(4);
  other.raise(1, 10);
  home.raise(1, 2);
  home.join(other);
  EXPECT_EQ(home.at(1), 2u);
  EXPECT_EQ(home.at(3, 1), 2u);
  EXPECT_EQ(home.at(4, 1), 10u);
  EXPECT_TRUE(home.covers(other));
  // And back: what the other knows of this one.
  other.join(home);
  EXPECT_EQ(other.at(3, 1), 2u);
  EXPECT_EQ(other.at(1), 10u);
  home.raise(1, 3);
  EXPECT_FALSE(other.covers(home));
}

TEST(VectorClock, MeetKeepsWhatBothKnow) {
  AgentTable agents(2);
  const AgentId warp = agents.threads_of(0);
  const AgentId lane = agents.of_lane(warp, 7);
  VectorClock a;
  VectorClock b;
  a.raise(warp, 9);  // all lanes, so lane 7 as well
  b.raise(lane, 4);
  b.raise(agents.threads_of(1), 4);
  a.meet(b, agents);
  EXPECT_EQ(a.at(warp), 0u);
  EXPECT_EQ(a.at(lane), 4u);
  EXPECT_EQ(a.at(agents.threads_of(1)), 0u);
}

class WarpClocks : public testing::Test {
 protected:
  WarpClocks() : agents_(tables_.add(0, 2)) {}

  /// Is an access of `from`, made now by `lane`, known to each lane of `mask` of `to`?
  static bool knows(const WarpClock& to, std::uint32_t lane, const WarpClock& from, Clock clock) {
    return to.group_of(lane).knowledge.known.at(from.threads()) >= clock;
  }

  AgentTables tables_;
  AgentTable& agents_;
  WarpClock first_{agents_, 0, 0, kAll};
  WarpClock second_{agents_, 1, 0, kAll};
};

TEST_F(WarpClocks, ReleaseAndAcquireCarryTheTime) {
  const Clock before = first_.now();
  Knowledge at;
  first_.release(kAll, kAll, at);
  EXPECT_GT(first_.now(), before) << "what comes after a release is not released";
  EXPECT_FALSE(knows(second_, 0, first_, before));
  second_.acquire(kAll, at);
  EXPECT_TRUE(knows(second_, 0, first_, before));
  EXPECT_FALSE(knows(second_, 0, first_, first_.now()));
}

TEST_F(WarpClocks, LanesThatSynchroniseAloneKnowAlone) {
  const Clock before = first_.now();
  Knowledge at;
  first_.release(1u << 4, kAll, at);  // lane 4 alone: the warp as a whole has released nothing
  second_.acquire(1u << 9, at);
  EXPECT_FALSE(knows(second_, 9, first_, before));
  const AgentId lane = agents_.find_lane(first_.threads(), 4);
  ASSERT_NE(lane, kNoAgent);
  EXPECT_EQ(second_.group_of(9).knowledge.known.at(lane), before);
  EXPECT_EQ(second_.group_of(8).knowledge.known.at(lane), 0u);
  EXPECT_EQ(second_.groups().size(), 2u);
  // A barrier of the warp makes the groups one again.
  Knowledge all;
  second_.release(kAll, kAll, all);
  second_.meet_at(kAll, all);
  EXPECT_EQ(second_.groups().size(), 1u);
  EXPECT_EQ(second_.group_of(0).knowledge.known.at(lane), before);
}

TEST_F(WarpClocks, ProxyFencesCountWhatCameBefore) {
  const Clock before = first_.now();
  first_.proxy_fence(kAll, true, false);
  const Clock after = first_.now();
  Knowledge at;
  first_.release(kAll, kAll, at);
  EXPECT_GE(at.fenced_by_owner[0].at(first_.threads()), before);
  EXPECT_LT(at.fenced_by_owner[0].at(first_.threads()), after);
  EXPECT_EQ(at.fenced_by_owner[1].at(first_.threads()), 0u) << "global memory was not fenced";
}

TEST_F(WarpClocks, RelaxedWritesReleaseWhatAFenceHasLetGo) {
  const Clock before = first_.now();
  Knowledge at;
  first_.release_fenced(kAll, kAll, at);
  EXPECT_EQ(at.known.at(first_.threads()), 0u);
  first_.thread_fence(kAll, {false, true, false});
  const Clock after = first_.now();
  first_.release_fenced(kAll, kAll, at);
  EXPECT_GE(at.known.at(first_.threads()), before);
  EXPECT_LT(at.known.at(first_.threads()), after);
  // A relaxed read takes it in at the next acquiring fence.
  second_.observe(kAll, at);
  EXPECT_FALSE(knows(second_, 0, first_, before));
  second_.thread_fence(kAll, {true, false, false});
  EXPECT_TRUE(knows(second_, 0, first_, before));
}

TEST_F(WarpClocks, GroupsOfCopiesCompleteInOrder) {
  const AgentKind kind = AgentKind::kCopies;
  const Clock one = first_.open_batch(kind, 3);
  first_.commit_group(kind, 3);
  const Clock two = first_.open_batch(kind, 3);
  EXPECT_GT(two, one);
  first_.commit_group(kind, 3);
  first_.wait_group(kind, 3, 1);
  EXPECT_EQ(first_.completed(kind, 3), one);
  EXPECT_EQ(first_.completed(kind, 4), 0u) << "another lane's";
  first_.wait_group(kind, 3, 0);
  EXPECT_EQ(first_.completed(kind, 3), two);
}

TEST_F(WarpClocks, TensorFencesLetGoAndLetIn) {
  const AgentId loads = agents_.of(AgentKind::kTensorLoads, 0);
  const Clock load = first_.issue_access(true);
  first_.tensor_fence_before(kAll);
  Knowledge at;
  first_.release(kAll, kAll, at);
  EXPECT_EQ(at.tensor.complete.at(loads), 0u) << "not waited for";
  first_.wait_accesses(kAll, true);
  first_.release(kAll, kAll, at);
  EXPECT_EQ(at.tensor.complete.at(loads), 0u) << "no fence since the wait";
  EXPECT_EQ(at.tensor.finished.at(loads), load);
  first_.tensor_fence_before(kAll);
  first_.release(kAll, kAll, at);
  EXPECT_EQ(at.tensor.complete.at(loads), load);
  second_.acquire(kAll, at);
  EXPECT_EQ(second_.tensor_order().complete.at(loads), 0u) << "no fence after";
  second_.tensor_fence_after(kAll);
  EXPECT_EQ(second_.tensor_order().complete.at(loads), load);
}

/// Two warps that write and read 16 bytes.
class ShadowMemory : public WarpClocks, protected ConflictSink {
 protected:
  void conflict(const Conflict& conflict) override {
    orders_.push_back(conflict.order);
    address_ = conflict.address;
    bytes_ = conflict.bytes;
  }
  bool morally_strong(const AccessRecord&, const AccessRecord&) const override { return true; }

  /// Returns how many conflicts it finds.
  std::size_t touch(const WarpClock& warp, bool write, std::uint8_t units = 0xF,
                    std::uint8_t flags = 0, std::uint32_t lane = 0) {
    MemoryAccessor by(warp.group_of(lane).knowledge, tables_, Space::kShared, warp);
    Shadow::Touch touch{by, {}, write, 64};
    touch.record.cluster = warp.group_of(lane).knowledge.known.home();
    touch.record.clock = warp.now();
    touch.record.agent = warp.threads();
    touch.record.units = units;
    touch.record.flags = flags;
    touch.record.lanes = lane_code(lane, units);
    const std::size_t before = orders_.size();
    shadow_.touch(granule_, touch);
    return orders_.size() - before;
  }
  void synchronise(WarpClock& from, WarpClock& to) {
    Knowledge at(to.group_of(0).knowledge.known.home());
    from.release(kAll, kAll, at);
    to.acquire(kAll, at);
  }

  Shadow shadow_{*this};
  Granule granule_;
  std::vector<Order> orders_;
  std::uint64_t address_ = 0;
  std::uint32_t bytes_ = 0;
};

TEST_F(ShadowMemory, WritesConflictUnlessOrdered) {
  EXPECT_EQ(touch(first_, true), 0u);
  EXPECT_EQ(touch(first_, true), 0u) << "program order";
  EXPECT_EQ(touch(second_, false), 1u);
  EXPECT_EQ(orders_.back(), Order::kUnordered);
  synchronise(first_, second_);
  EXPECT_EQ(touch(second_, false), 0u);
  EXPECT_EQ(touch(second_, true), 0u);
  EXPECT_EQ(touch(first_, false), 1u) << "the order has one direction";
}

TEST_F(ShadowMemory, ReadsConflictWithWritesOnly) {
  EXPECT_EQ(touch(first_, false), 0u);
  EXPECT_EQ(touch(second_, false), 0u);
  EXPECT_EQ(touch(second_, true), 1u) << "with the first warp's read";
  synchronise(first_, second_);
  EXPECT_EQ(touch(second_, true), 0u);
}

TEST_F(ShadowMemory, EveryReaderCounts) {
  EXPECT_EQ(touch(first_, false, 0xF, 0, 1), 0u);
  EXPECT_EQ(touch(first_, false, 0xF, 0, 2), 0u);
  EXPECT_EQ(touch(second_, false), 0u);
  EXPECT_EQ(touch(second_, true), 2u) << "two lanes of the first warp";
}

// More than are looked at one by one, again and again: no reader is forgotten, none counts twice.
TEST_F(ShadowMemory, ManyReadersCountOnce) {
  AgentTable& agents = tables_.add(1, 41);
  std::vector<WarpClock> warps;
  for (std::uint32_t warp = 0; warp < 41; ++warp) warps.emplace_back(agents, warp, 1, kAll);
  WarpClock& writer = warps.back();
  const auto read_by = [&](std::uint32_t first) {
    for (std::uint32_t round = 0; round < 20; ++round) {
      for (std::uint32_t warp = first; warp < 40; ++warp) {
        EXPECT_EQ(touch(warps[warp * 7 % 40], false), 0u);
      }
    }
  };
  read_by(0);
  for (std::uint32_t warp = 1; warp < 40; ++warp) synchronise(warps[warp], writer);
  EXPECT_EQ(touch(writer, true), 1u) << "the one that has not synchronised";
  shadow_.forget(granule_);
  read_by(0);
  for (std::uint32_t warp = 0; warp < 40; ++warp) synchronise(warps[warp], writer);
  EXPECT_EQ(touch(warps[7], false), 0u);  // the second of them
  read_by(2);
  for (std::uint32_t warp = 0; warp < 40; ++warp) {
    if (warp != 7) synchronise(warps[warp], writer);
  }
  EXPECT_EQ(touch(writer, true), 1u) << "the one that has read again since";
  shadow_.forget(granule_);
  read_by(0);
  EXPECT_GE(touch(first_, true), 40u);
}

TEST_F(ShadowMemory, WordsHaveHistoriesOfTheirOwn) {
  EXPECT_EQ(touch(first_, true, 0b0011), 0u);
  EXPECT_EQ(touch(second_, true, 0b1100), 0u);
  EXPECT_EQ(touch(second_, false, 0b0110), 1u);
  EXPECT_EQ(address_, 64u + 4);
  EXPECT_EQ(bytes_, 4u);
}

TEST_F(ShadowMemory, AtomicsDoNotConflictWithEachOther) {
  EXPECT_EQ(touch(first_, true, 0xF, AccessRecord::kStrong), 0u);
  EXPECT_EQ(touch(second_, true, 0xF, AccessRecord::kStrong), 0u);
  EXPECT_EQ(touch(second_, false), 1u) << "a plain read of what the first warp's atomic wrote";
}

TEST_F(ShadowMemory, ForgottenMemoryHasNoHistory) {
  EXPECT_EQ(touch(first_, true), 0u);
  shadow_.forget(granule_);
  EXPECT_EQ(touch(second_, true), 0u);
}

}  // namespace
}  // namespace mxfa::emu::test
