#include <algorithm>

#include "exec/machine.h"

/// Which lanes of a warp run, see ReadyFragments.
namespace mxfa::emu::exec {

using ir::Flow;
using ir::Inst;

namespace {

// A fragment that runs for so long while others of its warp could is taken to spin.
constexpr std::uint32_t kMaxStreak = 1u << 12;
/// An instruction that loops wait with (an atomic, a strong load) counts as so many.
constexpr std::uint32_t kPollCost = 256;
/// A fragment waits for others that are so many times its lanes.
constexpr std::uint32_t kHoldRatio = 2;

}  // namespace

// Fragments that wait for each other at one instruction become one.
void Warp::merge_meeting() {
  for (std::size_t i = 0; i + 1 < waiting_.size(); ++i) {
    if (waiting_[i].state != WaitState::kMeeting) continue;
    for (std::size_t j = i + 1; j < waiting_.size();) {
      if (waiting_[j].state != WaitState::kMeeting || waiting_[j].pc != waiting_[i].pc) {
        ++j;
        continue;
      }
      waiting_[i].mask |= waiting_[j].mask;
      waiting_[i].streak = 0;
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(j));
    }
  }
}

bool Warp::can_go_on(const WaitingFragment& fragment) const {
  return (fragment.state == WaitState::kGate && fragment.gate->generation != fragment.ticket) ||
         (fragment.state == WaitState::kMeeting && can_meet(fragment));
}

// Waiting fragments go on, or are joined by others at their instruction.
void Warp::settle() {
  merge_meeting();
  for (WaitingFragment& fragment : waiting_) {
    if (can_go_on(fragment)) fragment.state = WaitState::kOver;
  }
  release_warp_barrier();
  const bool others = !ready_.empty() || std::ranges::any_of(waiting_, [](const auto& fragment) {
    return fragment.state == WaitState::kOver;
  });
  std::erase_if(waiting_, [&](const WaitingFragment& fragment) {
    const bool polls =
        fragment.state == WaitState::kRetry || fragment.state == WaitState::kPassedOver;
    if (fragment.state != WaitState::kOver && (!polls || others)) return false;
    ready_.insert(fragment, converge_);
    return true;
  });
  if (!converge_) return;
  std::erase_if(waiting_, [&](const WaitingFragment& fragment) {
    if (fragment.state == WaitState::kGate || fragment.state == WaitState::kWarpBarrier) {
      return false;
    }
    Fragment* other = ready_.find(fragment.pc);
    if (other == nullptr) return false;
    other->mask |= fragment.mask;
    other->streak = 0;
    return true;
  });
}

// The front waits from now on.
WaitingFragment& Warp::park(WaitState state) {
  WaitingFragment& fragment = waiting_.emplace_back();
  static_cast<Fragment&>(fragment) = ready_.front();
  fragment.streak = 0;
  fragment.state = state;
  ready_.pop_front();
  return fragment;
}

// What the loop below needs to know of the fragment that runs.
inline void Warp::look_at_front() {
  if (ready_.holds() && ready_.front().pc >= hold_end_) ready_.release();
  const Fragment& front = ready_.front();
  front_lanes_ = count_lanes(front.mask);
  limit_ = UINT32_MAX;
  if (!converge_) return;
  limit_ = ready_.next_pc();
  if (ready_.holds()) limit_ = std::min(limit_, hold_end_);
  for (const WaitingFragment& other : waiting_) {
    if (other.pc > front.pc) limit_ = std::min(limit_, other.pc);
  }
}

// The front has reached another fragment, or the end of what it was let ahead for.
inline Warp::Next Warp::join() {
  const std::uint32_t pc = ready_.front().pc;
  if (ready_.next_pc() == pc) {
    ready_.join_front();
  } else if (!ready_.holds() || pc < hold_end_) {
    return Next::kPick;
  }
  look_at_front();
  return Next::kContinue;
}

// A few lanes are back at the head of a loop within another loop, and most of the others on their
// way there: together they need fewer instructions.
inline void Warp::consider_holding(const Inst& branch) {
  if (branch.extra <= ready_.next_pc() || !converge_) return;
  std::uint32_t coming = 0;
  for (std::size_t i = 0; i < ready_.size(); ++i) {
    if (ready_[i].pc < branch.extra) coming |= ready_[i].mask;
  }
  const std::uint32_t here = ready_.front().mask;
  if (count_lanes(coming & ~here) < kHoldRatio * count_lanes(here)) return;
  hold_end_ = ready_.holds() ? std::min(hold_end_, branch.extra) : branch.extra;
  ready_.hold_front();
}

