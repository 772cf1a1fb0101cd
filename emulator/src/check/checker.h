#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "check/cluster_state.h"
#include "check/findings.h"
#include "check/footprint.h"
#include "exec/observer.h"

/// The hazard checker of one launch: watches it and finds conflicting accesses that nothing orders.
/// The order is the happens-before relation that the ISA defines, so what it finds does not depend
/// on who went first in this run, as long as both accesses happened.
namespace mxfa::emu::check {

class Checker final : public exec::Observer, private ConflictSink {
 public:
  /// Registers itself with the launch, which must run on one host thread.
  Checker(exec::Launch& launch, CheckReport& report);
  /// Of programmatic dependent launch: see LaunchOptions::overlapped.
  void overlap(const std::shared_ptr<const GridFootprint>& before);
  /// Null where nothing may overlap with this launch.
  std::shared_ptr<const GridFootprint> footprint() const;
  /// Writes the report.
  void finish() { findings_.finish(); }

  void begin(exec::Cluster& cluster) override;
  void exited(exec::Cta& cta) override;
  void access(const ThreadAccess& access) override;
  bool uninitialised(const exec::Warp* warp, const ir::Inst* in, const std::string& what) override;

  void warp_barrier(exec::Warp& warp, std::uint32_t mask) override;
  void barrier_arrive(exec::Warp& warp, std::uint32_t mask, std::uint32_t barrier,
                      bool waits) override;
  void barrier_complete(exec::Cta& cta, std::uint32_t barrier) override;
  void cluster_arrive(exec::Warp& warp, std::uint32_t mask, bool relaxed) override;
  void cluster_complete(exec::Cluster& cluster) override;
  void cluster_wait(exec::Warp& warp, std::uint32_t mask, bool passed) override;
  void fence(exec::Warp& warp, const ir::Inst& in, std::uint32_t mask) override;
  void grid_dependency(exec::Warp& warp, const ir::Inst& in, std::uint32_t mask) override;
  void set_max_registers(exec::Warp& warp, const ir::Inst& in) override;

  void mbarrier_init(const BarrierUse& use) override;
  void mbarrier_inval(const BarrierUse& use) override;
  void mbarrier_expect(const BarrierUse& use) override;
  void mbarrier_arrive(const BarrierUse& use) override;
  void mbarrier_unobserved(const BarrierUse& use) override;
  void mbarrier_phase(const exec::SharedPlace& place) override;
  void mbarrier_wait(const BarrierUse& use, bool complete, std::int64_t phase) override;

  exec::ObservedOpPtr issue(const Issue& issue) override;
  void enter(exec::ObservedOp& op) override;
  void leave() override { current_ = nullptr; }
  void async_shared(exec::Cta& cta, std::uint64_t offset, std::uint64_t bytes, bool write) override;
  void async_global(std::uint64_t address, std::uint64_t bytes, bool write) override;
  void async_complete_tx(const exec::SharedPlace& place) override;
  void group_commit(exec::Warp& warp, int lane, exec::CopyGroup group) override;
  void group_wait(exec::Warp& warp, const ir::Inst& in, int lane, exec::CopyGroup group,
                  bool done) override;
  exec::ObservedOpPtr copies_arrive(const BarrierUse& use) override;
  void copies_arrived(exec::ObservedOp& op, const exec::SharedPlace& place) override;

  exec::ObservedOpPtr wgmma_issue(exec::Warp& warp, const ir::Inst& in,
                                  exec::ObservedOpPtr partial) override;
  void wgmma_fence(exec::Warp& warp, const ir::Inst& in) override;
  void wgmma_wait(exec::Warp& warp, const ir::Inst& in, bool done,
                  std::uint64_t completed) override;
  void matrix_registers(exec::Warp& warp, const ir::Inst& in) override;

  exec::ObservedOpPtr tensor_issue(const TensorWork& work) override;
  exec::ObservedOpPtr tensor_commit(exec::Warp& warp, const ir::Inst& in, int lane) override;
  void tensor_arrive(exec::ObservedOp& commit, const exec::SharedPlace& place) override;
  void tensor_wait(exec::Warp& warp, const ir::Inst& in, bool loads, bool done) override;
  void tensor_fence(exec::Warp& warp, std::uint32_t mask, bool after) override;
  void tensor_free(exec::Warp& warp, const ir::Inst& in, const model::TmemRange& range) override;
  void touches(exec::Cluster& cluster, const std::vector<async::Touch>& touches) override;
  void write_together(exec::Warp& warp, const ir::Inst& in, const exec::SharedPlace& place,
                      std::uint32_t bytes) override;

