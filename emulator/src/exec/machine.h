#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "async/async_op.h"
#include "exec/context.h"
#include "exec/fragments.h"
#include "exec/held_registers.h"
#include "exec/tensor_core.h"
#include "exec/tensor_map_edits.h"
#include "ir/kernel.h"
#include "mem/aligned.h"
#include "mem/global.h"
#include "mem/shared.h"
#include "model/approx.h"
#include "model/mbarrier.h"
#include "model/mma_unit.h"
#include "mxemu/error.h"

namespace mxfa::emu::trace {
class Tracer;
}

/// The state of a running launch: clusters of CTAs of warps of fragments.
namespace mxfa::emu::exec {

class Observer;
struct ObservedCluster;
struct ObservedOp;

using Dim3 = std::array<std::uint32_t, 3>;
inline std::uint64_t volume(const Dim3& d) { return std::uint64_t{d[0]} * d[1] * d[2]; }

struct Checks {
  bool bounds = true;         ///< addresses outside every buffer (off: only for known programs)
  bool uninitialised = true;  ///< reads of bytes that nobody wrote
  bool strict = false;        ///< what only practice vouches for is an error
};

/// What practice relies on although the ISA does not promise it.
class Warnings {
 public:
  /// Only the first of each `kind` goes out.
  void give(const std::string& kind, const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (sink && seen_.insert(kind).second) sink(text);
  }
  std::function<void(const std::string&)> sink;

 private:
  std::mutex mutex_;
  std::set<std::string> seen_;
};

/// What all CTAs of a launch share. Constant while it runs, but for the memory behind the pointers.
struct Launch {
  const ir::Kernel* kernel = nullptr;
  const ir::Inst* code =
      nullptr;  ///< what warps execute: the kernel's, or an observer's copy of it
  Dim3 grid{1, 1, 1};
  Dim3 block{1, 1, 1};
  Dim3 cluster{1, 1, 1};
  std::uint32_t dynamic_shared = 0;
  std::vector<std::byte> params;
  mem::RowBytes pool;  ///< the kernel's, with addresses of parameters filled in
  std::shared_ptr<const mem::RegionTable> memory;
  Checks checks;
  model::ArithmeticMode arithmetic = model::ArithmeticMode::kExact;
  bool converge = true;  ///< fragments meet again as soon as they can; off: only where they must
  std::function<void(const std::string&)> print;
  std::shared_ptr<Warnings> warnings = std::make_shared<Warnings>();
  std::shared_ptr<TensorMapEdits> map_edits = std::make_shared<TensorMapEdits>();
  model::Perturbation perturbation;
  Observer* observer = nullptr;     ///< null: nobody watches
  trace::Tracer* tracer = nullptr;  ///< null: nobody records

  Dim3 cluster_grid() const {
    return {grid[0] / cluster[0], grid[1] / cluster[1], grid[2] / cluster[2]};
  }
};

enum class Outcome : std::uint8_t {
  kRan,      ///< the budget is used up
  kBlocked,  ///< no fragment can go on
  kPolled,   ///< gave way: a poll failed, or sleep
  kExited,
};

struct Cta;

/// Asynchronous copies that one thread has issued.
struct LaneAsync {
  async::GroupList bulk;  ///< cp.async.bulk with groups
  async::GroupList copy;  ///< cp.async
  LaneTensor tensor;
};

/// wgmma as one warp sees it: instructions issued, and how many there were at each commit.
struct WarpWgmma {
  std::uint64_t issued = 0;
  std::vector<std::uint64_t> commits;
};

/// A wgmma that some warps of a warpgroup have issued.
struct WgmmaIssue {
  const ir::Inst* inst = nullptr;
  std::uint32_t warps = 0;  ///< bit mask
  bool scale_d = false;
  std::uint64_t descriptor_a = 0;
  std::uint64_t descriptor_b = 0;
  std::shared_ptr<ObservedOp> observed;
  std::vector<std::uint32_t*> d;  ///< rows, warp by warp
  std::vector<std::uint32_t*> a;
};
struct Warpgroup {
  std::uint64_t formed = 0;  ///< instructions that all four warps have issued
  std::uint64_t completed = 0;
  std::vector<WgmmaIssue> partial;  ///< of instructions formed, formed + 1, ...
};

class Warp : public Context {
 public:
  Warp(Cta& cta, std::uint32_t index, std::uint32_t lanes);

