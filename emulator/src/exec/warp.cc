#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <span>

#include "exec/handlers.h"
#include "exec/machine.h"
#include "exec/observer.h"
#include "mxemu/error.h"

namespace mxfa::emu::exec {

using ir::Flow;
using ir::Inst;

Warp::Warp(Cta& cta, std::uint32_t index, std::uint32_t lanes)
    : max_registers(cta.launch.kernel->launch_registers),
      cta_(&cta),
      code_(cta.launch.code),
      index_(index),
      converge_(cta.launch.converge),
      live_(lanes == 32 ? kFullMask : (1u << lanes) - 1),
      lane_count_(lanes) {
  const ir::Kernel& kernel = *cta.launch.kernel;
  registers_.assign(kernel.register_bytes, std::byte{0xCD});  // garbage on purpose
  predicates_.assign(kernel.predicates, 0);
  predicates_[0] = kFullMask;
  base[0] = registers_.data();
  base[1] = cta.launch.pool.data() + cta.launch.pool.size();
  preds = predicates_.data();
  ready_.insert({0, live_}, false);
}

std::byte* Warp::local(int lane) {
  const std::size_t bytes = cta_->launch.kernel->local_bytes;
  if (local_.empty()) local_.assign(bytes * kLanes, std::byte{0xFF});
  return local_.data() + static_cast<std::size_t>(lane) * bytes;
}

LaneAsync& Warp::lane_async(int lane) {
  if (lane_async_.empty()) lane_async_.resize(kLanes);
  return lane_async_[static_cast<std::size_t>(lane)];
}

void Warp::fail(const Inst& in, std::uint32_t mask, const std::string& reason, Fault fault) const {
  std::string who = fmt::format("{}, warp {}", cta_->name(), index_);
  if (mask != live_) who += fmt::format(", lanes 0x{:08x}", mask);
  const ptx::Source& source = *cta_->launch.kernel->source;
  throw PtxError({source.name, in.line, source.line_text(in.line)},
                 fmt::format("{} ({})", reason, who), fault);
}

Warp::Next Warp::step(const Inst& in, std::uint32_t mask) {
  Fragment& front = ready_.front();
  if (mask == 0) {
    ++front.pc;
    return Next::kContinue;
  }
  switch (in.flow) {
    case Flow::kExit:
      return leave(mask);
    case Flow::kMembers:
    case Flow::kAligned:
      return meet(in, mask);
    case Flow::kWarpBarrier:
      if (mask != front.mask) fail(in, mask, "bar.warp.sync under a divergent guard");
      wait_at_warp_barrier(in);
      return Next::kPick;
    case Flow::kYield:
      return finish(in, mask, true);
    default:
      return finish(in, mask, false);
  }
}

Warp::Next Warp::leave(std::uint32_t mask) {
  Fragment& front = ready_.front();
  live_ &= ~mask;
  front.mask &= ~mask;
  ++front.pc;
  if (front.mask == 0) ready_.pop_front();
  cta_->on_exit(index_);
  return Next::kPick;
}

// Runs the handler and does what it asked for.
Warp::Next Warp::finish(const Inst& in, std::uint32_t mask, bool always_yield) {
  pending_gate_ = nullptr;
  pending_retry_ = false;
  pending_yield_ = always_yield;
  try {
    in.exec(*this, in, mask);
  } catch (const PtxError&) {
    throw;
  } catch (const Error& error) {  // of a model, which does not know where it happened
    fail(in, mask, error.what());
  }
  if (pending_retry_) {
    park(WaitState::kRetry);
    return Next::kYield;
  }
  Fragment& front = ready_.front();
  ++front.pc;
  if (pending_gate_ != nullptr) {
    // Lanes that the guard switched off go on alone.
    const Fragment rest{front.pc, front.mask & ~mask};
    front.mask = mask;
    WaitingFragment& waiting = park(WaitState::kGate);
    waiting.gate = pending_gate_;
    waiting.ticket = pending_gate_->generation;
    if (rest.mask != 0) ready_.insert(rest, converge_);
    return Next::kPick;
  }
  if (!pending_yield_) return Next::kContinue;
  if (ready_.size() + waiting_.size() > 1) park(WaitState::kPassedOver);
  return Next::kYield;
}

bool Warp::members_present(const Inst& in, std::uint32_t mask) const {
  const auto* members = row<const std::uint32_t>(in.op[in.c]);
  std::uint32_t common = kFullMask;
  for (int lane = 0; lane < kLanes; ++lane) common &= members[lane];
  if (common == kFullMask) return mask == live_;
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const std::uint32_t wanted = members[lane];
    if (((wanted >> lane) & 1u) == 0) {
      fail(in, mask, fmt::format("lane {} is not in its own member mask 0x{:08x}", lane, wanted));
    }
    if ((wanted & live_ & ~mask) != 0) return false;
  }
  return true;
}

