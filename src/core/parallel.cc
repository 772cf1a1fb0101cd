#include "core/parallel.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace mxfa::core {
namespace {

std::atomic<int> requested_threads{0};

/// Lets a waiting thread's neighbour on the same core go first.
void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Threads that wait for work, so that a call need not start them. They live as long as the process
/// and hold nothing between calls. Waking a thread takes longer than many loops do: before a thread
/// sleeps, it looks for the next call for some tens of microseconds.
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
  /// run it, one that comes again may run it twice. Returns false, without a call, where the pool
  /// is at work for another one.
  bool run(int helpers, const std::function<void()>& job) {
    if (in_use_.exchange(true)) return false;
    const Release release{in_use_};
    for (; threads_ < helpers; ++threads_) {
      std::thread(&Pool::work, this, threads_, calls_.load()).detach();
    }
    job_ = &job;
    helpers_ = helpers;
    inside_.store(0, std::memory_order_release);
    calls_.fetch_add(1, std::memory_order_release);
    calls_.notify_all();
    job();
    std::uint32_t inside = inside_.fetch_or(kClosed) | kClosed;
    while (inside != kClosed) {
      await_change(inside_, inside, true);
      inside = inside_.load(std::memory_order_acquire);
    }
    return true;
  }

 private:
  static constexpr std::uint32_t kClosed = 1u << 31;

  struct Release {
    std::atomic<bool>& flag;
    ~Release() { flag.store(false); }
  };

  static void await_change(const std::atomic<std::uint32_t>& value, std::uint32_t old, bool looks) {
    constexpr int kLooks = 1000;
    for (int i = 0; looks && i < kLooks; ++i) {
      if (value.load(std::memory_order_relaxed) != old) return;
      relax();
    }
    value.wait(old, std::memory_order_acquire);
  }

  bool enter() {
    std::uint32_t inside = inside_.load(std::memory_order_relaxed);
    while (inside < kClosed) {
      if (inside_.compare_exchange_weak(inside, inside + 1, std::memory_order_acq_rel)) return true;
    }
    return false;
  }
  void leave() {
    if (inside_.fetch_sub(1, std::memory_order_acq_rel) - 1 == kClosed) inside_.notify_one();
  }

  void work(int index, std::uint32_t seen) {
    // More threads than the machine has would only take its time from those at work.
    const bool looks = index + 1 < static_cast<int>(std::thread::hardware_concurrency());
    for (;;) {
      await_change(calls_, seen, looks);
      seen = calls_.load(std::memory_order_acquire);
      if (!enter()) continue;
      if (index < helpers_) (*job_)();
      leave();
    }
  }

  const pid_t process_ = getpid();
  std::atomic<bool> in_use_{false};             ///< during run()
  std::atomic<std::uint32_t> calls_{0};         ///< of run()
  std::atomic<std::uint32_t> inside_{kClosed};  ///< threads at work; kClosed: no other may begin
  // Written while nobody is inside, read by those who are.
  const std::function<void()>* job_ = nullptr;
  int helpers_ = 0;
  int threads_ = 0;
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
