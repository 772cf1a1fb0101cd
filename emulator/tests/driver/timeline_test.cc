#include "timeline.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace mxfa::emu::driver {
namespace {

/// Records which ops ran, in order.
class TimelineTest : public testing::Test {
 protected:
  OpPtr submit(char name, std::initializer_list<OpPtr> after = {}, std::uint64_t owner = 1) {
    const std::vector<OpPtr> before(after);
    return timeline_.submit(
        owner, [this, name] { ran_ += name; }, before);
  }
  Timeline timeline_;
  std::string ran_;
};

TEST_F(TimelineTest, OrderIsWhatWasAskedForUnderEveryPolicy) {
  for (const Policy policy :
       {Policy::kRandom, Policy::kEarliest, Policy::kLatest, Policy::kLifo, Policy::kStarve}) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      timeline_.configure(policy, seed);
      ran_.clear();
      const OpPtr a = submit('a');
      const OpPtr b = submit('b', {a});
      const OpPtr c = submit('c', {a});
      const OpPtr d = submit('d', {b, c, nullptr});
      timeline_.run_until(d);
      ASSERT_TRUE(ran_ == "abcd" || ran_ == "acbd") << ran_;
      ASSERT_TRUE(a->done && b->done && c->done && d->done);
    }
  }
}

TEST_F(TimelineTest, RandomTakesEveryOrderAndReplays) {
  std::set<std::string> orders;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    std::string first;
    for (int repeat = 0; repeat < 2; ++repeat) {
      timeline_.configure(Policy::kRandom, seed);
      ran_.clear();
      for (const char name : {'a', 'b', 'c'}) submit(name);
      timeline_.run_all(1);
      if (repeat == 0) first = ran_;
      ASSERT_EQ(ran_, first);
    }
    orders.insert(ran_);
  }
  EXPECT_EQ(orders.size(), 6u);
}

TEST_F(TimelineTest, LatestRunsOnlyWhatIsNeeded) {
  timeline_.configure(Policy::kLatest, 0);
  const OpPtr a = submit('a');
  const OpPtr b = submit('b');
  const OpPtr c = submit('c', {b});
  timeline_.run_until(c);
  EXPECT_EQ(ran_, "bc");
  timeline_.run_until(a);
  EXPECT_EQ(ran_, "bca");
}

TEST_F(TimelineTest, EarliestRunsAtOnce) {
  timeline_.configure(Policy::kEarliest, 0);
  submit('a');
  EXPECT_EQ(ran_, "a");
}

TEST_F(TimelineTest, LifoRunsTheNewestFirst) {
  timeline_.configure(Policy::kLifo, 0);
  for (const char name : {'a', 'b', 'c'}) submit(name);
  timeline_.run_all(1);
  EXPECT_EQ(ran_, "cba");
}

TEST_F(TimelineTest, DroppedWorkDoesNotRunButLetsOthersGoOn) {
  timeline_.configure(Policy::kLatest, 0);
  OpPtr last;
  const OpPtr fault = timeline_.submit(1, [this] { timeline_.drop(1); }, {});
  const OpPtr lost = submit('x', {fault}, 1);
  last = submit('a', {lost}, 2);
  timeline_.run_until(last);
  EXPECT_EQ(ran_, "a");
  EXPECT_TRUE(lost->done);
  timeline_.run_all(1);
  submit('b');
  timeline_.run_all(1);
  EXPECT_EQ(ran_, "ab");
}

}  // namespace
}  // namespace mxfa::emu::driver
