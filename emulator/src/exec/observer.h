#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "async/async_op.h"
#include "exec/access.h"

/// The seam through which somebody (the hazard checker) watches a launch: handlers tell it what
/// they do. Where nobody watches, Launch::observer is null and nothing of this costs anything.
namespace mxfa::emu::exec {

/// A place in the shared memory of the cluster.
struct SharedPlace {
  Cta* cta = nullptr;
  std::uint32_t offset = 0;
};

/// What an observer keeps with a cluster.
struct ObservedCluster {
  virtual ~ObservedCluster() = default;
};
/// What an observer keeps with an operation in flight.
struct ObservedOp {
  virtual ~ObservedOp() = default;
};
using ObservedOpPtr = std::shared_ptr<ObservedOp>;

enum class FenceKind : std::uint8_t {
  kThread,  ///< fence.{sc,acq_rel,acquire,release}, membar
  kMbarrierInit,
  kProxyAsync,
  kProxyOther,
  kTensorBefore,  ///< tcgen05.fence::before_thread_sync
  kTensorAfter,
};
/// Inst::a = FenceKind, b = flags.
struct FenceFlags {
  static constexpr std::uint8_t kAcquire = 1;
  static constexpr std::uint8_t kRelease = 2;
  static constexpr std::uint8_t kShared = 4;  ///< of a proxy fence: covers shared memory
  static constexpr std::uint8_t kGlobal = 8;
  static constexpr std::uint8_t kCtaScope = 16;
};

/// How an asynchronous operation is completed.
enum class OpKind : std::uint8_t {
  kToBarrier,   ///< bulk and tensor loads, copies within the cluster, st.async: complete_tx
  kStoreRead,   ///< a bulk store or reduction reads its source
  kStoreWrite,  ///< and writes its destination
  kCopy,        ///< cp.async
  kMatrix,      ///< wgmma
  kTensorMma,   ///< tcgen05.mma and .cp: tcgen05.commit
  kTensorCopy,
  kTensorLoad,  ///< tcgen05.ld, .st: their waits
  kTensorStore,
};
enum class CopyGroup : std::uint8_t { kBulk, kCopyAsync };

class Observer {
 public:
  virtual ~Observer() = default;

  virtual void begin(Cluster& cluster) = 0;
  /// The last thread of the block has exited.
  virtual void exited(Cta& cta) = 0;

  // ---- Accesses of threads -------------------------------------------------------------------
  /// `bytes` a lane, in shared or global memory.
  struct ThreadAccess {
    Warp& warp;
    const ir::Inst& in;
    std::uint32_t mask;
    std::uint32_t bytes;
    Access access;
    const LanePointers& at;
  };
  virtual void access(const ThreadAccess& access) = 0;
  /// A read of bytes that nobody has written. False: not taken note of, so it is an error at once.
  virtual bool uninitialised(const Warp* warp, const ir::Inst* in, const std::string& what) = 0;

  // ---- Synchronisation of threads ------------------------------------------------------------
  virtual void warp_barrier(Warp& warp, std::uint32_t mask) = 0;
  virtual void barrier_arrive(Warp& warp, std::uint32_t mask, std::uint32_t barrier,
                              bool waits) = 0;
  virtual void barrier_complete(Cta& cta, std::uint32_t barrier) = 0;
  virtual void cluster_arrive(Warp& warp, std::uint32_t mask, bool relaxed) = 0;
  virtual void cluster_complete(Cluster& cluster) = 0;
  /// `passed`: the barrier has completed already.
  virtual void cluster_wait(Warp& warp, std::uint32_t mask, bool passed) = 0;
  virtual void fence(Warp& warp, const ir::Inst& in, std::uint32_t mask) = 0;
  virtual void grid_dependency(Warp& warp, const ir::Inst& in, std::uint32_t mask) = 0;
  virtual void set_max_registers(Warp& warp, const ir::Inst& in) = 0;

  // ---- mbarriers ------------------------------------------------------------------------------
  struct BarrierUse {
    Warp& warp;
    const ir::Inst& in;
    std::uint32_t mask;
    const SharedPlace& place;
    bool relaxed;
  };
  virtual void mbarrier_init(const BarrierUse& use) = 0;
  virtual void mbarrier_inval(const BarrierUse& use) = 0;
  virtual void mbarrier_expect(const BarrierUse& use) = 0;
  /// Before the arrival itself.
  virtual void mbarrier_arrive(const BarrierUse& use) = 0;
  virtual void mbarrier_unobserved(const BarrierUse& use) = 0;
  virtual void mbarrier_phase(const SharedPlace& place) = 0;
  /// After a test; `phase` is the one that was asked about.
  virtual void mbarrier_wait(const BarrierUse& use, bool complete, std::int64_t phase) = 0;

