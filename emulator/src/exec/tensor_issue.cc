#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

#include "exec/access.h"
#include "exec/tasks.h"
#include "exec/tensor_handlers.h"
#include "model/tcgen05_cp.h"
#include "model/tcgen05_mma.h"

/// tcgen05.mma, cp and commit. PTX ISA 9.0, sections 9.7.16.6, .9, .10, .12. Each thread's work is
/// done in the order of its issue, that of different threads in any order but for what tcgen05
/// fences order. Operands are checked when they are issued, memory is read and written when the
/// scheduler completes the work: the latest moment that the ISA allows.
namespace mxfa::emu::exec {
namespace {

using ir::Inst;

constexpr std::uint32_t kTensorChannels = 64;  ///< above those of wgmma

/// One instruction of one thread.
class TensorIssue {
 public:
  TensorIssue(Warp& warp, const Inst& in, int lane)
      : warp_(warp), cta_(warp.cta()), in_(in), lane_(lane) {}

  std::uint32_t word(int k) const { return warp_.row<const std::uint32_t>(in_.op[k])[lane_]; }
  std::uint64_t wide(int k) const { return warp_.row<const std::uint64_t>(in_.op[k])[lane_]; }
  bool pred(int k) const { return (warp_.pred(in_.op[k]) >> lane_ & 1u) != 0; }
  std::uint32_t list_word(std::size_t i) const {
    const std::int32_t row = cta_.launch.kernel->lists[in_.extra + i];
    return warp_.row<const std::uint32_t>(row)[lane_];
  }
  Cta& cta() const { return cta_; }
  LaneTensor& state() const { return warp_.lane_async(lane_).tensor; }
  [[noreturn]] void fail(const std::string& reason) const { warp_.fail(in_, 1u << lane_, reason); }

  /// The CTAs that the instruction works on, the even one first.
  std::vector<Cta*> ctas(std::uint32_t group) const {
    if (group == 1) return {&cta_};
    Cta* peer = cta_.peer();
    if (peer == nullptr || peer->exited()) {
      fail("cta_group::2 without a peer CTA that is still there");
    }
    return cta_.rank % 2 == 0 ? std::vector<Cta*>{&cta_, peer} : std::vector<Cta*>{peer, &cta_};
  }

  using Touches = std::function<void(std::vector<async::Touch>&)>;
  Observer* observer() const { return cta_.launch.observer; }
  ObservedOpPtr observe(OpKind kind, std::uint32_t accumulator = 0) const {
    if (observer() == nullptr) return nullptr;
    return observer()->tensor_issue({kind, warp_, in_, lane_, accumulator});
  }

  void push(const char* what, std::function<void()> effect, Touches touches,
            ObservedOpPtr observed = nullptr) const {
    TensorOrder& order = cta_.cluster.tensor_order;
    LaneTensor& own = state();
    const std::uint64_t id = order.next++;
    order.in_flight.insert(id);
    std::erase_if(own.issued, [&](std::uint64_t old) { return !order.in_flight.contains(old); });
    std::erase_if(own.after, [&](std::uint64_t old) { return !order.in_flight.contains(old); });
    own.issued.push_back(id);
    const std::uint32_t channel =
        kTensorChannels + warp_.index() * kLanes + static_cast<std::uint32_t>(lane_);
    Task::Info info{cta_.launch.kernel, in_.line, what, channel, true};
    info.issuer = {cta_.rank, warp_.index(), 1u << lane_, in_.line};
    info.touches = std::move(touches);
    info.observer = observer();
    info.observed = std::move(observed);
    if (info.observed) info.observed_cluster = &cta_.cluster;
    cta_.async.push(std::make_unique<Task>(
        std::move(info),
        [&order, id, effect = std::move(effect)] {
          effect();
          order.done(id);
        },
        [&order, after = own.after] {
          return std::ranges::none_of(
              after, [&](std::uint64_t old) { return order.in_flight.contains(old); });
        }));
    ++cta_.cluster.progress.count;
  }