bool Warp::can_meet(const Fragment& fragment) const {
  const Inst& in = code_[fragment.pc];
  if (in.flow == Flow::kAligned) return fragment.mask == live_;
  return members_present(in, fragment.mask & pred(static_cast<std::int32_t>(in.guard)));
}

Warp::Next Warp::meet(const Inst& in, std::uint32_t mask) {
  const bool aligned = in.flow == Flow::kAligned;
  if (aligned ? mask == live_ : members_present(in, mask)) {
    return finish(in, mask, false);
  }
  // Lanes of this fragment that a guard or mask leaves out will not come back to this instruction.
  const bool hopeless = ready_.front().mask == live_;
  if (hopeless) {
    fail(in, mask,
         aligned ? "instruction that all lanes must execute together, in divergent code"
                 : "lanes of the member mask do not execute this instruction");
  }
  park(WaitState::kMeeting);
  return Next::kPick;
}

// Lanes with different member masks wait for different barriers.
void Warp::wait_at_warp_barrier(const Inst& in) {
  const auto* members = row<const std::uint32_t>(in.op[in.c]);
  std::uint32_t rest = ready_.front().mask;
  while (rest != 0) {
    const std::uint32_t wanted = members[std::countr_zero(rest)];
    std::uint32_t lanes = 0;
    for (std::uint32_t left = rest; left != 0; left &= left - 1) {
      const int lane = std::countr_zero(left);
      if (members[lane] == wanted) lanes |= 1u << lane;
    }
    rest &= ~lanes;
    if ((lanes & ~wanted) != 0) fail(in, lanes, "lanes that are not in the member mask");
    WaitingFragment& waiting = waiting_.emplace_back();
    waiting.pc = ready_.front().pc;
    waiting.mask = lanes;
    waiting.state = WaitState::kWarpBarrier;
  }
  ready_.pop_front();
}

std::uint32_t Warp::barrier_members(const Fragment& fragment) const {
  const Inst& in = code_[fragment.pc];
  return row<const std::uint32_t>(in.op[in.c])[std::countr_zero(fragment.mask)];
}

void Warp::release_warp_barrier() {
  for (const WaitingFragment& first : waiting_) {
    if (first.state != WaitState::kWarpBarrier) continue;
    const std::uint32_t members = barrier_members(first);
    const auto waits_too = [&](const WaitingFragment& other) {
      return other.state == WaitState::kWarpBarrier && barrier_members(other) == members;
    };
    std::uint32_t arrived = 0;
    for (const WaitingFragment& other : waiting_) arrived |= waits_too(other) ? other.mask : 0;
    if ((members & live_ & ~arrived) != 0) continue;
    if (Observer* observer = cta_->launch.observer) observer->warp_barrier(*this, members & live_);
    for (WaitingFragment& other : waiting_) {
      if (!waits_too(other)) continue;
      other.state = WaitState::kOver;
      ++other.pc;
    }
    return;
  }
}