  /// Executes up to `budget` instructions. Throws PtxError for what the program does wrong.
  Outcome run(std::uint32_t budget);
  bool exited() const { return live_ == 0; }
  bool runnable() const;

  Cta& cta() { return *cta_; }
  const Cta& cta() const { return *cta_; }
  std::uint32_t index() const { return index_; }
  std::uint32_t live() const { return live_; }
  std::uint64_t executed() const { return executed_; }
  std::uint64_t thread_instructions() const { return lanes_executed_; }
  std::byte* local(int lane);
  /// Does the host address lie in the lanes' local memory?
  bool is_local(const std::byte* address) const {
    return address >= local_.data() && address < local_.data() + local_.size();
  }
  std::uint32_t lane_count() const { return lane_count_; }

  // For handlers: what becomes of the fragment whose instruction is being executed.
  void wait_at(const Gate& gate) { pending_gate_ = &gate; }
  void pass_gate() { pending_gate_ = nullptr; }
  void retry() { pending_retry_ = true; }
  void give_way() { pending_yield_ = true; }
  void note_poll() { ++polls_; }  ///< an instruction that loops wait with
  /// The lanes have found the phase of an mbarrier incomplete; or complete, where `in` is null.
  void note_mbarrier(std::uint32_t mask, const ir::Inst* in, const Cta* cta, std::uint32_t offset);
  [[noreturn]] void fail(const ir::Inst& in, std::uint32_t mask, const std::string& reason,
                         Fault fault = Fault::kProgram) const;

  /// One line for each fragment: what it is doing and where.
  std::vector<std::string> describe() const;

  mem::Region* last_region = nullptr;  ///< of global memory, the one last used
  LaneAsync& lane_async(int lane);
  WarpWgmma wgmma;
  std::uint32_t tensor_loads = 0;  ///< tcgen05.ld in flight
  std::uint32_t tensor_stores = 0;
  HeldRegisters held;
  std::uint32_t max_registers;      ///< of a thread, by setmaxnreg
  std::uint32_t cluster_waits = 0;  ///< lanes between arrive and wait of the cluster barrier
  std::array<std::uint64_t, kLanes> cluster_tickets{};  ///< the generation they arrived in

 private:
  enum class Next : std::uint8_t { kContinue, kPick, kYield };
  // Which lanes run: fragments.cc.
  bool arrange();
  void settle();
  void merge_meeting();
  bool can_go_on(const WaitingFragment& fragment) const;
  WaitingFragment& park(WaitState state);
  void look_at_front();
  std::uint32_t active(const ir::Inst& in, std::uint32_t lanes) const;
  Next run_front(std::uint32_t& budget);
  Next join();
  Next branch(const ir::Inst& in, std::uint32_t mask);
  Next jump(const ir::Inst& in, std::uint32_t target);
  void consider_holding(const ir::Inst& branch);
  // What they do: warp.cc.
  bool can_meet(const Fragment& fragment) const;
  bool members_present(const ir::Inst& in, std::uint32_t mask) const;
  void wait_at_warp_barrier(const ir::Inst& in);
  std::uint32_t barrier_members(const Fragment& fragment) const;
  void release_warp_barrier();
  Next step(const ir::Inst& in, std::uint32_t mask);
  Next leave(std::uint32_t mask);
  Next meet(const ir::Inst& in, std::uint32_t mask);
  Next finish(const ir::Inst& in, std::uint32_t mask, bool always_yield);
  void check_meeting_possible() const;
  /// A phase that lanes have last found incomplete.
  struct Unmet {
    std::uint32_t mask = 0;
    const ir::Inst* in = nullptr;
    const Cta* cta = nullptr;
    std::uint32_t offset = 0;
  };
  std::string describe_ready(const Fragment& fragment) const;
  std::string describe_gate(const Gate& gate) const;
  std::string describe_retry(const Fragment& fragment) const;
  std::string describe_fragment(const Fragment& fragment, const std::string& doing,
                                std::uint32_t pc) const;