 private:
  Warp& warp_;
  Cta& cta_;
  const Inst& in_;
  int lane_;
};

template <class Visit>
void for_lanes(std::uint32_t mask, const Visit& visit) {
  for (; mask != 0; mask &= mask - 1) visit(std::countr_zero(mask));
}

model::SmemView smem_of(Cta& cta) {
  if (cta.exited()) model::fault("tcgen05 operand", "a block that has not exited", cta.name());
  // An observer has looked at the bytes already.
  const bool check = cta.launch.checks.uninitialised && cta.launch.observer == nullptr;
  return {std::span<const std::byte>(cta.smem.data(), cta.smem.size()),
          check ? cta.smem.init().words() : nullptr};
}

// ---- mma --------------------------------------------------------------------------------------

model::Tcgen05Mma decode_mma(const TensorIssue& issue, const TensorMmaSpec& spec,
                             std::size_t masks) {
  model::Tcgen05Mma mma;
  const auto kind = static_cast<model::MmaKind>(spec.kind);
  mma.idesc = model::decode_instruction_descriptor(kind, issue.word(3), spec.cta_group);
  mma.d = issue.word(0);
  if (spec.a_in_tmem != 0) {
    mma.a_tmem = issue.word(1);
  } else {
    mma.a = model::decode_tcgen05_descriptor(issue.wide(1));
  }
  mma.b = model::decode_tcgen05_descriptor(issue.wide(2));
  mma.enable_input_d = issue.pred(6);
  if (kind == model::MmaKind::kMxF8F6F4) {
    mma.sfa = issue.word(4);
    mma.sfb = issue.word(5);
  }
  mma.scale_input_d = spec.scale_input_d;
  for (std::size_t i = 0; i < masks; ++i) mma.disable_lanes[i] = issue.list_word(i);
  model::check_mma(mma);
  return mma;
}

// A buffer that is used must have been filled with the same A, and not discarded since.
void use_collector(const TensorIssue& issue, const TensorMmaSpec& spec) {
  CollectorContent& buffer = issue.state().collector;
  const bool in_tmem = spec.a_in_tmem != 0;
  const CollectorContent wanted{true, in_tmem, in_tmem ? issue.word(1) : issue.wide(1)};
  const auto op = static_cast<CollectorOp>(spec.collector);
  if ((op == CollectorOp::kUse || op == CollectorOp::kLastUse) && buffer != wanted) {
    issue.fail("collector::a::use without a collector::a::fill of the same A before it");
  }
  if (op == CollectorOp::kFill) buffer = wanted;
  if (op == CollectorOp::kDiscard || op == CollectorOp::kLastUse) buffer = {};
}

void touch_mma(const model::Tcgen05Mma& mma, const std::vector<Cta*>& ctas,
               std::vector<async::Touch>& out) {
  for (const Cta* cta : ctas) {
    for (const auto& range : model::mma_smem_reads(mma)) {
      out.push_back(async::Touch::shared(cta->rank, range, false));
    }
    for (const auto& range : model::mma_reads(mma)) {
      out.push_back(async::Touch::tensor(cta->rank, range, false));
    }
    for (const auto& range : model::mma_writes(mma)) {
      out.push_back(async::Touch::tensor(cta->rank, range, true));
    }
  }
}

void execute_mma(Cta& issuer, const model::Tcgen05Mma& mma, const std::vector<Cta*>& ctas) {
  std::vector<model::MmaCta> parts;
  for (Cta* cta : ctas) parts.push_back({smem_of(*cta), &cta->tensor().memory});
  model::tcgen05_mma(mma, parts, issuer.mma);
}

/// Tells accumulators and shapes apart; never 0.
std::uint32_t accumulator_of(const model::Tcgen05Mma& mma) {
  const model::TmemAddress d = model::decode_tmem_address(mma.d);
  return d.column | d.lane << 9 | mma.idesc.n / 8 << 16 | mma.idesc.m / 16 << 22 |
         static_cast<std::uint32_t>(mma.idesc.kind) << 28;
}

// ---- cp ---------------------------------------------------------------------------------------

void touch_copy(const model::TensorCopy& copy, const std::vector<Cta*>& ctas,
                std::vector<async::Touch>& out) {
  for (const Cta* cta : ctas) {
    for (const auto& range : model::operand_ranges(copy.source, model::cp_operand(copy.shape))) {
      out.push_back(async::Touch::shared(cta->rank, range, false));
    }
    out.push_back(async::Touch::tensor(cta->rank, model::cp_writes(copy), true));
  }
}

// ---- commit -----------------------------------------------------------------------------------

void arrive(const SharedPlace& barrier, const Task::Info& info) {
  if (barrier.cta->exited()) {
    model::fault("tcgen05.commit", "a block that has not exited", barrier.cta->name());
  }
  model::Mbarrier& at = barrier.cta->mbarriers.at(barrier.offset, "tcgen05.commit");
  if (info.observer != nullptr) info.observer->tensor_arrive(*info.observed, barrier);
  if (at.arrive().completed && info.observer != nullptr) info.observer->mbarrier_phase(barrier);
  update_image(barrier);
  ++barrier.cta->cluster.progress.count;
}

// Each CTA's barrier learns of it in its own time.
void arrive_everywhere(const Task::Info& info, const std::vector<SharedPlace>& barriers) {
  if (barriers.size() == 1) return arrive(barriers[0], info);
  for (const SharedPlace& barrier : barriers) {
    barrier.cta->async.push(
        std::make_unique<Task>(info, [barrier, info] { arrive(barrier, info); }));
  }
}

}  // namespace

void tensor_mma(Context& c, const Inst& in, std::uint32_t mask) {
  const auto spec = std::bit_cast<TensorMmaSpec>(in.imm);
  for_lanes(mask, [&](int lane) {
    const TensorIssue issue(static_cast<Warp&>(c), in, lane);
    const model::Tcgen05Mma mma = decode_mma(issue, spec, in.b);
    use_collector(issue, spec);
    const std::vector<Cta*> ctas = issue.ctas(spec.cta_group);
    issue.push(
        "tcgen05.mma", [&cta = issue.cta(), mma, ctas] { execute_mma(cta, mma, ctas); },
        [mma, ctas](std::vector<async::Touch>& out) { touch_mma(mma, ctas, out); },
        issue.observe(OpKind::kTensorMma, accumulator_of(mma)));
  });
}

void tensor_copy(Context& c, const Inst& in, std::uint32_t mask) {
  for_lanes(mask, [&](int lane) {
    const TensorIssue issue(static_cast<Warp&>(c), in, lane);
    const model::TensorCopy copy{static_cast<model::CpShape>(in.a),
                                 static_cast<model::CpFormat>(in.imm), issue.word(0),
                                 model::decode_tcgen05_descriptor(issue.wide(1))};
    model::check_copy(copy);
    const std::vector<Cta*> ctas = issue.ctas(in.b);
    issue.push(
        "tcgen05.cp",
        [copy, ctas] {
          for (Cta* cta : ctas) model::tcgen05_cp(copy, smem_of(*cta), cta->tensor().memory);
        },
        [copy, ctas](std::vector<async::Touch>& out) { touch_copy(copy, ctas, out); },
        issue.observe(OpKind::kTensorCopy));
  });
}

void tensor_commit(Context& c, const Inst& in, std::uint32_t mask) {
  Warp& warp = static_cast<Warp&>(c);
  std::uint64_t address[kLanes];
  lane_addresses(warp, in, address);
  for_lanes(mask, [&](int lane) {
    const TensorIssue issue(warp, in, lane);
    const SharedPlace place = shared_place(issue.cta(), address[lane]);
    std::vector<SharedPlace> barriers;
    if (in.op[2] == ir::kNoOperand) {
      barriers.push_back(place);
    } else {
      for (std::uint32_t rest = issue.word(2) & 0xFFFFu; rest != 0; rest &= rest - 1) {
        Cta* target = issue.cta().cluster.find(static_cast<std::uint32_t>(std::countr_zero(rest)));
        if (target == nullptr) issue.fail("the CTA mask names no block of the cluster");
        barriers.push_back({target, place.offset});
      }
      if (barriers.empty()) issue.fail("the CTA mask is empty");
    }
    Task::Info arrival{issue.cta().launch.kernel, in.line, "arrival of tcgen05.commit"};
    arrival.issuer = {issue.cta().rank, warp.index(), 1u << lane, in.line};
    arrival.observer = issue.observer();
    if (arrival.observer != nullptr) {
      arrival.observed = arrival.observer->tensor_commit(warp, in, lane);
    }
    issue.push("tcgen05.commit",
               [arrival = std::move(arrival), barriers = std::move(barriers)] {
                 arrive_everywhere(arrival, barriers);
               },
               {});
  });
}

}  // namespace mxfa::emu::exec
