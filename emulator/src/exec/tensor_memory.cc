#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstring>
#include <optional>

#include "exec/access.h"
#include "exec/tasks.h"
#include "exec/tensor_handlers.h"

/// tcgen05: allocation, ld, st, their waits, and fences. PTX ISA 9.0, sections 9.7.16.7, .8, .11.
/// Loads read and stores write when the scheduler completes them, in any order: only the waits
/// order them. Stores take their registers when they are issued.
namespace mxfa::emu::exec {
namespace {

using ir::Inst;

std::uint32_t uniform(const Warp& warp, const Inst& in, std::int32_t operand, const char* what) {
  const auto* row = warp.row<const std::uint32_t>(operand);
  for (int lane = 1; lane < kLanes; ++lane) {
    if (row[lane] != row[0]) {
      warp.fail(in, kFullMask, fmt::format("{} differs between lanes", what));
    }
  }
  return row[0];
}

void expect_whole_warp(const Warp& warp, const Inst& in, std::uint32_t mask) {
  if (mask != kFullMask) warp.fail(in, mask, "expected all 32 lanes of the warp, none exited");
}

async::Issuer issuer_of(const Warp& warp, const Inst& in) {
  return {warp.cta().rank, warp.index(), kFullMask, in.line};
}

// ---- Allocation -------------------------------------------------------------------------------

class Allocation {
 public:
  Allocation(Warp& warp, const Inst& in)
      : warp_(warp),
        cta_(warp.cta()),
        in_(in),
        op_(static_cast<TensorAllocOp>(in.extra)),
        columns_(
            in.op[2] == ir::kNoOperand ? 0 : uniform(warp, in, in.op[2], "the number of columns")) {
  }

  void run() {
    if (in_.b == 1) {
      run_alone();
    } else {
      run_with_peer();
    }
  }

 private:
  void run_alone() {
    model::TensorMemory& memory = cta_.tensor().memory;
    if (op_ != TensorAllocOp::kAlloc) return release(cta_);
    const std::optional<std::uint32_t> base = memory.alloc(columns_);
    if (!base) return warp_.retry();
    write_address(*base);
  }

  // Both warps come here again and again until both have come.
  void run_with_peer() {
    Cta* peer = cta_.peer();
    PairRequest& own = cta_.tensor().request;
    // Once granted, the peer may be gone.
    if (peer == nullptr || (peer->exited() && !(own.granted && own.warp == warp_.index()))) {
      warp_.fail(in_, kFullMask, "cta_group::2 without a peer CTA that is still there");
    }
    if (own.inst == nullptr) {
      if (op_ == TensorAllocOp::kAlloc) cta_.tensor().memory.check_alloc(columns_);
      own = {&in_, warp_.index(), columns_, false, 0};
      ++cta_.cluster.progress.count;
    } else if (own.warp != warp_.index()) {
      return warp_.retry();  // another warp's request comes first
    }
    PairRequest& other = peer->tensor().request;
    if (!own.granted && other.inst != nullptr && !other.granted) grant(*peer, own, other);
    if (!own.granted) return warp_.retry();
    const std::uint32_t base = own.base;
    own = {};
    if (op_ == TensorAllocOp::kAlloc) write_address(base);
    if (op_ != TensorAllocOp::kAlloc) release(cta_);
    ++cta_.cluster.progress.count;
  }

  void grant(Cta& peer, PairRequest& own, PairRequest& other) {
    if (other.inst->extra != in_.extra || other.columns != columns_) {
      warp_.fail(
          in_, kFullMask,
          fmt::format("the peer CTA executes another allocation instruction, or with another "
                      "number of columns, at line {}",
                      other.inst->line));
    }
    if (op_ == TensorAllocOp::kAlloc) {
      model::TensorMemory& here = cta_.tensor().memory;
      model::TensorMemory& there = peer.tensor().memory;
      std::uint32_t base = 0;
      while (base + columns_ <= model::kTmemColumns &&
             !(here.can_alloc(base, columns_) && there.can_alloc(base, columns_))) {
        base += columns_;
      }
      if (base + columns_ > model::kTmemColumns) return;
      here.alloc_at(base, columns_);
      there.alloc_at(base, columns_);
      own.base = other.base = base;
    }
    own.granted = other.granted = true;
    ++cta_.cluster.progress.count;
  }

  void release(Cta& cta) const {
    model::TensorMemory& memory = cta.tensor().memory;
    if (op_ == TensorAllocOp::kRelinquish) return memory.relinquish();
    const std::uint32_t address = uniform(warp_, in_, in_.op[3], "the tensor memory address");
    memory.dealloc(address, columns_);
    if (Observer* observer = cta.launch.observer) {
      const std::uint32_t column = model::decode_tmem_address(address).column;
      observer->tensor_free(warp_, in_, {0, model::kTmemLanes, column, columns_});
    }
    ++cta.cluster.progress.count;
  }

