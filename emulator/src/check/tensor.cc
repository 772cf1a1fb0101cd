#include <fmt/format.h>

#include <algorithm>

#include "check/checker.h"

/// tcgen05: tensor memory, and the order of the work on it. PTX ISA 9.0, section 9.7.16.6.
namespace mxfa::emu::check {
namespace {

using exec::OpKind;

bool is_load(OpKind kind) { return kind == OpKind::kTensorLoad; }

}  // namespace

exec::ObservedOpPtr Checker::tensor_issue(const TensorWork& work) {
  ClusterState& cluster = state(work.warp.cta().cluster);
  WarpState& own = cluster.warp(work.warp);
  auto op = std::make_shared<OpState>(cluster, work.kind);
  op->line = work.in.line;
  op->warp = own.clock.warp();
  op->lane = work.lane;
  op->accumulator = work.accumulator;
  op->loads_done = own.clock.accesses_done(true);
  op->stores_done = own.clock.accesses_done(false);
  const std::uint32_t live = work.warp.live();
  const std::uint32_t mask = work.lane < 0 ? live : 1u << work.lane;
  own.clock.release(mask, live, op->knowledge);
  std::uint8_t& role = roles_[cluster.index][own.clock.warp()];
  if (work.kind == OpKind::kTensorLoad || work.kind == OpKind::kTensorStore) {
    // The whole warp: what any lane is behind, the instruction is behind.
    op->behind = own.clock.tensor_order();
    op->agent = cluster.agents.of(
        is_load(work.kind) ? AgentKind::kTensorLoads : AgentKind::kTensorStores, op->warp);
    op->clock = own.clock.issue_access(is_load(work.kind));
    role |= Role::kTensorMemory;
    return op;
  }
  const auto lane = static_cast<std::uint32_t>(work.lane);
  op->behind = own.clock.group_of(lane).tensor;
  op->agent = cluster.agents.of(AgentKind::kTensorPipe, op->warp * kLanes + lane);
  op->clock = own.clock.issue_tensor(lane);
  own.last_tensor[lane].op = op;
  role |= Role::kMatrix;
  return op;
}

// Tells of the lane's earlier mma and cp, and of what came before them.
exec::ObservedOpPtr Checker::tensor_commit(exec::Warp& warp, const ir::Inst& in, int lane) {
  ClusterState& cluster = state(warp.cta().cluster);
  WarpState& own = cluster.warp(warp);
  auto op = std::make_shared<OpState>(cluster, OpKind::kTensorMma);
  op->line = in.line;
  op->warp = own.clock.warp();
  op->lane = lane;
  const auto index = static_cast<std::uint32_t>(lane);
  op->agent = cluster.agents.of(AgentKind::kTensorPipe, op->warp * kLanes + index);
  op->clock = own.clock.tensor_issued(index);
  own.clock.release(1u << lane, warp.live(), op->knowledge);
  op->tracked = own.last_tensor[index].op;
  return op;
}

void Checker::tensor_arrive(exec::ObservedOp& commit, const exec::SharedPlace& place) {
  const auto& op = static_cast<const OpState&>(commit);
  check_init_known(place, op);
  if (op.clock == 0) return;
  Knowledge& pending = barrier(place).pending;
  pending.known.raise(op.agent, op.clock);
  pending.tensor.complete.raise(op.agent, op.clock);
  pending.tensor.issued.raise(op.agent, op.clock);
  pending.tensor.finished.raise(op.agent, op.clock);
  pending.tensor.join(op.tracked->behind);
  // What these came after, in the pipeline, is over as well.
  pending.tensor.finished.join(op.tracked->behind.issued);
  pending.join(op.tracked->knowledge);
}

void Checker::tensor_wait(exec::Warp& warp, const ir::Inst& in, bool loads, bool done) {
  findings_.count_wait(in.line, done, false);
  if (done) state(warp).clock.wait_accesses(warp.live(), loads);
}

void Checker::tensor_fence(exec::Warp& warp, std::uint32_t mask, bool after) {
  WarpClock& clock = state(warp).clock;
  if (after) {
    clock.tensor_fence_after(mask);
  } else {
    clock.tensor_fence_before(mask);
  }
}

void Checker::touch_tensor(BlockState& block, const model::TmemRange& range,
                           const Shadow::Touch& touch) {
  Shadow::Touch part = touch;
  space_ = Space::kTensor;
  for (std::uint32_t quarter = range.lane / 32; quarter * 32 < range.lane + range.lanes;
       ++quarter) {
    std::uint32_t units = 0;
    for (std::uint32_t unit = 0; unit < 4; ++unit) {
      const std::uint32_t lane = quarter * 32 + unit * 8;
      if (lane + 8 > range.lane && lane < range.lane + range.lanes) units |= 1u << unit;
    }
    part.record.units = static_cast<std::uint8_t>(units);
    for (std::uint32_t i = 0; i < range.columns; ++i) {
      const std::uint32_t column = range.column + i;
      part.address = std::uint64_t{column} * model::kTmemLanes + quarter * 32;
      shadow_.touch_lanes(block.tmem.at(column, quarter), part);
    }
  }
}

void Checker::check_written(exec::Cta& cta, const model::ByteRange& range) {
  if (!launch_.checks.uninitialised || cta.smem.init().all(range.begin, range.size)) return;
  uninitialised(nullptr, nullptr,
                fmt::format("read of shared memory that nobody wrote: bytes {}..{}", range.begin,
                            range.begin + range.size - 1));
}

void Checker::check_written(exec::Cta& cta, const model::TmemRange& range) {
  if (!launch_.checks.uninitialised) return;
  const auto missing = cta.tensor().memory.first_unwritten(range);
  if (!missing) return;
  uninitialised(nullptr, nullptr,
                fmt::format("read of tensor memory that nobody wrote: lane {}, column {}",
                            missing->lane, missing->column));
}

void Checker::touches(exec::Cluster& the_cluster, const std::vector<async::Touch>& touches) {
  const OpState& op = *current_;
  ClusterState& cluster = state(the_cluster);
  TensorAccessor by(op.behind, op.knowledge, agents_);
  by.warp = op.warp;
  by.loads_done = op.loads_done;
  by.stores_done = op.stores_done;
  AccessRecord record = op_record(op);
  for (const async::Touch& touch : touches) {
    exec::Cta& cta = *the_cluster.ctas[touch.cta];
    // Outside of the memory the operation itself is a fault.
    const bool inside = touch.space == async::Touch::Space::kShared
                            ? touch.bytes.begin + touch.bytes.size <= cta.smem.size()
                            : touch.words.column + touch.words.columns <= model::kTmemColumns &&
                                  touch.words.lane + touch.words.lanes <= model::kTmemLanes;
    if (!inside) continue;
    if (touch.space == async::Touch::Space::kShared) {
      touch_range(Space::kShared, &cta, touch.bytes.begin, touch.bytes.size, touch.writes);
      if (!touch.writes) check_written(cta, touch.bytes);
      continue;
    }
    conflict_cluster_ = cluster.index;
    conflict_rank_ = touch.cta;
    record.flags = AccessRecord::kNoLanes;
    // D alone is written.
    const bool is_d = touch.writes || std::ranges::any_of(touches, [&](const async::Touch& other) {
                        return other.writes && other.cta == touch.cta && other.words == touch.words;
                      });
    if (op.kind == OpKind::kTensorMma && is_d) record.flags |= AccessRecord::kAccumulator;
    if (!touch.writes) check_written(cta, touch.words);
    touch_tensor(cluster.blocks[touch.cta], touch.words, {by, record, touch.writes, 0});
  }
}

// Everything on these columns must be over: a synchronous instruction, so without tcgen05 fences.
void Checker::tensor_free(exec::Warp& warp, const ir::Inst& in, const model::TmemRange& range) {
  ClusterState& cluster = state(warp.cta().cluster);
  WarpState& own = cluster.warp(warp);
  Knowledge before(cluster.index);
  own.clock.release(warp.live(), warp.live(), before);
  const TensorOrder behind = own.clock.tensor_order();
  TensorAccessor by(behind, before, agents_);
  by.warp = own.clock.warp();
  by.loads_done = own.clock.accesses_done(true);
  by.stores_done = own.clock.accesses_done(false);
  by.synchronous = true;
  AccessRecord record;
  record.cluster = cluster.index;
  record.clock = own.clock.now();
  record.line = in.line;
  record.agent = own.clock.threads();
  record.flags = AccessRecord::kLaneSet;
  record.lanes = warp.live();
  conflict_cluster_ = cluster.index;
  conflict_rank_ = warp.cta().rank;
  BlockState& block = cluster.blocks[warp.cta().rank];
  touch_tensor(block, range, {by, record, true, 0});
  // Who allocates the columns anew comes after this.
  for (std::uint32_t i = 0; i < range.columns; ++i) {
    for (std::uint32_t quarter = 0; quarter < 4; ++quarter) {
      shadow_.forget(block.tmem.at(range.column + i, quarter));
    }
  }
}

void Checker::write_together(exec::Warp& warp, const ir::Inst& in, const exec::SharedPlace& place,
                             std::uint32_t bytes) {
  ClusterState& cluster = state(warp.cta().cluster);
  WarpState& own = cluster.warp(warp);
  Knowledge before(cluster.index);
  own.clock.release(warp.live(), warp.live(), before);
  const MemoryAccessor by(before, agents_, Space::kShared, false);
  Shadow::Touch touch{by, {}, true, place.offset & ~15u};
  touch.record.cluster = cluster.index;
  touch.record.clock = own.clock.now();
  touch.record.line = in.line;
  touch.record.agent = own.clock.threads();
  touch.record.flags = AccessRecord::kLaneSet | AccessRecord::kTogether;
  touch.record.lanes = warp.live();
  touch.record.units =
      static_cast<std::uint8_t>(((1u << bytes / 4) - 1) << (place.offset % 16 / 4));
  space_ = Space::kShared;
  conflict_cluster_ = cluster.index;
  conflict_rank_ = place.cta->rank;
  shadow_.touch(cluster.blocks[place.cta->rank].smem.at(place.offset), touch);
}

}  // namespace mxfa::emu::check
