#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "mxemu/emulator.h"

namespace mxfa::emu::driver {

/// One piece of work that was asked for: a copy, a launch, or a mark where `run` is empty.
struct Op {
  std::function<void()> run;
  std::uint64_t owner = 0;   ///< the context it belongs to
  std::uint64_t number = 0;  ///< in the order of the calls
  bool done = false;
  std::chrono::steady_clock::time_point finished;
  std::vector<std::shared_ptr<Op>> after;       ///< what it waits for; empty once it is done
  std::vector<std::shared_ptr<Op>> dependents;  ///< what waits for it
  std::size_t waits = 0;                        ///< of `after`, how many are not done
};
using OpPtr = std::shared_ptr<Op>;

/// Asynchronous work of all devices, run by the host thread that waits for it. Only order that the
/// program asked for holds: among the ops that may run, the policy and the seed choose, so that a
/// missing event or synchronisation shows, and shows again with the same seed.
/// kRandom: any; kEarliest: at once, within the call that asks for it; kLatest: only when
/// something waited for needs it; kLifo and kStarve: the newest first.
class Timeline {
 public:
  void configure(Policy policy, std::uint64_t seed);

  /// Adds work that runs after all of `after`.
  OpPtr submit(std::uint64_t owner, std::function<void()> run, std::span<const OpPtr> after);
  void run_until(const OpPtr& op);
  /// Everything that the owner has asked for.
  void run_all(std::uint64_t owner);
  /// Forgets the owner's work; what waits for it goes on. May be called by work that is running.
  void drop(std::uint64_t owner);

 private:
  std::size_t choose(const OpPtr& wanted);
  std::size_t choose_needed(const OpPtr& wanted) const;
  void execute(std::size_t index);
  void finish(const OpPtr& op);
  void make_ready(const OpPtr& op);

  Policy policy_ = Policy::kRandom;
  std::uint64_t random_ = 0;
  std::uint64_t next_number_ = 1;
  std::map<std::uint64_t, OpPtr> pending_;  ///< by number
  std::vector<OpPtr> ready_;                ///< of the pending ones, by number
};

}  // namespace mxfa::emu::driver