  void write_address(std::uint32_t address) const {
    std::uint64_t lanes[kLanes];
    lane_addresses(warp_, in_, lanes);
    for (const std::uint64_t lane : lanes) {
      if (lane != lanes[0]) warp_.fail(in_, kFullMask, "the destination differs between lanes");
    }
    const SharedPlace place = shared_place(cta_, lanes[0]);
    if (place.cta != &cta_ || place.offset % 4 != 0) {
      warp_.fail(in_, 1, "expected an aligned address in the CTA's own shared memory");
    }
    std::array<std::byte, 4> bytes;
    std::memcpy(bytes.data(), &address, sizeof(address));
    SharedView(cta_).write(place.offset, bytes);
    if (Observer* observer = cta_.launch.observer) {
      observer->write_together(warp_, in_, place, sizeof(address));
    }
    ++cta_.cluster.progress.count;
  }

  Warp& warp_;
  Cta& cta_;
  const Inst& in_;
  TensorAllocOp op_;
  std::uint32_t columns_;
};

// ---- Load and store ---------------------------------------------------------------------------

/// A tcgen05.ld or .st of one warp.
struct AccessIssue {
  Warp& warp;
  const Inst& in;
  TensorAccessSpec spec;
  model::TmemAccess access;
  std::uint32_t address;
  bool lenient;

  AccessIssue(Warp& the_warp, const Inst& the_in)
      : warp(the_warp),
        in(the_in),
        spec(std::bit_cast<TensorAccessSpec>(the_in.imm)),
        access{static_cast<model::TmemShape>(spec.shape), spec.num, spec.pack != 0,
               spec.half_split},
        address(uniform(the_warp, the_in, the_in.op[0], "the tensor memory address")),
        lenient(!the_warp.cta().launch.checks.strict) {}

  const std::int32_t* rows() const { return warp.cta().launch.kernel->lists.data() + in.extra; }

  /// Errors that do not wait for the completion.
  std::vector<model::TmemRange> check() const {
    if (lenient && address >> 21 != warp.index() % 4) {
      const ir::Kernel& kernel = *warp.cta().launch.kernel;
      warp.cta().launch.warnings->give(
          "lanes", fmt::format("{}:{}: the address names lanes of another warp (the warp's own are "
                               "used, here and elsewhere): '{}'",
                               kernel.source->name, in.line, kernel.source->line_text(in.line)));
    }
    auto ranges = model::tmem_ranges(access, address, warp.index(), lenient);
    for (const model::TmemRange& range : ranges) {
      warp.cta().tensor().memory.check_allocated("tcgen05.ld/st", range);
    }
    return ranges;
  }

  Task::Info info(const char* what, std::vector<model::TmemRange> ranges, bool writes) const {
    Task::Info result{warp.cta().launch.kernel, in.line, what};
    result.issuer = issuer_of(warp, in);
    result.touches = [cta = warp.cta().rank, ranges = std::move(ranges),
                      writes](std::vector<async::Touch>& out) {
      for (const model::TmemRange& range : ranges) {
        out.push_back(async::Touch::tensor(cta, range, writes));
      }
    };
    result.observer = warp.cta().launch.observer;
    if (result.observer != nullptr) {
      result.observed = result.observer->tensor_issue(
          {writes ? OpKind::kTensorStore : OpKind::kTensorLoad, warp, in});
      result.observed_cluster = &warp.cta().cluster;
    }
    return result;
  }
};

std::uint32_t reduce(const TensorAccessSpec& spec, std::span<const std::uint32_t> values) {
  const bool is_max = (spec.reduce & TensorAccessSpec::kMax) != 0;
  const auto op = is_max ? model::TmemReduce::kMax : model::TmemReduce::kMin;
  if ((spec.reduce & TensorAccessSpec::kU32) != 0) return model::tmem_reduce_u32(op, values);
  if ((spec.reduce & TensorAccessSpec::kS32) != 0) return model::tmem_reduce_s32(op, values);
  return model::tmem_reduce_f32(op, (spec.reduce & TensorAccessSpec::kAbs) != 0,
                                (spec.reduce & TensorAccessSpec::kNan) != 0, values);
}

void reduce_rows(const TensorAccessSpec& spec, std::span<std::uint32_t* const> regs,
                 std::uint32_t* result) {
  std::vector<std::uint32_t> values(regs.size());
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    for (std::size_t i = 0; i < regs.size(); ++i) values[i] = regs[i][lane];
    result[lane] = reduce(spec, values);
  }
}

}  // namespace

void tensor_alloc(Context& c, const Inst& in, std::uint32_t mask) {
  Warp& warp = static_cast<Warp&>(c);
  expect_whole_warp(warp, in, mask);
  Allocation(warp, in).run();
}