inline Warp::Next Warp::jump(const Inst& in, std::uint32_t target) {
  Fragment& front = ready_.front();
  const bool forward = target > front.pc;
  front.pc = target;
  if (forward && target <= limit_) return Next::kContinue;
  if (!forward && ready_.size() == 1 && waiting_.empty()) return Next::kContinue;
  ready_.reorder(converge_);
  if (!forward) consider_holding(in);
  look_at_front();
  return Next::kContinue;
}

inline Warp::Next Warp::branch(const Inst& in, std::uint32_t mask) {
  Fragment& front = ready_.front();
  const auto target = static_cast<std::uint32_t>(in.imm);
  const std::uint32_t next = front.pc + 1;
  if (mask == front.mask) return jump(in, target);
  if (mask == 0 || target == next) {
    front.pc = next;
    return Next::kContinue;
  }
  // The lanes that are further behind go on.
  const bool ahead = target > next;
  const Fragment other{ahead ? target : next, ahead ? mask : front.mask & ~mask};
  front.mask &= ~other.mask;
  front.pc = ahead ? next : target;
  ready_.insert_ahead(other, converge_);
  if (!ahead) ready_.reorder(converge_);
  look_at_front();
  return Next::kContinue;
}

// The lanes that the guard leaves on. Most instructions have none: not reading a predicate for them
// shortens the chain from one instruction to the next.
inline std::uint32_t Warp::active(const Inst& in, std::uint32_t lanes) const {
  if (in.guard == ir::kTruePredicate) return lanes;
  return lanes & pred(static_cast<std::int32_t>(in.guard));
}

// Runs the front, and others after it as long as all that they do is branch.
Warp::Next Warp::run_front(std::uint32_t& budget) {
  if (ready_.size() == 1 && waiting_.empty()) ready_.front().streak = 0;
  Next next = Next::kContinue;
  do {
    Fragment& front = ready_.front();
    const std::uint32_t lanes = front.mask;
    const Inst* const begin = code_ + front.pc;
    const Inst* const end = begin + std::min(budget, limit_ - front.pc);
    const Inst* in = begin;
    for (; in != end && in->flow == Flow::kPlain; ++in) {
      const std::uint32_t mask = active(*in, lanes);
      if (mask != 0) in->exec(*this, *in, mask);
    }
    const bool special = in != end;
    const auto plain = static_cast<std::uint32_t>(in - begin);
    const std::uint32_t done = plain + (special ? 1 : 0);
    front.pc += plain;
    front.streak += done + polls_ * kPollCost;
    polls_ = 0;
    budget -= done;
    executed_ += done;
    lanes_executed_ += std::uint64_t{done} * front_lanes_;
    if (special) {
      const std::uint32_t mask = active(*in, lanes);
      next = in->flow == Flow::kBranch ? branch(*in, mask) : step(*in, mask);
    } else if (front.pc == limit_) {
      next = join();
    }
  } while (next == Next::kContinue && budget > 0);
  const bool spins = next == Next::kContinue && ready_.front().streak > kMaxStreak;
  if (spins && ready_.size() + waiting_.size() > 1) park(WaitState::kPassedOver);
  return next;
}

// Picks who may run; false where nobody can.
bool Warp::arrange() {
  if (!waiting_.empty()) settle();
  if (ready_.empty()) return false;
  ready_.reorder(converge_);
  look_at_front();
  return true;
}

Outcome Warp::run(std::uint32_t budget) {
  while (budget > 0) {
    if (!arrange()) {
      if (live_ == 0) return Outcome::kExited;
      check_meeting_possible();
      return Outcome::kBlocked;
    }
    if (run_front(budget) == Next::kYield) {
      return live_ == 0 ? Outcome::kExited : Outcome::kPolled;
    }
  }
  return live_ == 0 ? Outcome::kExited : Outcome::kRan;
}

bool Warp::runnable() const {
  return !ready_.empty() || std::ranges::any_of(waiting_, [&](const WaitingFragment& f) {
    return can_go_on(f) || f.state == WaitState::kRetry || f.state == WaitState::kPassedOver;
  });
}

}  // namespace mxfa::emu::exec
