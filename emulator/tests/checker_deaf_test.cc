#include <algorithm>
#include <memory>

#include "exec/handlers.h"
#include "exec/observer.h"
#include "litmus.h"
#include "support.h"

/// What the checker needs to hear: without each edge of the happens-before relation a right litmus
/// program is reported, without each detection a wrong one passes.
namespace mxfa::emu::test {
namespace {

enum class Sound : std::uint8_t {
  kAccess,
  kUninitialised,
  kWarpBarrier,
  kBarrier,
  kBarrierComplete,
  kClusterArrive,
  kClusterWait,
  kThreadFence,
  kInitFence,
  kProxyFence,
  kGridDependency,
  kMaxRegisters,
  kArrive,
  kPhase,
  kWait,
  kAsyncShared,
  kAsyncGlobal,
  kCompleteTx,
  kCommitGroup,
  kWaitGroup,
  kCopiesArrived,
  kWgmmaFence,
  kWgmmaWait,
  kMatrixRegisters,
  kCommitArrives,
  kWaitLoads,
  kWaitStores,
  kFenceBefore,
  kFenceAfter,
  kFree,
  kTouches,
  kWriteTogether,
  kExit,
};

constexpr auto kNothing = static_cast<Sound>(0xFF);

/// Passes everything on to the checker but one kind of sound.
class Deaf final : public exec::Observer {
 public:
  Deaf(exec::Observer& checker, Sound deaf_to) : to_(checker), deaf_to_(deaf_to) {}