  // ---- Asynchronous operations ------------------------------------------------------------------
  struct Issue {
    OpKind kind;
    Warp& warp;
    const ir::Inst& in;
    int lane;
    SharedPlace barrier{};  ///< of kToBarrier
    bool reduces = false;   ///< its writes are atomic
    bool first = true;      ///< the first lane of the instruction
  };
  virtual ObservedOpPtr issue(const Issue& issue) = 0;
  /// What is reported between these two is done by the operation.
  virtual void enter(ObservedOp& op) = 0;
  virtual void leave() = 0;
  virtual void async_shared(Cta& cta, std::uint64_t offset, std::uint64_t bytes, bool write) = 0;
  virtual void async_global(std::uint64_t address, std::uint64_t bytes, bool write) = 0;
  /// The operation counts its bytes at the barrier; before it does.
  virtual void async_complete_tx(const SharedPlace& place) = 0;

  virtual void group_commit(Warp& warp, int lane, CopyGroup group) = 0;
  /// `done`: goes on; else it is asked again.
  virtual void group_wait(Warp& warp, const ir::Inst& in, int lane, CopyGroup group, bool done) = 0;
  /// cp.async.mbarrier.arrive: now, and when it arrives.
  virtual ObservedOpPtr copies_arrive(const BarrierUse& use) = 0;
  virtual void copies_arrived(ObservedOp& op, const SharedPlace& place) = 0;

  // ---- wgmma -----------------------------------------------------------------------------------
  /// One warp issues; `partial` is the operation of the warps before it, null for the first one.
  virtual ObservedOpPtr wgmma_issue(Warp& warp, const ir::Inst& in, ObservedOpPtr partial) = 0;
  virtual void wgmma_fence(Warp& warp, const ir::Inst& in) = 0;
  /// The warp goes on: its instructions before number `completed` are done.
  virtual void wgmma_wait(Warp& warp, const ir::Inst& in, bool done, std::uint64_t completed) = 0;
  /// Another instruction that names registers of wgmma; before it runs.
  virtual void matrix_registers(Warp& warp, const ir::Inst& in) = 0;

  // ---- tcgen05 ---------------------------------------------------------------------------------
  struct TensorWork {
    OpKind kind;
    Warp& warp;
    const ir::Inst& in;
    int lane = -1;                  ///< of mma and cp
    std::uint32_t accumulator = 0;  ///< of mma: tells accumulator and shape apart, not 0
  };
  virtual ObservedOpPtr tensor_issue(const TensorWork& work) = 0;
  virtual ObservedOpPtr tensor_commit(Warp& warp, const ir::Inst& in, int lane) = 0;
  /// Before the arrival itself.
  virtual void tensor_arrive(ObservedOp& commit, const SharedPlace& place) = 0;
  virtual void tensor_wait(Warp& warp, const ir::Inst& in, bool loads, bool done) = 0;
  virtual void tensor_fence(Warp& warp, std::uint32_t mask, bool after) = 0;
  virtual void tensor_free(Warp& warp, const ir::Inst& in, const model::TmemRange& range) = 0;
  /// What the operation between enter() and leave() touches.
  virtual void touches(Cluster& cluster, const std::vector<async::Touch>& touches) = 0;
  /// All lanes of the warp together write shared memory (tcgen05.alloc).
  virtual void write_together(Warp& warp, const ir::Inst& in, const SharedPlace& place,
                              std::uint32_t bytes) = 0;
};

/// The operation's accesses while this lives.
class ObservedScope {
 public:
  ObservedScope(Observer* observer, ObservedOp* op)
      : observer_(op == nullptr ? nullptr : observer) {
    if (observer_ != nullptr) observer_->enter(*op);
  }
  ~ObservedScope() {
    if (observer_ != nullptr) observer_->leave();
  }
  ObservedScope(const ObservedScope&) = delete;
  ObservedScope& operator=(const ObservedScope&) = delete;

 private:
  Observer* observer_;
};

}  // namespace mxfa::emu::exec
