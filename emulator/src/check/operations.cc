#include <bit>

#include "check/checker.h"
#include "exec/handlers.h"
#include "model/fault.h"

/// Asynchronous operations: when they may begin, what they touch, what their completion tells.
/// PTX ISA 9.0, sections 8.9.1.1, 9.7.9.25 and 9.7.15.
namespace mxfa::emu::check {
namespace {

using exec::OpKind;

AgentKind agent_kind(OpKind kind) {
  switch (kind) {
    case OpKind::kStoreRead:
      return AgentKind::kBulkReads;
    case OpKind::kStoreWrite:
      return AgentKind::kBulkWrites;
    default:
      return AgentKind::kCopies;
  }
}

}  // namespace

// The operation comes after what the issuing thread has done and knows (8.9.1.1).
exec::ObservedOpPtr Checker::issue(const Issue& issue) {
  ClusterState& cluster = state(issue.warp.cta().cluster);
  WarpState& own = cluster.warp(issue.warp);
  auto op = std::make_shared<OpState>(cluster, issue.kind);
  op->line = issue.in.line;
  op->warp = own.clock.warp();
  op->lane = issue.lane;
  op->barrier = issue.barrier;
  op->reduces = issue.reduces && issue.kind != OpKind::kStoreRead;
  const auto lane = static_cast<std::uint32_t>(issue.lane);
  std::uint8_t& role = roles_[cluster.index][own.clock.warp()];
  if (issue.kind == OpKind::kCopy) {
    // All lanes of one instruction share what came before it.
    if (issue.first) {
      auto before = std::make_shared<Knowledge>(cluster.index);
      own.clock.release(issue.warp.live(), issue.warp.live(), *before);
      copy_issue_ = std::move(before);
    }
    op->shared = copy_issue_;
    role |= Role::kCopies;
  } else {
    own.clock.release(1u << lane, issue.warp.live(), op->knowledge);
    role |= issue.kind == OpKind::kToBarrier ? Role::kLoads : Role::kStores;
  }
  if (issue.kind == OpKind::kToBarrier) {
    op->agent = barrier(issue.barrier).agent;
    return op;
  }
  const AgentKind kind = agent_kind(issue.kind);
  op->agent = cluster.agents.of(kind, own.clock.warp());
  op->clock = own.clock.open_batch(kind, lane);
  auto& last = issue.kind == OpKind::kCopy ? own.last_copy : own.last_bulk;
  if (issue.kind != OpKind::kStoreWrite) last[lane] = {op->clock, op->line};
  return op;
}

// Bytes count for the phase in which they arrive.
void Checker::enter(exec::ObservedOp& observed) {
  auto& op = static_cast<OpState&>(observed);
  current_ = &op;
  if (op.kind != OpKind::kToBarrier) return;
  BarrierState& at = barrier(op.barrier);
  const std::int64_t phase = op.barrier.cta->mbarriers.at(op.barrier.offset, "complete_tx").phase();
  op.clock = at.base + 1 + static_cast<Clock>(phase);
  at.last_op = op.clock;
  at.last_op_line = op.line;
}

AccessRecord Checker::op_record(const OpState& op) const {
  AccessRecord record;
  record.cluster = op.cluster.index;
  record.clock = op.clock;
  record.line = op.line;
  record.agent = op.agent;
  record.units = 0xF;
  // cp.async works through the generic proxy.
  record.flags = op.kind == OpKind::kCopy ? 0 : AccessRecord::kAsyncProxy;
  const bool of_lane =
      op.kind == OpKind::kStoreRead || op.kind == OpKind::kStoreWrite || op.kind == OpKind::kCopy;
  const bool tensor = op.kind == OpKind::kTensorMma || op.kind == OpKind::kTensorCopy;
  if (tensor) {
    record.flags |= AccessRecord::kNoLanes;
    record.lanes = op.accumulator;
  } else if (of_lane && op.lane >= 0) {
    record.lanes = lane_code(static_cast<std::uint32_t>(op.lane), 0xF);
  } else {
    record.flags |= AccessRecord::kNoLanes;
    record.lanes = op.warp | static_cast<std::uint32_t>(op.lane & 0xFF) << 16;
  }
  return record;
}

void Checker::touch_range(Space space, exec::Cta* cta, std::uint64_t begin, std::uint64_t bytes,
                          bool write) {
  const OpState& op = *current_;
  const MemoryAccessor by(op.before(), agents_, space, op.kind != OpKind::kCopy);
  Shadow::Touch touch{by, op_record(op), write, 0};
  if (op.reduces) touch.record.flags |= AccessRecord::kStrong;
  FlatGranules* smem = cta == nullptr ? nullptr : &state(cta->cluster).blocks[cta->rank].smem;
  space_ = space;
  if (cta != nullptr) {
    conflict_cluster_ = static_cast<std::uint32_t>(cta->cluster.index);
    conflict_rank_ = cta->rank;
  }
  if (space == Space::kGlobal && grids_matter()) {
    touch_grid({op.before(), touch.record, begin, bytes, write});
  }
  const std::uint64_t end = begin + bytes;
  for (std::uint64_t at = begin; at < end;) {
    Granule& granule = smem != nullptr ? smem->at(at) : global_.at(at);
    touch.address = at & ~std::uint64_t{15};
    const std::uint64_t next = std::min(touch.address + 16, end);
    if (at % 4 == 0 && next % 4 == 0) {
      const auto first = static_cast<std::uint32_t>(at % 16 / 4);
      const auto count = static_cast<std::uint32_t>((next - at) / 4);
      touch.record.units = static_cast<std::uint8_t>(((1u << count) - 1) << first);
      shadow_.touch(granule, touch);
      at = next;
      continue;
    }
    for (; at < next; ++at) {
      touch.record.units = static_cast<std::uint8_t>(1u << (at % 4));
      shadow_.touch_bytes(granule, static_cast<std::uint32_t>(at % 16 / 4), touch);
    }
  }
}

void Checker::async_shared(exec::Cta& cta, std::uint64_t offset, std::uint64_t bytes, bool write) {
  if (current_ == nullptr) return;
  touch_range(Space::kShared, &cta, offset, bytes, write);
}

void Checker::async_global(std::uint64_t address, std::uint64_t bytes, bool write) {
  if (current_ == nullptr) return;
  const mem::Region* region = mem::find_region(*launch_.memory, address);
  if (region != nullptr && region->writable) {
    touch_range(Space::kGlobal, nullptr, address, bytes, write);
  }
}

// The barrier itself must have been initialised for the async proxy to see.
void Checker::check_init_known(const exec::SharedPlace& place, const OpState& op) {
  const BarrierState& at = barrier(place);
  const Knowledge& before = op.before();
  const bool known = before.known.at(at.agent) >= at.base;
  if (known && before.fenced[0].at(at.agent) >= at.base) return;
  const Findings::Key key{Rule::kMbarrierInit, at.init_line, op.line, 1};
  if (findings_.repeat(key)) return;
  Findings::Finding finding;
  finding.first = {at.init_line, "some thread", "mbarrier.init"};
  finding.second = {op.line, who(op_record(op)), "completion at the mbarrier"};
  finding.missing = known ? "fence.mbarrier_init or fence.proxy.async by the thread of the init"
                          : "a barrier between the init and the thread that issues the work";
  findings_.add(key, std::move(finding));
}

// A release (9.7.9.27), of what the operation came after as well (8.9.1.1).
void Checker::async_complete_tx(const exec::SharedPlace& place) {
  if (current_ == nullptr) return;
  check_init_known(place, *current_);
  barrier(place).pending.join(current_->before());
}

void Checker::group_commit(exec::Warp& warp, int lane, exec::CopyGroup group) {
  WarpClock& clock = state(warp).clock;
  const auto index = static_cast<std::uint32_t>(lane);
  if (group == exec::CopyGroup::kCopyAsync) return clock.commit_group(AgentKind::kCopies, index);
  clock.commit_group(AgentKind::kBulkReads, index);
  clock.commit_group(AgentKind::kBulkWrites, index);
}

void Checker::group_wait(exec::Warp& warp, const ir::Inst& in, int lane, exec::CopyGroup group,
                         bool done) {
  findings_.count_wait(in.line, done, false);
  if (!done) return;
  WarpClock& clock = state(warp).clock;
  const auto index = static_cast<std::uint32_t>(lane);
  const auto pending = static_cast<std::uint64_t>(in.imm);
  if (group == exec::CopyGroup::kCopyAsync) {
    return clock.wait_group(AgentKind::kCopies, index, pending);
  }
  clock.wait_group(AgentKind::kBulkReads, index, pending);
  if (in.a == 1) clock.wait_group(AgentKind::kBulkWrites, index, pending);
}

// The arrival comes after all copies of the lane so far, also of the group that is still open, and
// after nothing else.
exec::ObservedOpPtr Checker::copies_arrive(const BarrierUse& use) {
  check_barrier_use(use);
  ClusterState& cluster = state(use.warp.cta().cluster);
  WarpState& own = cluster.warp(use.warp);
  auto op = std::make_shared<OpState>(cluster, OpKind::kCopy);
  op->line = use.in.line;
  op->warp = own.clock.warp();
  op->lane = std::countr_zero(use.mask);
  const auto lane = static_cast<std::uint32_t>(op->lane);
  const AgentId whole = cluster.agents.of(AgentKind::kCopies, own.clock.warp());
  op->agent = cluster.agents.of_lane(whole, lane);
  op->clock = own.clock.close_batch(AgentKind::kCopies, lane);
  return op;
}

void Checker::copies_arrived(exec::ObservedOp& observed, const exec::SharedPlace& place) {
  const auto& op = static_cast<const OpState&>(observed);
  barrier(place).pending.known.raise(op.agent, op.clock);
}

exec::ObservedOpPtr Checker::wgmma_issue(exec::Warp& warp, const ir::Inst& in,
                                         exec::ObservedOpPtr partial) {
  ClusterState& cluster = state(warp.cta().cluster);
  WarpState& own = cluster.warp(warp);
  Knowledge before(cluster.index);
  own.clock.release(warp.live(), warp.live(), before);
  roles_[cluster.index][own.clock.warp()] |= Role::kMatrix;
  const auto number = static_cast<Clock>(warp.wgmma.issued);
  use_matrix_registers(warp, in);
  std::shared_ptr<OpState> op;
  if (partial) {
    // Every warp reads the operands, so what comes before must come before each of them.
    op = std::static_pointer_cast<OpState>(std::move(partial));
    op->knowledge.meet(before, cluster.agents);
    return op;
  }
  op = std::make_shared<OpState>(cluster, OpKind::kMatrix);
  op->knowledge = std::move(before);
  op->line = in.line;
  op->warp = own.clock.warp();
  op->lane = -1;
  const std::uint32_t group = warp.index() / 4;
  op->agent = cluster.agents.of(AgentKind::kWgmma, warp.cta().rank << 8 | group);
  op->clock = number;
  cluster.blocks[warp.cta().rank].last_wgmma[group] = {number, in.line};
  return op;
}

void Checker::wgmma_wait(exec::Warp& warp, const ir::Inst& in, bool done, std::uint64_t completed) {
  findings_.count_wait(in.line, done, false);
  if (!done) return;
  ClusterState& cluster = state(warp.cta().cluster);
  WarpState& own = cluster.warp(warp);
  own.clock.learn(warp.live(),
                  cluster.agents.of(AgentKind::kWgmma, warp.cta().rank << 8 | warp.index() / 4),
                  static_cast<Clock>(completed));
}

}  // namespace mxfa::emu::check
