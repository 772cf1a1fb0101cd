#include "core/parallel.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

namespace mxfa::core {
namespace {

class Parallel : public ::testing::Test {
 protected:
  void TearDown() override { set_num_threads(0); }

  /// Every index of a loop came exactly once.
  static bool each_once(std::int64_t count) {
    std::vector<std::atomic<int>> calls(static_cast<std::size_t>(count));
    parallel_for(count, [&](std::int64_t i) { ++calls[static_cast<std::size_t>(i)]; });
    for (const std::atomic<int>& one : calls) {
      if (one.load() != 1) return false;
    }
    return true;
  }
};

TEST_F(Parallel, EachIndexOnceForAnyNumberOfThreads) {
  for (const int threads : {1, 2, 7, 3, 16, 2}) {
    set_num_threads(threads);
    for (const std::int64_t count : {0, 1, 2, 5, 1000}) {
      for (int i = 0; i < 20; ++i) ASSERT_TRUE(each_once(count)) << threads << ", " << count;
    }
  }
}

TEST_F(Parallel, NestedAndConcurrentCalls) {
  set_num_threads(4);
  std::atomic<int> good{0};
  const auto nested = [&] {
    parallel_for(6, [&](std::int64_t) { good += each_once(50) ? 1 : 0; });
  };
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) callers.emplace_back(nested);
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(good.load(), 18);
}

TEST_F(Parallel, FirstExceptionIsRethrownAndTheNextCallWorks) {
  set_num_threads(4);
  for (int i = 0; i < 50; ++i) {
    EXPECT_THROW(parallel_for(100,
                              [](std::int64_t index) {
                                if (index == 37) throw std::runtime_error("37");
                              }),
                 std::runtime_error);
    ASSERT_TRUE(each_once(100));
  }
}

#if !defined(__SANITIZE_THREAD__)  // which does not support threads in a fork
/// A fork has no threads of its parent's.
TEST_F(Parallel, WorksInAFork) {
  set_num_threads(4);
  ASSERT_TRUE(each_once(100));
  const pid_t child = fork();
  if (child == 0) _exit(each_once(100) ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}
#endif

}  // namespace
}  // namespace mxfa::core