  void begin(exec::Cluster& cluster) override { to_.begin(cluster); }
  void exited(exec::Cta& cta) override {
    if (hears(Sound::kExit)) to_.exited(cta);
  }
  void access(const ThreadAccess& access) override {
    if (hears(Sound::kAccess)) to_.access(access);
  }
  bool uninitialised(const exec::Warp* warp, const ir::Inst* in, const std::string& what) override {
    return !hears(Sound::kUninitialised) || to_.uninitialised(warp, in, what);
  }
  void warp_barrier(exec::Warp& warp, std::uint32_t mask) override {
    if (hears(Sound::kWarpBarrier)) to_.warp_barrier(warp, mask);
  }
  void barrier_arrive(exec::Warp& warp, std::uint32_t mask, std::uint32_t barrier,
                      bool waits) override {
    if (hears(Sound::kBarrier)) to_.barrier_arrive(warp, mask, barrier, waits);
  }
  void barrier_complete(exec::Cta& cta, std::uint32_t barrier) override {
    if (hears(Sound::kBarrierComplete)) to_.barrier_complete(cta, barrier);
  }
  void cluster_arrive(exec::Warp& warp, std::uint32_t mask, bool relaxed) override {
    if (hears(Sound::kClusterArrive)) to_.cluster_arrive(warp, mask, relaxed);
  }
  void cluster_complete(exec::Cluster& cluster) override { to_.cluster_complete(cluster); }
  void cluster_wait(exec::Warp& warp, std::uint32_t mask, bool passed) override {
    if (hears(Sound::kClusterWait)) to_.cluster_wait(warp, mask, passed);
  }
  void fence(exec::Warp& warp, const ir::Inst& in, std::uint32_t mask) override {
    const auto kind = static_cast<exec::FenceKind>(in.a);
    const bool init = kind == exec::FenceKind::kMbarrierInit;
    const bool thread = kind == exec::FenceKind::kThread;
    if (hears(init ? Sound::kInitFence : thread ? Sound::kThreadFence : Sound::kProxyFence)) {
      to_.fence(warp, in, mask);
    }
  }
  void grid_dependency(exec::Warp& warp, const ir::Inst& in, std::uint32_t mask) override {
    if (in.a == 0 || hears(Sound::kGridDependency)) to_.grid_dependency(warp, in, mask);
  }
  void set_max_registers(exec::Warp& warp, const ir::Inst& in) override {
    if (hears(Sound::kMaxRegisters)) to_.set_max_registers(warp, in);
  }
  void mbarrier_init(const BarrierUse& use) override { to_.mbarrier_init(use); }
  void mbarrier_inval(const BarrierUse& use) override { to_.mbarrier_inval(use); }
  void mbarrier_expect(const BarrierUse& use) override { to_.mbarrier_expect(use); }
  void mbarrier_arrive(const BarrierUse& use) override {
    if (hears(Sound::kArrive)) to_.mbarrier_arrive(use);
  }
  void mbarrier_unobserved(const BarrierUse& use) override { to_.mbarrier_unobserved(use); }
  void mbarrier_phase(const exec::SharedPlace& place) override {
    if (hears(Sound::kPhase)) to_.mbarrier_phase(place);
  }
  void mbarrier_wait(const BarrierUse& use, bool complete, std::int64_t phase) override {
    if (hears(Sound::kWait)) to_.mbarrier_wait(use, complete, phase);
  }
  exec::ObservedOpPtr issue(const Issue& issue) override { return to_.issue(issue); }
  void enter(exec::ObservedOp& op) override { to_.enter(op); }
  void leave() override { to_.leave(); }
  void async_shared(exec::Cta& cta, std::uint64_t offset, std::uint64_t bytes,
                    bool write) override {
    if (hears(Sound::kAsyncShared)) to_.async_shared(cta, offset, bytes, write);
  }
  void async_global(std::uint64_t address, std::uint64_t bytes, bool write) override {
    if (hears(Sound::kAsyncGlobal)) to_.async_global(address, bytes, write);
  }
  void async_complete_tx(const exec::SharedPlace& place) override {
    if (hears(Sound::kCompleteTx)) to_.async_complete_tx(place);
  }
  void group_commit(exec::Warp& warp, int lane, exec::CopyGroup group) override {
    if (hears(Sound::kCommitGroup)) to_.group_commit(warp, lane, group);
  }
  void group_wait(exec::Warp& warp, const ir::Inst& in, int lane, exec::CopyGroup group,
                  bool done) override {
    if (hears(Sound::kWaitGroup)) to_.group_wait(warp, in, lane, group, done);
  }
  exec::ObservedOpPtr copies_arrive(const BarrierUse& use) override {
    return to_.copies_arrive(use);
  }
  void copies_arrived(exec::ObservedOp& op, const exec::SharedPlace& place) override {
    if (hears(Sound::kCopiesArrived)) to_.copies_arrived(op, place);
  }
  exec::ObservedOpPtr wgmma_issue(exec::Warp& warp, const ir::Inst& in,
                                  exec::ObservedOpPtr partial) override {
    return to_.wgmma_issue(warp, in, std::move(partial));
  }
  void wgmma_fence(exec::Warp& warp, const ir::Inst& in) override {
    if (hears(Sound::kWgmmaFence)) to_.wgmma_fence(warp, in);
  }
  void wgmma_wait(exec::Warp& warp, const ir::Inst& in, bool done,
                  std::uint64_t completed) override {
    if (hears(Sound::kWgmmaWait)) to_.wgmma_wait(warp, in, done, completed);
  }
  void matrix_registers(exec::Warp& warp, const ir::Inst& in) override {
    if (hears(Sound::kMatrixRegisters)) to_.matrix_registers(warp, in);
  }
  exec::ObservedOpPtr tensor_issue(const TensorWork& work) override {
    return to_.tensor_issue(work);
  }
  exec::ObservedOpPtr tensor_commit(exec::Warp& warp, const ir::Inst& in, int lane) override {
    return to_.tensor_commit(warp, in, lane);
  }
  void tensor_arrive(exec::ObservedOp& commit, const exec::SharedPlace& place) override {
    if (hears(Sound::kCommitArrives)) to_.tensor_arrive(commit, place);
  }
  void tensor_wait(exec::Warp& warp, const ir::Inst& in, bool loads, bool done) override {
    if (hears(loads ? Sound::kWaitLoads : Sound::kWaitStores)) {
      to_.tensor_wait(warp, in, loads, done);
    }
  }
  void tensor_fence(exec::Warp& warp, std::uint32_t mask, bool after) override {
    if (hears(after ? Sound::kFenceAfter : Sound::kFenceBefore)) {
      to_.tensor_fence(warp, mask, after);
    }
  }
  void tensor_free(exec::Warp& warp, const ir::Inst& in, const model::TmemRange& range) override {
    if (hears(Sound::kFree)) to_.tensor_free(warp, in, range);
  }
  void touches(exec::Cluster& cluster, const std::vector<async::Touch>& touches) override {
    if (hears(Sound::kTouches)) to_.touches(cluster, touches);
  }
  void write_together(exec::Warp& warp, const ir::Inst& in, const exec::SharedPlace& place,
                      std::uint32_t bytes) override {
    if (hears(Sound::kWriteTogether)) to_.write_together(warp, in, place, bytes);
  }

 private:
  bool hears(Sound sound) const { return sound != deaf_to_; }

