#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "exec/machine.h"
#include "mxemu/emulator.h"
#include "sched/random.h"

/// Interleaves the warps and the asynchronous work of the clusters that one host thread has.
namespace mxfa::emu::sched {

/// What the schedulers of one launch share.
struct Team {
  std::atomic<bool> cancelled{false};  ///< some scheduler has failed
  std::atomic<int> moving{0};          ///< schedulers that are not stuck
  int size = 1;
};

class Scheduler {
 public:
  /// Runs clusters first, first + step, ... below `count`, in this order, some at a time.
  struct Share {
    std::uint64_t first = 0;
    std::uint64_t step = 1;
    std::uint64_t count = 0;
  };
  Scheduler(exec::Launch& launch, const LaunchOptions& options, const Share& share, Team& team);

  /// Until all clusters have exited. Throws PtxError for faults, deadlock and endless loops.
  LaunchStats run();

 private:
  /// A warp and whether it has exited or is known to be waiting.
  struct Agent {
    exec::Warp* warp = nullptr;
    bool victim = false;  ///< of Policy::kStarve
    bool exited = false;
    bool waiting = false;
    std::uint64_t seen = 0;  ///< the progress count when it began to wait
    std::uint64_t time = 0;  ///< of its next instruction, under Policy::kTimed
  };
  struct Resident {
    std::size_t slot = 0;
    std::unique_ptr<exec::Cluster> cluster;
    std::vector<Agent> agents;
  };
  struct Choice {
    Agent* agent = nullptr;
    exec::Cta* cta = nullptr;  ///< asynchronous work of this block instead
    std::size_t op = 0;
  };

  static constexpr std::uint64_t kNever = ~std::uint64_t{0};

  void admit();
  std::size_t free_slot() const;
  const exec::SmColumns& columns_of(std::size_t slot);
  void retire();
  const std::vector<Agent*>& find_candidates();
  bool can_run(const Agent& agent) const;
  Choice choose();
  Choice choose_async(bool newest);
  Choice choose_warp();
  Choice choose_timed();
  std::optional<std::pair<Choice, std::uint64_t>> next_due();
  void note_issues(const exec::Cluster& cluster, std::uint64_t time);
  void complete(exec::Cta& cta, std::size_t op);
  void complete_all_async();
  void run_agent(Agent& agent);
  bool stuck();
  bool wait_for_others();
  [[noreturn]] void report_stuck() const;
  std::uint32_t quantum();

  exec::Launch& launch_;
  const LaunchOptions& options_;
  Share share_;
  Team& team_;
  Random random_;
  exec::Progress progress_;
  std::vector<Resident> residents_;
  std::vector<Agent*> unstarved_;         ///< candidates but for victims
  std::vector<Agent*> candidates_;        ///< warps that can go on, as long as nothing has changed:
  std::uint64_t candidates_at_ = kNever;  ///< the progress count when they were looked for
  std::vector<exec::SmColumns> columns_;  ///< tensor memory of the SMs that clusters share
  LaunchStats stats_;
  std::uint64_t next_ = 0;
  std::uint64_t victim_ = 0;
  int starved_ = 0;  ///< turns since the victim had one
  std::size_t turn_ = 0;
  std::uint64_t last_progress_ = 0;
  std::uint64_t spent_ = 0;  ///< warp instructions since the last progress
  int retries_ = 0;          ///< rounds of polls since the last progress
  std::uint64_t now_ = 0;    ///< ticks, or instructions of all warps where they are not timed
  /// When the work in flight is to complete; kept only where it matters.
  std::unordered_map<const async::AsyncOp*, std::uint64_t> due_;
};

}  // namespace mxfa::emu::sched
