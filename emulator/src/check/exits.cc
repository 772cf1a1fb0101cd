#include <fmt/format.h>

#include <bit>

#include "check/checker.h"
#include "exec/handlers.h"

/// Registers of wgmma, and what must be over when a block exits.
namespace mxfa::emu::check {
namespace {

constexpr std::uint32_t kRegistersOfSm = 65536;

}  // namespace

void Checker::report_registers(exec::Warp& warp, const ir::Inst& in,
                               const RegisterState::Result& result) {
  using enum RegisterState::Fault;
  if (result.fault == kNone) return;
  const Findings::Key key{Rule::kWgmmaFence, result.line, in.line,
                          static_cast<std::uint32_t>(result.fault)};
  if (findings_.repeat(key)) return;
  Findings::Finding finding;
  if (result.line != 0) {
    finding.first = {result.line, who(warp, 0),
                     result.fault == kShape ? "use of a register by wgmma of another shape"
                                            : "access to a register"};
  }
  finding.second = {in.line, who(warp, 0), "use of the register by wgmma"};
  finding.missing = result.fault == kNoFirstFence ? "wgmma.fence before the first wgmma of the warp"
                                                  : "wgmma.fence between them";
  findings_.add(key, std::move(finding));
}

template <class Visit>
void Checker::for_matrix_registers(const ir::Inst& in, const Visit& visit) const {
  const auto index = static_cast<std::size_t>(&in - launch_.code);
  for (std::uint32_t i = uses_begin_[index]; i < uses_begin_[index + 1]; ++i) {
    visit(launch_.kernel->matrix_registers[i]);
  }
}

void Checker::matrix_registers(exec::Warp& warp, const ir::Inst& in) {
  WarpState& own = state(warp);
  for_matrix_registers(
      in, [&](const ir::MatrixRegisterUse& use) { own.registers.touch(use.reg, in.line); });
}

void Checker::use_matrix_registers(exec::Warp& warp, const ir::Inst& in) {
  WarpState& own = state(warp);
  const auto spec = std::bit_cast<exec::WgmmaSpec>(in.imm);
  const std::uint64_t shape =
      std::uint64_t{spec.n8} | std::uint64_t{spec.d} << 8 | std::uint64_t{spec.a} << 16;
  for_matrix_registers(in, [&](const ir::MatrixRegisterUse& use) {
    report_registers(warp, in,
                     use.is_def ? own.registers.accumulate(use.reg, shape, in.line)
                                : own.registers.read(use.reg));
  });
}

void Checker::wgmma_fence(exec::Warp& warp, const ir::Inst&) { state(warp).registers.fence(); }

void Checker::left_at_exit(exec::Cta& cta, const Left& left) {
  const Findings::Key key{Rule::kWorkAtExit, left.line, 0, 0};
  if (findings_.repeat(key)) return;
  Findings::Finding finding;
  finding.level = left.level;
  finding.first = {left.line, cta_name(static_cast<std::uint32_t>(cta.cluster.index), cta.rank),
                   left.what};
  finding.missing = left.missing;
  findings_.add(key, std::move(finding));
}

// Asynchronous work that uses the block's shared memory or registers must be known to be over.
void Checker::exited(exec::Cta& cta) {
  ClusterState& cluster = state(cta.cluster);
  Knowledge end(cluster.index);
  for (const auto& warp : cta.warps) cluster.warp(*warp).clock.release(0xFFFFFFFFu, 0, end);
  check_work_at_exit(cta, end);
  if (cluster.blocks.size() > 1) check_remote_at_exit(cta, end);
  check_max_registers_at_exit(cta);
}

void Checker::check_work_at_exit(exec::Cta& cta, const Knowledge& end) {
  ClusterState& cluster = state(cta.cluster);
  BlockState& block = cluster.blocks[cta.rank];
  for (const auto& [offset, barrier] : block.mbarriers) {
    if (end.known.at(barrier.agent) >= barrier.last_op) continue;
    left_at_exit(
        cta, {barrier.last_op_line, "asynchronous copy",
              fmt::format("a wait for the mbarrier at shared offset {} before the exit", offset)});
  }
  for (std::size_t group = 0; group < block.last_wgmma.size(); ++group) {
    const auto& last = block.last_wgmma[group];
    const AgentId agent =
        cluster.agents.of(AgentKind::kWgmma, cta.rank << 8 | static_cast<std::uint32_t>(group));
    if (end.known.at(agent) < last.number) {
      left_at_exit(cta, {last.line, "wgmma", "wgmma.wait_group before the exit"});
    }
  }
  for (const auto& warp : cta.warps) check_warp_at_exit(cta, cluster.warp(*warp), end);
}

void Checker::check_warp_at_exit(exec::Cta& cta, const WarpState& warp, const Knowledge& end) {
  ClusterState& cluster = state(cta.cluster);
  const AgentId copies = cluster.agents.of(AgentKind::kCopies, warp.clock.warp());
  for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
    const auto& bulk = warp.last_bulk[lane];
    if (warp.clock.completed(AgentKind::kBulkReads, lane) < bulk.group) {
      // Hardware seems to keep the shared memory until it has been read.
      left_at_exit(cta, {bulk.line, "bulk store",
                         "commit_group and cp.async.bulk.wait_group.read by its thread before the "
                         "exit",
                         practice()});
    }
    const auto& copy = warp.last_copy[lane];
    const AgentId of_lane = cluster.agents.find_lane(copies, lane);
    if (warp.clock.completed(AgentKind::kCopies, lane) < copy.group &&
        (of_lane == kNoAgent || end.known.at(of_lane) < copy.group)) {
      left_at_exit(cta, {copy.line, "cp.async", "cp.async.wait_group before the exit"});
    }
    const auto& tensor = warp.last_tensor[lane].op;
    if (tensor && end.tensor.finished.at(tensor->agent) < tensor->clock) {
      left_at_exit(cta, {tensor->line, "tcgen05 work on shared memory",
                         "tcgen05.commit and a wait for its mbarrier before the exit"});
    }
  }
}