 private:
  /// What strong accesses have released at one address.
  struct SyncLocation {
    explicit SyncLocation(std::uint32_t home) : released(home) {}
    Knowledge released;
    bool cta_scope = false;
    const exec::Cta* cta = nullptr;
  };
  friend class ThreadAccessCheck;

  // ConflictSink
  void conflict(const Conflict& conflict) override;
  bool morally_strong(const AccessRecord& a, const AccessRecord& b) const override;

  ClusterState& state(const exec::Cluster& cluster) {
    return static_cast<ClusterState&>(*cluster.observed);
  }
  WarpState& state(exec::Warp& warp) { return state(warp.cta().cluster).warp(warp); }
  BarrierState& barrier(const exec::SharedPlace& place);
  BarrierState* check_barrier_use(const BarrierUse& use);
  void check_started(const ThreadAccess& access);
  void same_address(const AccessRecord& record);
  void strong_accesses(const ThreadAccess& access);
  void strong_access(const ThreadAccess& access, std::uint32_t lanes, std::uint64_t key);
  bool in_scope(const SyncLocation& location, const ThreadAccess& access) const;

  void touch_range(Space space, exec::Cta* cta, std::uint64_t begin, std::uint64_t bytes,
                   bool write);
  struct GridTouch {
    const Knowledge& knows;
    const AccessRecord& record;
    std::uint64_t begin;
    std::uint64_t bytes;
    bool write;
  };
  void touch_grid(const GridTouch& touch);
  bool grids_matter() const { return footprint_ != nullptr || !overlapped_.empty(); }
  AccessRecord op_record(const OpState& op) const;
  void touch_tensor(BlockState& block, const model::TmemRange& range, const Shadow::Touch& touch);
  void check_written(exec::Cta& cta, const model::ByteRange& range);
  void check_written(exec::Cta& cta, const model::TmemRange& range);
  void check_init_known(const exec::SharedPlace& place, const OpState& op);
  template <class Visit>
  void for_matrix_registers(const ir::Inst& in, const Visit& visit) const;
  void use_matrix_registers(exec::Warp& warp, const ir::Inst& in);
  void report_registers(exec::Warp& warp, const ir::Inst& in, const RegisterState::Result& result);
  void check_work_at_exit(exec::Cta& cta, const Knowledge& end);
  void check_warp_at_exit(exec::Cta& cta, const WarpState& warp, const Knowledge& end);
  void check_remote_at_exit(exec::Cta& cta, const Knowledge& end);
  void check_max_registers_at_exit(exec::Cta& cta);
  struct Left {
    std::uint32_t line;
    const char* what;
    std::string missing;
    HazardLevel level = HazardLevel::kError;
  };
  void left_at_exit(exec::Cta& cta, const Left& left);
  /// Of what the ISA does not promise and practice relies on.
  HazardLevel practice() const {
    return launch_.checks.strict ? HazardLevel::kError : HazardLevel::kWarning;
  }

  // Reports
  std::string cta_name(std::uint32_t cluster, std::uint32_t rank) const;
  std::string warp_name(std::uint32_t cluster, std::uint32_t warp) const;
  std::string who(const AccessRecord& record) const;
  std::string who(const exec::Warp& warp, std::uint32_t mask) const;
  std::string what(const AccessRecord& record, bool writes) const;
  std::string missing(const Conflict& conflict) const;
  Clock barrier_base(const AccessRecord& record) const;
  Findings::Place place(const Conflict& conflict) const;

  exec::Launch& launch_;
  std::vector<ir::Inst> code_;  ///< the kernel's, with the uses of wgmma's registers watched
  std::vector<std::uint32_t> uses_begin_;  ///< by instruction, in Kernel::matrix_registers
  Findings findings_;
  AgentTables agents_;
  std::vector<std::vector<std::uint8_t>> roles_;  ///< by cluster and warp
  Shadow shadow_;
  PagedGranules global_;
  std::shared_ptr<Footprint> footprint_;  ///< null where this kernel launches no dependents
  std::shared_ptr<const GridFootprint> before_;
  std::vector<const Footprint*> overlapped_;  ///< the launch before first
  bool waited_ = false;                       ///< some thread, for the launch before
  std::unordered_map<std::uint64_t, SyncLocation> locations_;
  OpState* current_ = nullptr;
  /// Clock of an mbarrier's init, by cluster and agent, for reports.
  std::map<std::pair<std::uint32_t, AgentId>, Clock> barrier_bases_;
  // What is being touched, for reports.
  Space space_ = Space::kShared;
  std::uint32_t conflict_cluster_ = 0;
  std::uint32_t conflict_rank_ = 0;
  std::shared_ptr<const Knowledge> copy_issue_;
  std::uint32_t practices_ = 0;
};

}  // namespace mxfa::emu::check