  exec::Observer& to_;
  Sound deaf_to_;
};

/// The report of a variant under the policies, with a checker that is deaf to one kind of sound.
CheckReport report_of(const std::string& program, const std::string& name, Sound deaf_to) {
  static const std::vector<LitmusVariant> all = load_litmus(MXEMU_LITMUS_DIR);
  const auto variant = std::ranges::find_if(all, [&](const LitmusVariant& litmus) {
    return litmus.program == program && litmus.name == name;
  });
  CheckReport report;
  if (variant == all.end()) {
    ADD_FAILURE() << "no litmus program " << program << " " << name;
    return report;
  }
  for (const Policy policy : kAllPolicies) {
    std::unique_ptr<Deaf> deaf;
    const LitmusResult result = run_litmus(*variant, policy, 0, [&](exec::Observer* checker) {
      deaf = std::make_unique<Deaf>(*checker, deaf_to);
      return deaf.get();
    });
    report.merge(result.report);
  }
  return report;
}

struct Edge {
  Sound deaf_to;
  const char* program;
  const char* variant;  ///< a right one, which is then reported
};
constexpr Edge kEdges[] = {
    {Sound::kWarpBarrier, "warp_sync", "full"},
    {Sound::kBarrier, "cta_barrier", "barrier"},
    {Sound::kBarrierComplete, "cta_barrier", "barrier"},
    {Sound::kClusterArrive, "cluster_shared", "right"},
    {Sound::kClusterWait, "cluster_shared", "right"},
    {Sound::kThreadFence, "flag_between_blocks", "fences"},
    {Sound::kInitFence, "bulk_load", "right"},
    {Sound::kProxyFence, "bulk_store", "right"},
    {Sound::kGridDependency, "grid_dependency", "every_thread_waits"},
    {Sound::kArrive, "mbarrier_threads", "parity"},
    {Sound::kPhase, "mbarrier_threads", "parity"},
    {Sound::kWait, "mbarrier_threads", "parity"},
    {Sound::kWait, "bulk_load", "right"},
    {Sound::kCommitGroup, "copy_async", "groups"},
    {Sound::kWaitGroup, "copy_async", "groups"},
    {Sound::kWaitGroup, "bulk_store", "read_back"},
    {Sound::kCopiesArrived, "copy_async", "barrier_arrival"},
    {Sound::kWgmmaFence, "wgmma_registers", "right"},
    {Sound::kWgmmaWait, "wgmma_shared", "overwritten_after_wait"},
    {Sound::kCommitArrives, "tcgen05_mma", "right"},
    {Sound::kWaitLoads, "tcgen05_epilogue", "right"},
    {Sound::kWaitStores, "tcgen05_access", "right"},
    {Sound::kFenceBefore, "tcgen05_access", "right"},
    {Sound::kFenceAfter, "tcgen05_mma", "right"},
};

TEST(DeafChecker, ReportsRightProgramsWithoutAnEdge) {
  for (const Edge& edge : kEdges) {
    EXPECT_FALSE(report_of(edge.program, edge.variant, edge.deaf_to).clean())
        << edge.program << " " << edge.variant << ", deaf to " << static_cast<int>(edge.deaf_to);
  }
}

struct Detection {
  Sound deaf_to;
  const char* program;
  const char* variant;  ///< a wrong one
  const char* rule;     ///< which is then not found in it
};
constexpr Detection kDetections[] = {
    {Sound::kAccess, "cta_barrier", "no_barrier", "race"},
    {Sound::kAccess, "grid_dependency", "no_wait", "griddepcontrol"},
    {Sound::kAsyncGlobal, "grid_dependency", "copy_before_wait", "griddepcontrol"},
    {Sound::kUninitialised, "misuse", "never_written", "uninitialised"},
    {Sound::kMaxRegisters, "max_registers", "increase_below", "setmaxnreg"},
    {Sound::kAsyncShared, "bulk_load", "no_wait", "race"},
    {Sound::kAsyncGlobal, "bulk_reduce", "plain_access", "race"},
    {Sound::kCompleteTx, "bulk_load", "no_init_fence", "init"},
    {Sound::kMatrixRegisters, "wgmma_registers", "no_fence_after_write", "wgmma.fence"},
    {Sound::kFree, "tcgen05_access", "dealloc_unordered", "race"},
    {Sound::kTouches, "tcgen05_mma", "no_wait", "race"},
    {Sound::kTouches, "tcgen05_access", "no_before", "tcgen05 fence"},
    {Sound::kWriteTogether, "tcgen05_access", "address_unordered", "race"},
    {Sound::kExit, "copy_async", "left_at_exit", "exit"},
};

TEST(DeafChecker, MissesWrongProgramsWithoutADetection) {
  for (const Detection& detection : kDetections) {
    const std::string about = std::string(detection.program) + " " + detection.variant;
    EXPECT_TRUE(has_hazard(report_of(detection.program, detection.variant, kNothing),
                           HazardLevel::kError, detection.rule))
        << about;
    EXPECT_FALSE(has_hazard(report_of(detection.program, detection.variant, detection.deaf_to),
                            HazardLevel::kError, detection.rule))
        << about;
  }
}

// Each rule finds something in the suite that no other rule finds.
TEST(DeafChecker, EveryRuleIsTheOnlyOneThatFindsSomething) {
  std::vector<std::string> alone;
  std::vector<std::string> seen;
  for (const LitmusVariant& litmus : load_litmus(MXEMU_LITMUS_DIR)) {
    const CheckReport report = run_litmus(litmus, Policy::kRandom, 0).report;
    for (const Hazard& hazard : report.hazards) seen.push_back(hazard.rule);
    const bool one = std::ranges::all_of(report.hazards, [&](const Hazard& hazard) {
      return hazard.rule == report.hazards[0].rule;
    });
    if (one && !report.hazards.empty()) alone.push_back(report.hazards[0].rule);
  }
  EXPECT_GT(std::ranges::count(seen, "race"), 20);
  for (const std::string& rule : seen) {
    EXPECT_NE(std::ranges::find(alone, rule), alone.end()) << rule;
  }
}

}  // namespace
}  // namespace mxfa::emu::test