  Cta* cta_;
  const ir::Inst* code_;
  std::uint32_t index_;
  bool converge_;
  std::uint32_t live_;
  std::uint32_t lane_count_;
  ReadyFragments ready_;
  std::vector<WaitingFragment> waiting_;
  std::uint32_t limit_ = UINT32_MAX;  ///< the next pc after the running fragment's with another one
  std::uint32_t front_lanes_ = 0;
  std::uint32_t hold_end_ = 0;  ///< where fragments that are held go on
  mem::RowBytes registers_;
  std::vector<std::uint32_t> predicates_;
  std::vector<std::byte> local_;
  std::vector<LaneAsync> lane_async_;
  std::uint64_t executed_ = 0;
  std::uint64_t lanes_executed_ = 0;
  const Gate* pending_gate_ = nullptr;
  std::uint32_t polls_ = 0;
  std::vector<Unmet> unmet_;
  bool pending_retry_ = false;
  bool pending_yield_ = false;
};

/// bar.sync and its relatives; one of 16 in a CTA.
struct NamedBarrier {
  Gate gate;
  std::uint32_t expected = 0;  ///< threads; 0: every warp of the CTA that is still there
  std::uint32_t arrived = 0;   ///< threads, whole warps
  bool in_use = false;
  bool unnumbered = false;           ///< the barrier in use was given no thread count
  std::vector<std::uint32_t> lanes;  ///< by warp: lanes that have arrived on their own
  std::uint32_t votes_true = 0;
  std::uint32_t votes = 0;
  struct Result {
    Warp* warp;
    std::int32_t row;
    std::uint32_t mask;
    std::uint8_t operation;
  };
  std::vector<Result> results;
};

struct Cluster;

struct Cta {
  Cta(Launch& the_launch, Cluster& the_cluster, const Dim3& id, std::uint32_t the_rank);
  Cta(const Cta&) = delete;
  Cta& operator=(const Cta&) = delete;

  void on_exit(std::uint32_t warp);  ///< lanes of the warp have exited
  bool exited() const { return live_warps == 0 && !draining; }
  /// Completes what still needs the block, so that an observer sees what it touches.
  void drain();
  /// Error where asynchronous work still needs the block, or a barrier waits for bytes.
  void check_exit() const;

  Launch& launch;
  Cluster& cluster;
  Dim3 ctaid;
  std::uint32_t rank;  ///< in the cluster
  mem::SharedMemory smem;
  std::array<NamedBarrier, 16> barriers;
  std::vector<std::unique_ptr<Warp>> warps;
  std::uint32_t live_warps = 0;
  bool draining = false;  ///< all threads have exited, in drain()
  async::AsyncQueue async;
  model::MbarrierTable mbarriers;
  std::vector<Warpgroup> warpgroups;
  model::MmaUnit mma;
  std::shared_ptr<model::TmemColumns> tmem_columns;      ///< of the SM that it runs on
  std::unique_ptr<TensorCore> tensor_core;               ///< null until it is needed
  std::map<std::uint64_t, std::uint64_t> acquired_maps;  ///< by address: number of the change
  std::uint32_t spare_registers = 0;  ///< of a lane of all warps: given up by setmaxnreg.dec
  bool saw_no_cluster = false;        ///< a thread has seen that no cluster was left to cancel

  TensorCore& tensor();
  /// The other CTA of its pair: ranks that differ in the last bit. Null where there is none.
  Cta* peer();
  std::uint32_t shared_base() const { return rank << mem::kRankShift; }
  std::string name() const;
};
/// Threads that complete the barrier, by whole warps: the block's where it was given no count.
std::uint32_t threads_needed(const Cta& cta, const NamedBarrier& barrier);

/// Counts effects that other warps or CTAs can see; a machine in which it stands still is stuck.
struct Progress {
  std::uint64_t count = 0;
  /// Takes a cluster that has not begun, and so never will: its index, none where all have.
  std::function<std::optional<std::uint64_t>()> cancel_next;
};

/// Tensor memory columns of the SMs that a cluster runs on, by rank of its CTAs.
using SmColumns = std::vector<std::shared_ptr<model::TmemColumns>>;

struct Cluster {
  Cluster(Launch& launch, Progress& the_progress, std::uint64_t index, const SmColumns& columns);
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  Cta* find(std::uint32_t rank) { return rank < ctas.size() ? ctas[rank].get() : nullptr; }
  bool exited() const;
  void check_barrier();  ///< completes the cluster barrier if everybody is there

  Progress& progress;
  std::uint64_t index;
  Dim3 id;
  std::vector<std::unique_ptr<Cta>> ctas;
  Gate gate;
  std::vector<std::uint32_t> arrived;  ///< by CTA and warp: lanes that have arrived
  TensorOrder tensor_order;
  std::shared_ptr<ObservedCluster> observed;
};

}  // namespace mxfa::emu::exec
