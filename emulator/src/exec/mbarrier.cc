#include "model/mbarrier.h"

#include <bit>

#include "exec/access.h"
#include "exec/tasks.h"

/// The mbarrier instructions: operands and memory here, the object in model/mbarrier.h.
namespace mxfa::emu::exec {
namespace {

using ir::Inst;

struct LaneOperation {
  Warp& warp;
  const Inst& in;
  MbarrierOp op;
  std::uint8_t flags;
  std::uint64_t address[kLanes] = {};
  std::uint32_t rest = 0;  ///< lanes from the current one on
  std::uint32_t told = 0;  ///< lanes of which the observer knows

  bool has(std::uint8_t flag) const { return (flags & flag) != 0; }
  Observer* observer() const { return warp.cta().launch.observer; }
  Observer::BarrierUse use(const SharedPlace& place, std::uint32_t lanes) const {
    return {warp, in, lanes, place, has(MbarrierFlags::kRelaxed)};
  }
  /// The lanes from this one on that do the same at the same barrier: observers see them at once.
  std::uint32_t alike(int lane) const {
    std::uint32_t lanes = 0;
    for (std::uint32_t left = rest; left != 0; left &= left - 1) {
      const int other = std::countr_zero(left);
      const bool same =
          address[other] == address[lane] && (!has_operand() || operand(other) == operand(lane));
      if (same) lanes |= 1u << other;
    }
    return lanes;
  }
  bool has_operand() const { return in.op[2] != ir::kNoOperand; }

  std::uint64_t operand(int lane) const {
    const bool wide = op == MbarrierOp::kPendingCount ||
                      (op == MbarrierOp::kWait && !has(MbarrierFlags::kParity));
    return wide ? warp.row<const std::uint64_t>(in.op[2])[lane]
                : warp.row<const std::uint32_t>(in.op[2])[lane];
  }

  void init(const SharedPlace& place, int lane) const {
    place.cta->mbarriers.init(place.offset, operand(lane));
    place.cta->smem.init().mark(place.offset, 8);
    update_image(place);
    if (observer() != nullptr) observer()->mbarrier_init(use(place, 1u << lane));
  }

  void arrive(const SharedPlace& place, int lane) {
    model::Mbarrier::ArriveOptions options;
    options.drop = has(MbarrierFlags::kDrop);
    options.no_complete = has(MbarrierFlags::kNoComplete);
    if (has(MbarrierFlags::kExpect)) {
      options.expect_tx = operand(lane);
    } else if (has_operand()) {
      options.count = operand(lane);
    }
    model::Mbarrier& barrier = place.cta->mbarriers.at(place.offset, "mbarrier.arrive");
    if (observer() != nullptr && ((told >> lane) & 1u) == 0) {
      told |= alike(lane);
      observer()->mbarrier_arrive(use(place, alike(lane)));
    }
    const auto arrival = barrier.arrive(options);
    if (observer() != nullptr) {
      if (arrival.previous_unobserved) observer()->mbarrier_unobserved(use(place, 1u << lane));
      if (arrival.completed) observer()->mbarrier_phase(place);
      if (arrival.completed) told = 0;  // the lanes that follow arrive at the next phase
    }
    update_image(place);
    warp.row<std::uint64_t>(in.op[0])[lane] = arrival.state;
  }

  bool wait(const SharedPlace& place, int lane) {
    model::Mbarrier& barrier = place.cta->mbarriers.at(place.offset, "mbarrier wait");
    const model::Mbarrier::Wait result = has(MbarrierFlags::kParity)
                                             ? barrier.wait_parity(operand(lane))
                                             : barrier.wait_state(operand(lane));
    if (observer() != nullptr && ((told >> lane) & 1u) == 0) {
      told |= alike(lane);
      observer()->mbarrier_wait(use(place, alike(lane)), result.complete, result.phase);
    }
    return result.complete;
  }

  /// For reports of a deadlock: barrier by barrier.
  void note(std::uint32_t complete, std::uint32_t mask) const {
    warp.note_mbarrier(complete, nullptr, nullptr, 0);
    for (std::uint32_t left = mask & ~complete; left != 0;) {
      const std::uint64_t at = address[std::countr_zero(left)];
      std::uint32_t lanes = 0;
      for (std::uint32_t others = left; others != 0; others &= others - 1) {
        const int lane = std::countr_zero(others);
        if (address[lane] == at) lanes |= 1u << lane;
      }
      const SharedPlace place = shared_place(warp.cta(), at);
      warp.note_mbarrier(lanes, &in, place.cta, place.offset);
      left &= ~lanes;
    }
  }

  /// The result bit of a wait.
  bool run(const SharedPlace& place, int lane) {
    if (!place.cta->smem.contains(place.offset, 8)) {
      warp.fail(in, 1u << lane, "mbarrier outside of the shared memory");
    }
    switch (op) {
      case MbarrierOp::kInit:
        init(place, lane);
        break;
      case MbarrierOp::kInval:
        place.cta->mbarriers.inval(place.offset);
        if (observer() != nullptr) observer()->mbarrier_inval(use(place, 1u << lane));
        break;
      case MbarrierOp::kExpectTx:
        place.cta->mbarriers.at(place.offset, "mbarrier.expect_tx").expect_tx(operand(lane));
        if (observer() != nullptr) observer()->mbarrier_expect(use(place, 1u << lane));
        update_image(place);
        break;
      case MbarrierOp::kCompleteTx:
        complete_bytes(place, operand(lane));
        break;
      case MbarrierOp::kArrive:
        arrive(place, lane);
        break;
      case MbarrierOp::kWait:
        return wait(place, lane);
      default:
        break;
    }
    ++warp.cta().cluster.progress.count;
    return false;
  }
};

}  // namespace

void mbarrier(Context& c, const Inst& in, std::uint32_t mask) {
  Warp& warp = static_cast<Warp&>(c);
  LaneOperation operation{warp, in, static_cast<MbarrierOp>(in.extra & 0xFFu),
                          static_cast<std::uint8_t>(in.extra >> 8)};
  if (operation.op == MbarrierOp::kPendingCount) {
    for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      c.row<std::uint32_t>(in.op[0])[lane] =
          model::Mbarrier::pending_count(operation.operand(lane));
    }
    return;
  }
  lane_addresses(warp, in, operation.address);
  std::uint32_t complete = 0;
  for (operation.rest = mask; operation.rest != 0; operation.rest &= operation.rest - 1) {
    const int lane = std::countr_zero(operation.rest);
    const SharedPlace place = shared_place(warp.cta(), operation.address[lane]);
    if (operation.run(place, lane)) complete |= 1u << lane;
  }
  if (operation.op != MbarrierOp::kWait) return;
  c.set_pred(in.op[0], complete, mask);
  warp.note_poll();
  operation.note(complete, mask);
  if (complete != mask) warp.give_way();
}

}  // namespace mxfa::emu::exec
