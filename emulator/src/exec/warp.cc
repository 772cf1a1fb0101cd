#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "exec/machine.h"
#include "exec/observer.h"
#include "mxemu/error.h"

namespace mxfa::emu::exec {

using ir::Flow;
using ir::Inst;

namespace {

// A fragment that runs for so long while others of its warp could is taken to spin.
constexpr std::uint32_t kMaxStreak = 1u << 12;
/// An instruction that loops wait with (an atomic, a strong load) counts as so many.
constexpr std::uint32_t kPollCost = 256;

}  // namespace

Warp::Warp(Cta& cta, std::uint32_t index, std::uint32_t lanes)
    : cta_(&cta),
      code_(cta.launch.code),
      index_(index),
      live_(lanes == 32 ? kFullMask : (1u << lanes) - 1),
      lane_count_(lanes) {
  const ir::Kernel& kernel = *cta.launch.kernel;
  // 64-byte alignment for whole vectors; the content is garbage on purpose.
  registers_.assign(kernel.register_bytes + 64, std::byte{0xCD});
  predicates_.assign(kernel.predicates, 0);
  predicates_[0] = kFullMask;
  const auto address = reinterpret_cast<std::uintptr_t>(registers_.data());
  base[0] = registers_.data() + (64 - address % 64) % 64;
  base[1] = cta.launch.pool.data() + cta.launch.pool.size();
  preds = predicates_.data();
  fragments_.push_back({0, live_});
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

bool Warp::runnable() const {
  return std::ranges::any_of(fragments_, [&](const Fragment& f) {
    switch (f.state) {
      case FragmentState::kReady:
      case FragmentState::kRetry:
        return true;
      case FragmentState::kGate:
        return f.gate->generation != f.ticket;
      case FragmentState::kMeeting:
        return can_meet(f);
      default:
        return false;
    }
  });
}

Outcome Warp::run(std::uint32_t budget) {
  while (budget > 0) {
    Fragment* fragment = pick();
    if (fragment == nullptr) {
      if (live_ == 0) return Outcome::kExited;
      check_meeting_possible();
      return Outcome::kBlocked;
    }
    const auto index = static_cast<std::size_t>(fragment - fragments_.data());
    if (run_fragment(index, budget) == Next::kYield) {
      return live_ == 0 ? Outcome::kExited : Outcome::kPolled;
    }
  }
  return live_ == 0 ? Outcome::kExited : Outcome::kRan;
}

// Fragments at the same instruction become one. Where the adversary keeps them apart, only those
// that wait for each other do.
void Warp::merge() {
  for (std::size_t i = 0; i + 1 < fragments_.size(); ++i) {
    for (std::size_t j = i + 1; j < fragments_.size();) {
      Fragment& a = fragments_[i];
      const Fragment& b = fragments_[j];
      const auto mergeable = [&](const Fragment& f) {
        return f.state == FragmentState::kMeeting ||
               (f.state == FragmentState::kReady && cta_->launch.converge);
      };
      if (a.pc != b.pc || !mergeable(a) || !mergeable(b)) {
        ++j;
        continue;
      }
      a.mask |= b.mask;
      a.state = FragmentState::kReady;
      a.passed_over = false;
      a.streak = 0;
      fragments_.erase(fragments_.begin() + static_cast<std::ptrdiff_t>(j));
    }
  }
}

void Warp::wake() {
  for (Fragment& fragment : fragments_) {
    if (fragment.state == FragmentState::kGate && fragment.gate->generation != fragment.ticket) {
      fragment.state = FragmentState::kReady;
    } else if (fragment.state == FragmentState::kRetry) {
      fragment.state = FragmentState::kReady;
    } else if (fragment.state == FragmentState::kMeeting && can_meet(fragment)) {
      fragment.state = FragmentState::kReady;
    }
  }
}

// The ready fragment that is furthest behind: it catches up with the others where paths join,
// since compilers lay out code in nearly topological order.
Fragment* Warp::pick() {
  limit_ = UINT32_MAX;
  if (fragments_.size() == 1 && fragments_[0].state == FragmentState::kReady) {
    return &fragments_[0];
  }
  if (fragments_.empty()) return nullptr;
  if (cta_->launch.converge && all_ready()) return pick_ready();
  merge();
  wake();
  release_warp_barrier();
  Fragment* best = nullptr;
  for (Fragment& fragment : fragments_) {
    if (fragment.state != FragmentState::kReady) continue;
    const bool first = best == nullptr || fragment.passed_over < best->passed_over;
    const bool behind =
        best != nullptr && fragment.passed_over == best->passed_over && fragment.pc < best->pc;
    if (first || behind) best = &fragment;
  }
  if (best == nullptr) return nullptr;
  if (best->passed_over) {
    for (Fragment& fragment : fragments_) fragment.passed_over = false;
  }
  for (const Fragment& other : fragments_) {
    if (other.pc > best->pc) limit_ = std::min(limit_, other.pc);
  }
  return best;
}

bool Warp::all_ready() const {
  return std::ranges::all_of(fragments_, [](const Fragment& f) {
    return f.state == FragmentState::kReady && !f.passed_over;
  });
}

// The common case in one pass: the fragment furthest behind, merged with those at its pc.
Fragment* Warp::pick_ready() {
  std::size_t best = 0;
  for (std::size_t i = 1; i < fragments_.size();) {
    Fragment& fragment = fragments_[i];
    if (fragment.pc == fragments_[best].pc) {
      fragments_[best].mask |= fragment.mask;
      fragments_[best].streak = 0;
      fragment = fragments_.back();
      fragments_.pop_back();
      continue;
    }
    if (fragment.pc < fragments_[best].pc) best = i;
    ++i;
  }
  for (const Fragment& other : fragments_) {
    if (other.pc > fragments_[best].pc) limit_ = std::min(limit_, other.pc);
  }
  return &fragments_[best];
}

void Warp::pass_over(Fragment& fragment) {
  fragment.passed_over = true;
  fragment.streak = 0;
}

Warp::Next Warp::run_fragment(std::size_t index, std::uint32_t& budget) {
  Fragment& fragment = fragments_[index];
  const std::uint32_t limit = limit_;  // where others are, to merge with them
  std::uint32_t pc = fragment.pc;
  const std::uint32_t lanes = fragment.mask;
  const auto lane_total = static_cast<std::uint64_t>(std::popcount(lanes));
  std::uint32_t done = 0;
  Next next = Next::kContinue;
  while (budget > 0) {
    const Inst& in = code_[pc];
    const std::uint32_t mask = lanes & pred(static_cast<std::int32_t>(in.guard));
    --budget;
    ++done;
    if (in.flow == Flow::kPlain) {
      if (mask != 0) in.exec(*this, in, mask);
      if (++pc < limit) continue;
      fragment.pc = pc;
      next = Next::kPick;
      break;
    }
    fragment.pc = pc;
    next = step(index, in, mask);
    if (next != Next::kContinue) break;
    pc = fragments_[index].pc;
    if (pc >= limit) {
      next = Next::kPick;
      break;
    }
  }
  if (next == Next::kContinue) fragments_[index].pc = pc;
  if (fragments_.size() > 1 && index < fragments_.size()) {
    Fragment& ran = fragments_[index];
    ran.streak += done + polls_ * kPollCost;
    if (next == Next::kYield || ran.streak > kMaxStreak) pass_over(ran);
  }
  polls_ = 0;
  executed_ += done;
  lanes_executed_ += done * lane_total;
  return next == Next::kContinue ? Next::kPick : next;
}

Warp::Next Warp::step(std::size_t index, const Inst& in, std::uint32_t mask) {
  if (in.flow == Flow::kBranch) return branch(index, in, mask);
  if (mask == 0) {
    ++fragments_[index].pc;
    return Next::kContinue;
  }
  switch (in.flow) {
    case Flow::kExit:
      return leave(index, mask);
    case Flow::kMembers:
    case Flow::kAligned:
      return meet(index, in, mask);
    case Flow::kWarpBarrier:
      if (mask != fragments_[index].mask) fail(in, mask, "bar.warp.sync under a divergent guard");
      wait_at_warp_barrier(index, in);
      return Next::kPick;
    case Flow::kYield:
      return finish(index, in, mask, true);
    default:
      return finish(index, in, mask, false);
  }
}

Warp::Next Warp::branch(std::size_t index, const Inst& in, std::uint32_t mask) {
  Fragment& fragment = fragments_[index];
  const auto target = static_cast<std::uint32_t>(in.imm);
  if (mask == 0) {
    ++fragment.pc;
    return Next::kContinue;
  }
  if (mask == fragment.mask) {
    fragment.pc = target;
    return fragments_.size() == 1 ? Next::kContinue : Next::kPick;
  }
  fragment.mask &= ~mask;
  ++fragment.pc;
  fragments_.push_back({target, mask});
  return Next::kPick;
}

Warp::Next Warp::leave(std::size_t index, std::uint32_t mask) {
  Fragment& fragment = fragments_[index];
  live_ &= ~mask;
  fragment.mask &= ~mask;
  ++fragment.pc;
  if (fragment.mask == 0) {
    fragments_.erase(fragments_.begin() + static_cast<std::ptrdiff_t>(index));
  }
  cta_->on_exit(index_);
  return Next::kPick;
}

// Runs the handler and does what it asked for.
Warp::Next Warp::finish(std::size_t index, const Inst& in, std::uint32_t mask, bool always_yield) {
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
  Fragment& fragment = fragments_[index];
  if (pending_retry_) {
    fragment.state = FragmentState::kRetry;
    return Next::kYield;
  }
  if (pending_gate_ != nullptr) {
    // Lanes that the guard switched off go on alone.
    if (mask != fragment.mask) {
      const Fragment rest{fragment.pc + 1, fragment.mask & ~mask};
      fragment.mask = mask;
      fragments_.push_back(rest);
    }
    Fragment& waiting = fragments_[index];
    ++waiting.pc;
    waiting.state = FragmentState::kGate;
    waiting.gate = pending_gate_;
    waiting.ticket = pending_gate_->generation;
    return Next::kPick;
  }
  ++fragment.pc;
  return pending_yield_ ? Next::kYield : Next::kContinue;
}

bool Warp::members_present(const Inst& in, std::uint32_t mask) const {
  const auto* members = row<const std::uint32_t>(in.op[in.c]);
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

Warp::Next Warp::meet(std::size_t index, const Inst& in, std::uint32_t mask) {
  Fragment& fragment = fragments_[index];
  const bool aligned = in.flow == Flow::kAligned;
  if (aligned ? mask == live_ : members_present(in, mask)) {
    return finish(index, in, mask, false);
  }
  // Lanes of this fragment that a guard or mask leaves out will not come back to this instruction.
  const bool hopeless = fragment.mask == live_;
  if (hopeless) {
    fail(in, mask,
         aligned ? "instruction that all lanes must execute together, in divergent code"
                 : "lanes of the member mask do not execute this instruction");
  }
  fragment.state = FragmentState::kMeeting;
  return Next::kPick;
}

// Lanes with different member masks wait for different barriers.
void Warp::wait_at_warp_barrier(std::size_t index, const Inst& in) {
  const auto* members = row<const std::uint32_t>(in.op[in.c]);
  const std::uint32_t pc = fragments_[index].pc;
  std::uint32_t rest = fragments_[index].mask;
  fragments_[index].mask = 0;
  while (rest != 0) {
    const std::uint32_t wanted = members[std::countr_zero(rest)];
    std::uint32_t lanes = 0;
    for (std::uint32_t left = rest; left != 0; left &= left - 1) {
      const int lane = std::countr_zero(left);
      if (members[lane] == wanted) lanes |= 1u << lane;
    }
    rest &= ~lanes;
    if ((lanes & ~wanted) != 0) fail(in, lanes, "lanes that are not in the member mask");
    if (fragments_[index].mask == 0) {
      fragments_[index].mask = lanes;
      fragments_[index].state = FragmentState::kWarpBarrier;
    } else {
      fragments_.push_back({pc, lanes, FragmentState::kWarpBarrier});
    }
  }
}

std::uint32_t Warp::barrier_members(const Fragment& fragment) const {
  const Inst& in = code_[fragment.pc];
  return row<const std::uint32_t>(in.op[in.c])[std::countr_zero(fragment.mask)];
}

void Warp::release_warp_barrier() {
  for (const Fragment& first : fragments_) {
    if (first.state != FragmentState::kWarpBarrier) continue;
    const std::uint32_t members = barrier_members(first);
    const auto waits_too = [&](const Fragment& other) {
      return other.state == FragmentState::kWarpBarrier && barrier_members(other) == members;
    };
    std::uint32_t arrived = 0;
    for (const Fragment& other : fragments_) arrived |= waits_too(other) ? other.mask : 0;
    if ((members & live_ & ~arrived) != 0) continue;
    if (Observer* observer = cta_->launch.observer) observer->warp_barrier(*this, members & live_);
    for (Fragment& other : fragments_) {
      if (!waits_too(other)) continue;
      other.state = FragmentState::kReady;
      ++other.pc;
    }
    return;
  }
}

// A warp all of whose lanes wait for each other will never go on.
void Warp::check_meeting_possible() const {
  const bool all_meet = std::ranges::all_of(fragments_, [](const Fragment& f) {
    return f.state == FragmentState::kMeeting || f.state == FragmentState::kWarpBarrier;
  });
  if (!all_meet || fragments_.empty()) return;
  std::string where;
  for (const Fragment& fragment : fragments_) {
    where += fmt::format("{}lanes 0x{:08x} at line {}", where.empty() ? "" : ", ", fragment.mask,
                         code_[fragment.pc].line);
  }
  fail(code_[fragments_[0].pc], fragments_[0].mask,
       fmt::format("lanes wait for each other at different instructions: {}", where));
}

std::string Warp::describe_fragment(const Fragment& fragment) const {
  const char* doing = "ready";
  switch (fragment.state) {
    case FragmentState::kMeeting:
      doing = "waits for the other lanes";
      break;
    case FragmentState::kWarpBarrier:
      doing = "waits at a warp barrier";
      break;
    case FragmentState::kRetry:
      doing = "waits for asynchronous work";
      break;
    default:
      break;
  }
  const bool gate = fragment.state == FragmentState::kGate;
  // At a gate the program counter is already behind the instruction.
  const std::uint32_t pc = fragment.pc - (gate ? 1 : 0);
  return fmt::format("{}, warp {}, lanes 0x{:08x}: {} at line {}: '{}'", cta_->name(), index_,
                     fragment.mask, gate ? "waits for " + fragment.gate->name : doing,
                     code_[pc].line, cta_->launch.kernel->source->line_text(code_[pc].line));
}

std::vector<std::string> Warp::describe() const {
  std::vector<std::string> lines;
  for (const Fragment& fragment : fragments_) lines.push_back(describe_fragment(fragment));
  return lines;
}

}  // namespace mxfa::emu::exec
