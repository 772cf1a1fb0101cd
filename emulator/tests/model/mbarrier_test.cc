#include "model/mbarrier.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "expect_fault.h"

namespace mxfa::emu::model {
namespace {

Mbarrier::ArriveOptions with_count(std::uint64_t count) { return {.count = count}; }

TEST(Mbarrier, PhaseCompletesWhenArrivalsAndBytesAreIn) {
  Mbarrier barrier(2);
  EXPECT_FALSE(barrier.wait_parity(0).complete);
  EXPECT_TRUE(barrier.wait_parity(1).complete) << "producers start with the other parity";
  EXPECT_EQ(barrier.wait_parity(1).phase, -1);
  EXPECT_FALSE(barrier.arrive({.expect_tx = 512}).completed);
  EXPECT_EQ(barrier.tx_count(), 512);
  EXPECT_FALSE(barrier.arrive().completed) << "bytes are still missing";
  EXPECT_FALSE(barrier.complete_tx(128));
  EXPECT_FALSE(barrier.wait_parity(0).complete);
  EXPECT_TRUE(barrier.complete_tx(384));
  EXPECT_TRUE(barrier.wait_parity(0).complete);
  EXPECT_FALSE(barrier.wait_parity(1).complete);
  EXPECT_EQ(barrier.pending(), 2);
  EXPECT_EQ(barrier.phase(), 1);
}

TEST(Mbarrier, BytesMayComeBeforeTheyAreAnnounced) {
  Mbarrier barrier(1);
  EXPECT_FALSE(barrier.complete_tx(64));
  EXPECT_EQ(barrier.tx_count(), -64);
  EXPECT_TRUE(barrier.arrive({.expect_tx = 64}).completed);
}

TEST(Mbarrier, StateTokensNameThePhase) {
  Mbarrier barrier(2);
  const auto first = barrier.arrive();
  EXPECT_FALSE(barrier.wait_state(first.state).complete);
  const auto second = barrier.arrive();
  EXPECT_TRUE(second.completed);
  EXPECT_TRUE(barrier.wait_state(first.state).complete);
  EXPECT_TRUE(barrier.wait_state(second.state).complete);
  const auto third = barrier.arrive();
  EXPECT_FALSE(barrier.wait_state(third.state).complete);
  barrier.arrive();
  expect_fault([&] { barrier.wait_state(first.state); }, "2 phases back");
  expect_fault([&] { barrier.wait_state(12345); }, "a state returned by mbarrier.arrive");
}

TEST(Mbarrier, DropLowersTheExpectedCountOfLaterPhases) {
  Mbarrier barrier(3);
  barrier.arrive({.count = 2, .drop = true});
  EXPECT_EQ(barrier.pending(), 1);
  EXPECT_EQ(barrier.expected(), 1);
  EXPECT_TRUE(barrier.arrive().completed);
  EXPECT_EQ(barrier.pending(), 1);
  expect_fault([&] { barrier.arrive({.drop = true}); }, "expected count of at least 1");
}

TEST(Mbarrier, NoCompleteGivesThePendingCount) {
  Mbarrier barrier(5);
  const auto arrival = barrier.arrive({.count = 2, .no_complete = true});
  EXPECT_EQ(Mbarrier::pending_count(arrival.state), 5u) << "the count before the arrival";
  expect_fault([&] { Mbarrier::pending_count(barrier.arrive().state); }, ".noComplete");
  expect_fault([&] { barrier.arrive({.count = 2, .no_complete = true}); }, "stays incomplete");
}

TEST(Mbarrier, Misuse) {
  expect_fault([] { Mbarrier barrier(0); }, "mbarrier.init count: expected 1..1048575, got 0");
  expect_fault([] { Mbarrier barrier(1 << 20); }, "got 1048576");
  Mbarrier barrier(2);
  expect_fault([&] { barrier.arrive(with_count(3)); }, "at most the 2 pending arrivals");
  expect_fault([&] { barrier.arrive(with_count(0)); }, "count: expected 1..");
  expect_fault([&] { barrier.wait_parity(2); }, "phaseParity: expected 0 or 1, got 2");
  barrier.expect_tx(Mbarrier::kMaxCount);
  expect_fault([&] { barrier.expect_tx(1); }, "tx-count");
  expect_fault([&] { barrier.expect_tx(~std::uint64_t{0}); }, "tx-count");
  barrier.complete_tx(Mbarrier::kMaxCount);
  barrier.complete_tx(Mbarrier::kMaxCount);
  expect_fault([&] { barrier.complete_tx(1); }, "tx-count");
}

TEST(Mbarrier, MoreBytesThanAnnouncedAtTheEndOfAPhase) {
  Mbarrier barrier(1);
  barrier.complete_tx(32);
  expect_fault([&] { barrier.arrive({.expect_tx = 16}); }, "end of a phase");
  Mbarrier other(1);
  other.arrive({.expect_tx = 16});
  expect_fault([&] { other.complete_tx(32); }, "end of a phase");
}

TEST(Mbarrier, OverArrivalWhileBytesAreOutstanding) {
  Mbarrier barrier(1);
  barrier.arrive({.expect_tx = 16});
  expect_fault([&] { barrier.arrive(); }, "at most the 0 pending arrivals");
}

TEST(Mbarrier, IncrementForCpAsync) {
  Mbarrier barrier(1);
  barrier.increment_pending();
  EXPECT_FALSE(barrier.arrive().completed);
  EXPECT_TRUE(barrier.arrive().completed);
  EXPECT_EQ(barrier.pending(), 1) << "the increment was for one phase only";
  Mbarrier full(Mbarrier::kMaxCount);
  expect_fault([&] { full.increment_pending(); }, "pending count");
}

TEST(Mbarrier, UnobservedPhaseIsReportedAtTheNextArrival) {
  Mbarrier barrier(1);
  EXPECT_FALSE(barrier.arrive().previous_unobserved);
  EXPECT_TRUE(barrier.arrive().previous_unobserved) << "nobody waited for phase 0";
  EXPECT_TRUE(barrier.wait_parity(1).complete);
  EXPECT_FALSE(barrier.arrive().previous_unobserved);
}

TEST(Mbarrier, WaitHistoryFindsAnAliasedParity) {
  Mbarrier barrier(1);
  WaitHistory waiter;
  barrier.arrive();
  EXPECT_EQ(waiter.skipped(barrier.wait_parity(0)), 0);  // sees phase 0 complete
  EXPECT_EQ(waiter.skipped(barrier.wait_parity(1)), 0);  // phase 1 is under way
  barrier.arrive();
  barrier.arrive();
  // Phases 1 and 2 are over; parity 1 now asks about phase 3 and would hang.
  const auto wait = barrier.wait_parity(1);
  EXPECT_FALSE(wait.complete);
  EXPECT_EQ(waiter.skipped(wait), 2);
}

// Counters written from the ISA's list of rules, without the class's shortcuts.
TEST(Mbarrier, RandomSequencesAgainstPlainCounters) {
  std::mt19937 rng(7);
  for (int run = 0; run < 200; ++run) {
    const int count = 1 + static_cast<int>(rng() % 4);
    Mbarrier barrier(static_cast<std::uint64_t>(count));
    int pending = count, expected = count, phase = 0;
    long tx = 0;
    for (int step = 0; step < 200; ++step) {
      const int what = static_cast<int>(rng() % 4);
      const long bytes = 16 * static_cast<long>(1 + rng() % 4);
      if (what == 0 && (pending > 1 || tx >= 0) && pending > 0) {
        barrier.arrive();
        --pending;
      } else if (what == 1 && pending > 0 && (pending > 1 || tx + bytes >= 0)) {
        barrier.arrive({.expect_tx = static_cast<std::uint64_t>(bytes)});
        tx += bytes;
        --pending;
      } else if (what == 2) {
        barrier.expect_tx(static_cast<std::uint64_t>(bytes));
        tx += bytes;
      } else if (what == 3 && (pending > 0 || tx >= bytes)) {
        barrier.complete_tx(static_cast<std::uint64_t>(bytes));
        tx -= bytes;
      } else {
        continue;
      }
      if (pending == 0 && tx == 0) {
        ++phase;
        pending = expected;
      }
      ASSERT_EQ(barrier.phase(), phase) << "run " << run << " step " << step;
      ASSERT_EQ(barrier.pending(), pending);
      ASSERT_EQ(barrier.tx_count(), tx);
      ASSERT_EQ(barrier.wait_parity(0).complete, phase % 2 == 1);
      ASSERT_EQ(barrier.wait_parity(1).complete, phase % 2 == 0);
    }
  }
}

TEST(Mbarrier, ImageChangesWithEveryPart) {
  Mbarrier barrier(2);
  const std::uint64_t fresh = barrier.image();
  barrier.expect_tx(8);
  EXPECT_NE(barrier.image(), fresh);
  barrier.complete_tx(8);
  EXPECT_EQ(barrier.image(), fresh);
  barrier.arrive();
  EXPECT_NE(barrier.image(), fresh);
  barrier.arrive();
  EXPECT_NE(barrier.image(), fresh) << "the parity differs";
}

TEST(MbarrierTable, LifeCycle) {
  MbarrierTable table;
  expect_fault([&] { table.at(64, "mbarrier.arrive"); },
               "mbarrier.arrive address: expected an initialised mbarrier, got 0x40");
  expect_fault([&] { table.init(68, 1); }, "a multiple of 8");
  table.init(64, 1);
  expect_fault([&] { table.init(64, 1); }, "no live mbarrier there");
  table.at(64, "mbarrier.arrive").arrive();
  table.inval(64);
  expect_fault([&] { table.inval(64); }, "an initialised mbarrier");
  table.init(64, 3);
  EXPECT_EQ(table.size(), 1u);
}

TEST(MbarrierTable, OverlapsAndLeftovers) {
  MbarrierTable table;
  table.init(64, 1);
  table.init(128, 1);
  EXPECT_EQ(table.overlapping(0, 64), std::nullopt);
  EXPECT_EQ(table.overlapping(0, 65), 64u);
  EXPECT_EQ(table.overlapping(71, 1), 64u);
  EXPECT_EQ(table.overlapping(72, 56), std::nullopt);
  EXPECT_EQ(table.overlapping(72, 57), 128u);
  EXPECT_EQ(table.overlapping(100, 0), std::nullopt);
  EXPECT_TRUE(table.leftovers().empty());
  table.at(128, "test").expect_tx(96);
  ASSERT_EQ(table.leftovers().size(), 1u);
  EXPECT_EQ(table.leftovers()[0],
            "mbarrier at 0x80: phase 0, 1 of 1 arrivals pending, tx-count 96");
}

}  // namespace
}  // namespace mxfa::emu::model