void tensor_load(Context& c, const Inst& in, std::uint32_t mask) {
  Warp& warp = static_cast<Warp&>(c);
  expect_whole_warp(warp, in, mask);
  const AccessIssue issue(warp, in);
  auto ranges = issue.check();
  std::vector<std::uint32_t*> regs(in.b);
  const HeldRegisters::Holder holder{ir::RegisterOwner::kTensorLoad, in.line, 0};
  for (std::size_t i = 0; i < regs.size(); ++i) {
    regs[i] = c.row<std::uint32_t>(issue.rows()[i]);
    warp.held.hold(issue.rows()[i], holder);
  }
  std::uint32_t* result = nullptr;
  if (issue.spec.reduce != 0) {
    result = c.row<std::uint32_t>(in.op[2]);
    warp.held.hold(in.op[2], holder);
  }
  ++warp.tensor_loads;
  Cta& cta = warp.cta();
  cta.async.push(std::make_unique<Task>(
      issue.info("tcgen05.ld", std::move(ranges), false),
      [&warp, &cta, access = issue.access, address = issue.address, lenient = issue.lenient,
       spec = issue.spec, regs = std::move(regs), result] {
        model::tmem_load(access, address, warp.index(), cta.tensor().memory, regs, lenient);
        if (result != nullptr) reduce_rows(spec, regs, result);
        --warp.tensor_loads;
      }));
  ++cta.cluster.progress.count;
}

void tensor_store(Context& c, const Inst& in, std::uint32_t mask) {
  Warp& warp = static_cast<Warp&>(c);
  expect_whole_warp(warp, in, mask);
  const AccessIssue issue(warp, in);
  auto ranges = issue.check();
  std::vector<std::uint32_t> values(std::size_t{in.b} * kLanes);
  for (std::size_t i = 0; i < in.b; ++i) {
    std::memcpy(values.data() + i * kLanes, c.row<const std::uint32_t>(issue.rows()[i]),
                kLanes * sizeof(std::uint32_t));
  }
  ++warp.tensor_stores;
  Cta& cta = warp.cta();
  cta.async.push(std::make_unique<Task>(
      issue.info("tcgen05.st", std::move(ranges), true),
      [&warp, &cta, access = issue.access, address = issue.address, lenient = issue.lenient,
       values = std::move(values)] {
        std::vector<const std::uint32_t*> regs(values.size() / kLanes);
        for (std::size_t i = 0; i < regs.size(); ++i) regs[i] = values.data() + i * kLanes;
        model::tmem_store(access, address, warp.index(), cta.tensor().memory, regs, lenient);
        --warp.tensor_stores;
      }));
  ++cta.cluster.progress.count;
}

void tensor_wait(Context& c, const Inst& in, std::uint32_t) {
  Warp& warp = static_cast<Warp&>(c);
  const bool done = (in.a == 0 ? warp.tensor_loads : warp.tensor_stores) == 0;
  Observer* observer = warp.cta().launch.observer;
  if (observer != nullptr) observer->tensor_wait(warp, in, in.a == 0, done);
  if (!done) return warp.retry();
  if (in.a == 0) warp.held.release(ir::RegisterOwner::kTensorLoad, 1);
}

void tensor_fence(Context& c, const Inst& in, std::uint32_t mask) {
  Warp& warp = static_cast<Warp&>(c);
  TensorOrder& order = warp.cta().cluster.tensor_order;
  Observer* observer = warp.cta().launch.observer;
  if (observer != nullptr) observer->tensor_fence(warp, mask, in.a != 0);
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    LaneTensor& lane = warp.lane_async(std::countr_zero(rest)).tensor;
    if (in.a == 0) {
      for (const std::uint64_t id : lane.issued) {
        if (order.in_flight.contains(id)) order.published.insert(id);
      }
      lane.issued.clear();
    } else {
      lane.after.assign(order.published.begin(), order.published.end());
    }
  }
}

void check_held_registers(Context& c, const Inst& in, std::uint32_t mask) {
  Warp& warp = static_cast<Warp&>(c);
  const std::int32_t* rows = warp.cta().launch.kernel->lists.data() + in.extra;
  for (std::size_t i = 0; i < in.b; ++i) {
    const HeldRegisters::Holder* holder = warp.held.holder(rows[i]);
    if (holder == nullptr) continue;
    const bool load = holder->owner == ir::RegisterOwner::kTensorLoad;
    if (load && i < in.a) {
      if (warp.tensor_loads != 0) return warp.retry();
      if (mask == warp.live()) warp.held.release_row(rows[i]);
      continue;
    }
    warp.fail(in, mask,
              fmt::format("uses a register of the {} at line {} before it is waited for ({})",
                          load ? "tcgen05.ld" : "wgmma.mma_async", holder->line,
                          load ? "tcgen05.wait::ld" : "wgmma.wait_group"));
  }
}

}  // namespace mxfa::emu::exec
