#include "core/parallel.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace mxfa::core {
namespace {

std::atomic<int> requested_threads{0};

/// Threads that wait for work, so that a call need not start them. They live as long as the process
/// and hold nothing between calls.
class Pool {
 public:
  /// This process's pool: a fork has none of its parent's threads.
  static Pool& instance() {
    static std::mutex mutex;
    static Pool* pool = nullptr;
    const std::lock_guard lock(mutex);
    if (pool == nullptr || pool->process_ != getpid()) pool = new Pool;
    return *pool;
  }

  /// Calls `job` on this thread and on up to `helpers` others; those that are late for it do not
  /// run it. Returns false, without a call, where the pool is at work for another one.
  bool run(int helpers, const std::function<void()>& job) {
    if (in_use_.exchange(true)) return false;
    const Release release{in_use_};
    {
      const std::lock_guard lock(mutex_);
      for (; threads_ < helpers; ++threads_) {
        std::thread(&Pool::work, this, threads_, generation_).detach();
      }
      job_ = &job;
      helpers_ = helpers;
      ++generation_;
    }
    wake_.notify_all();
    job();
    std::unique_lock lock(mutex_);
    job_ = nullptr;
    done_.wait(lock, [&] { return running_ == 0; });
    return true;
  }

 private:
  struct Release {
    std::atomic<bool>& flag;
    ~Release() { flag.store(false); }
  };

  void work(int index, std::uint64_t seen) {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return generation_ != seen; });
      seen = generation_;
      if (job_ == nullptr || index >= helpers_) continue;
      const std::function<void()>& job = *job_;
      ++running_;
      lock.unlock();
      job();
      lock.lock();
      if (--running_ == 0) done_.notify_one();
    }
  }

  const pid_t process_ = getpid();
  std::atomic<bool> in_use_{false};  ///< during run()
  std::mutex mutex_;                 ///< of all that follows
  std::condition_variable wake_, done_;
  const std::function<void()>* job_ = nullptr;
  std::uint64_t generation_ = 0;  ///< of jobs
  int helpers_ = 0;
  int threads_ = 0;
  int running_ = 0;  ///< helpers at work
};

/// What a call does where the pool is at work for another: nested ones, and those of other threads.
void run_on_own_threads(int helpers, const std::function<void()>& job) {
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(helpers));
  for (int i = 0; i < helpers; ++i) threads.emplace_back(job);
  job();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

int num_threads() {
  const int requested = requested_threads.load();
  if (requested > 0) return requested;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void set_num_threads(int count) { requested_threads.store(std::max(0, count)); }

void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& body) {
  const std::int64_t workers = std::min<std::int64_t>(num_threads(), count);
  if (workers <= 1) {
    for (std::int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  std::atomic<std::int64_t> next{0};
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto run = [&] {
    try {
      for (std::int64_t i = next++; i < count; i = next++) body(i);
    } catch (...) {
      const std::lock_guard lock(failure_mutex);
      if (!failure) failure = std::current_exception();
      next = count;
    }
  };
  const int helpers = static_cast<int>(workers - 1);
  if (!Pool::instance().run(helpers, run)) run_on_own_threads(helpers, run);
  if (failure) std::rethrow_exception(failure);
}

}  // namespace mxfa::core