// A warp all of whose lanes wait for each other will never go on.
void Warp::check_meeting_possible() const {
  const bool all_meet = std::ranges::all_of(waiting_, [](const WaitingFragment& f) {
    return f.state == WaitState::kMeeting || f.state == WaitState::kWarpBarrier;
  });
  if (!all_meet || waiting_.empty()) return;
  std::string where;
  for (const WaitingFragment& fragment : waiting_) {
    where += fmt::format("{}lanes 0x{:08x} at line {}", where.empty() ? "" : ", ", fragment.mask,
                         code_[fragment.pc].line);
  }
  fail(code_[waiting_[0].pc], waiting_[0].mask,
       fmt::format("lanes wait for each other at different instructions: {}", where));
}

std::string Warp::describe_fragment(const Fragment& fragment, const std::string& doing,
                                    std::uint32_t pc) const {
  return fmt::format("{}, warp {}, lanes 0x{:08x}: {} at line {}: '{}'", cta_->name(), index_,
                     fragment.mask, doing, code_[pc].line,
                     cta_->launch.kernel->source->line_text(code_[pc].line));
}

void Warp::note_mbarrier(std::uint32_t mask, const Inst* in, const Cta* cta, std::uint32_t offset) {
  if (unmet_.empty() && in == nullptr) return;
  for (Unmet& unmet : unmet_) unmet.mask &= ~mask;
  std::erase_if(unmet_, [](const Unmet& unmet) { return unmet.mask == 0; });
  if (in != nullptr) unmet_.push_back({mask, in, cta, offset});
}

std::string Warp::describe_ready(const Fragment& fragment) const {
  const auto unmet = std::ranges::find_if(
      unmet_, [&](const Unmet& one) { return (one.mask & fragment.mask) != 0; });
  if (unmet == unmet_.end()) return describe_fragment(fragment, "ready", fragment.pc);
  // It stands somewhere in the loop that asks: the question tells more.
  const auto code = std::span(code_, cta_->launch.kernel->code.size());
  const auto asks = std::ranges::find(code, unmet->in->line, &Inst::line);
  return describe_fragment(
      fragment,
      fmt::format("waits for the mbarrier at shared offset {} of {} ({})", unmet->offset,
                  unmet->cta->name(), unmet->cta->mbarriers.describe(unmet->offset)),
      static_cast<std::uint32_t>(asks - code.begin()));
}

std::string Warp::describe_retry(const Fragment& fragment) const {
  const ir::Kernel& kernel = *cta_->launch.kernel;
  const Inst& in = kernel.code[fragment.pc];  // an observer's copy has other handlers
  if (in.exec != &set_max_registers) return "waits for asynchronous work";
  return fmt::format(
      "waits for {} registers a thread: it has {}, its block has {} to spare of the {} warps x {} "
      "that it was launched with",
      in.imm, max_registers, cta_->spare_registers, cta_->warps.size(), kernel.launch_registers);
}

std::string Warp::describe_gate(const Gate& gate) const {
  const auto barrier =
      std::ranges::find(cta_->barriers, &gate, [](const NamedBarrier& one) { return &one.gate; });
  if (barrier == cta_->barriers.end()) return gate.name;
  return fmt::format("{} ({} of {} threads have arrived)", gate.name, barrier->arrived,
                     threads_needed(*cta_, *barrier));
}

std::vector<std::string> Warp::describe() const {
  std::vector<std::string> lines;
  for (const WaitingFragment& fragment : waiting_) {
    switch (fragment.state) {
      case WaitState::kMeeting:
        lines.push_back(describe_fragment(fragment, "waits for the other lanes", fragment.pc));
        break;
      case WaitState::kWarpBarrier:
        lines.push_back(describe_fragment(fragment, "waits at a warp barrier", fragment.pc));
        break;
      case WaitState::kRetry:
        lines.push_back(describe_fragment(fragment, describe_retry(fragment), fragment.pc));
        break;
      case WaitState::kGate:  // its program counter is already behind the instruction
        lines.push_back(describe_fragment(fragment, "waits for " + describe_gate(*fragment.gate),
                                          fragment.pc - 1));
        break;
      default:
        lines.push_back(describe_ready(fragment));
        break;
    }
  }
  for (std::size_t i = 0; i < ready_.size(); ++i) {
    lines.push_back(describe_ready(ready_[i]));
  }
  return lines;
}

}  // namespace mxfa::emu::exec