// What other blocks do to this one's shared memory must come before its exit.
void Checker::check_remote_at_exit(exec::Cta& cta, const Knowledge& end) {
  ClusterState& cluster = state(cta.cluster);
  const auto check = [&](const AccessRecord& record) {
    if (record.units == 0 || record.cluster != cluster.index) return;
    const Agent& agent = cluster.agents[record.agent];
    if (agent.kind != AgentKind::kThreads || agent.place / cluster.warps_of_block == cta.rank) {
      return;
    }
    const MemoryAccessor by(end, agents_, Space::kShared, false);
    if (by.order(record, AccessRecord{}, record.units) == Order::kOrdered) return;
    const Findings::Key key{Rule::kClusterStart, record.line, 0, 1};
    if (findings_.repeat(key)) return;
    Findings::Finding finding;
    finding.first = {record.line, who(record),
                     "access to the shared memory of " + cta_name(cluster.index, cta.rank)};
    finding.missing = "a cluster barrier after it, before that block exits";
    findings_.add(key, std::move(finding));
  };
  for (std::uint64_t offset = 0; offset < cta.smem.size(); offset += 16) {
    const Granule& granule = cluster.blocks[cta.rank].smem.at(offset);
    check(granule.write);
    check(granule.read);
  }
}

void Checker::check_max_registers_at_exit(exec::Cta& cta) {
  ClusterState& cluster = state(cta.cluster);
  std::uint64_t total = 0;
  bool all = true;
  for (std::size_t i = 0; i < cta.warps.size(); ++i) {
    const WarpState& warp = cluster.warp(*cta.warps[i]);
    const WarpState& first = cluster.warp(*cta.warps[i / 4 * 4]);
    total += std::uint64_t{warp.max_registers} * kLanes;
    all = all && warp.max_registers != 0;
    if (warp.max_registers == first.max_registers) continue;
    const std::uint32_t line =
        warp.max_registers_line != 0 ? warp.max_registers_line : first.max_registers_line;
    const Findings::Key key{Rule::kMaxRegisters, 0, line, 1};
    if (findings_.repeat(key)) continue;
    Findings::Finding finding;
    finding.second = {line, who(*cta.warps[i], 0), "setmaxnreg"};
    finding.missing = "the same setmaxnreg in all four warps of the warpgroup";
    findings_.add(key, std::move(finding));
  }
  if (!all || total <= kRegistersOfSm) return;
  const WarpState& last = cluster.warp(*cta.warps.back());
  const Findings::Key key{Rule::kMaxRegisters, 0, last.max_registers_line, 2};
  if (findings_.repeat(key)) return;
  Findings::Finding finding;
  finding.second = {last.max_registers_line, who(*cta.warps.back(), 0), "setmaxnreg"};
  finding.missing =
      fmt::format("{} registers in all warps together, at most {}", total, kRegistersOfSm);
  findings_.add(key, std::move(finding));
}

}  // namespace mxfa::emu::check
