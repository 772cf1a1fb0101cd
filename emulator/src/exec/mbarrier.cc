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

  bool has(std::uint8_t flag) const { return (flags & flag) != 0; }
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
  }

  void arrive(const SharedPlace& place, int lane) const {
    model::Mbarrier::ArriveOptions options;
    options.drop = has(MbarrierFlags::kDrop);
    options.no_complete = has(MbarrierFlags::kNoComplete);
    if (has(MbarrierFlags::kExpect)) {
      options.expect_tx = operand(lane);
    } else if (has_operand()) {
      options.count = operand(lane);
    }
    const auto arrival = place.cta->mbarriers.at(place.offset, "mbarrier.arrive").arrive(options);
    update_image(place);
    warp.row<std::uint64_t>(in.op[0])[lane] = arrival.state;
  }

  bool wait(const SharedPlace& place, int lane) const {
    model::Mbarrier& barrier = place.cta->mbarriers.at(place.offset, "mbarrier wait");
    return has(MbarrierFlags::kParity) ? barrier.wait_parity(operand(lane)).complete
                                       : barrier.wait_state(operand(lane)).complete;
  }

  /// The result bit of a wait.
  bool run(const SharedPlace& place, int lane) const {
    if (!place.cta->smem.contains(place.offset, 8)) {
      warp.fail(in, 1u << lane, "mbarrier outside of the shared memory");
    }
    switch (op) {
      case MbarrierOp::kInit:
        init(place, lane);
        break;
      case MbarrierOp::kInval:
        place.cta->mbarriers.inval(place.offset);
        break;
      case MbarrierOp::kExpectTx:
        place.cta->mbarriers.at(place.offset, "mbarrier.expect_tx").expect_tx(operand(lane));
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
  const LaneOperation operation{warp, in, static_cast<MbarrierOp>(in.extra & 0xFFu),
                                static_cast<std::uint8_t>(in.extra >> 8)};
  if (operation.op == MbarrierOp::kPendingCount) {
    for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      c.row<std::uint32_t>(in.op[0])[lane] =
          model::Mbarrier::pending_count(operation.operand(lane));
    }
    return;
  }
  std::uint64_t address[kLanes];
  lane_addresses(warp, in, address);
  std::uint32_t complete = 0;
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    if (operation.run(shared_place(warp.cta(), address[lane]), lane)) complete |= 1u << lane;
  }
  if (operation.op != MbarrierOp::kWait) return;
  c.set_pred(in.op[0], complete, mask);
  warp.note_poll();
  if (complete != mask) warp.give_way();
}

}  // namespace mxfa::emu::exec
