#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "exec/context.h"

namespace mxfa::emu::exec {

/// Lanes of a warp that are at the same instruction.
struct alignas(16) Fragment {
  std::uint32_t pc = 0;
  std::uint32_t mask = 0;
  std::uint32_t streak = 0;  ///< instructions since it met another fragment or gave way
};

/// A barrier's generation: waiters hold the number they saw and go on when it has changed.
struct Gate {
  std::uint64_t generation = 0;
  std::string name;
};

enum class WaitState : std::uint8_t {
  kMeeting,      ///< at `pc`, until the lanes that the instruction needs have arrived
  kWarpBarrier,  ///< likewise, across different instructions
  kGate,         ///< until `gate` has moved on from `ticket`
  kRetry,        ///< the instruction at `pc` could not be done yet
  kPassedOver,   ///< it spins or polls: others of the warp go first
  kOver,
};

struct WaitingFragment : Fragment {
  WaitState state = WaitState::kOver;
  const Gate* gate = nullptr;
  std::uint64_t ticket = 0;
};

/// Fragments that can go on, furthest ahead first. As a rule the last one runs, which is called the
/// front: it catches up with the others where paths join, since compilers lay out code in nearly
/// topological order. The exception are fragments that are held at the head of a loop, for many
/// others to come back to them. With `merge`, lanes that come to the pc of another fragment become
/// part of it.
class ReadyFragments {
 public:
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  Fragment& front() { return all_[front_index()]; }
  const Fragment* begin() const { return all_.data(); }
  const Fragment* end() const { return all_.data() + size_; }
  /// Where the fragment before the front is.
  std::uint32_t next_pc() const {
    return size_ > held_ + 1 ? all_[front_index() - 1].pc : UINT32_MAX;
  }

  void pop_front() {
    for (std::size_t i = front_index() + 1; i < size_; ++i) all_[i - 1] = all_[i];
    --size_;
    if (held_ == size_) held_ = 0;
  }
  void insert(const Fragment& fragment, bool merge) {
    held_ = 0;
    insert_at(size_, fragment, merge);
  }
  /// A fragment that is ahead of the front.
  void insert_ahead(const Fragment& fragment, bool merge) {
    insert_at(front_index(), fragment, merge);
  }
  /// Puts the front, whose pc has changed, where it belongs.
  void reorder(bool merge) {
    const Fragment moved = front();
    const std::size_t at = front_index();
    const std::size_t held = held_;
    if (held > 0 && all_[at + 1].pc >= moved.pc) {  // it has come past those that are held
      pop_front();
      insert(moved, merge);
    } else if (next_pc() <= moved.pc) {
      pop_front();
      insert_at(at, moved, merge);
      held_ = held;
    }
  }
  /// The front has reached the next fragment.
  void join_front() {
    Fragment& next = all_[front_index() - 1];
    next.mask |= front().mask;
    next.streak = 0;
    pop_front();
  }
  /// The next fragment runs instead, until it has come past the front or is told to let it go.
  void hold_front() { ++held_; }
  void release() { held_ = 0; }
  bool holds() const { return held_ > 0; }
  Fragment* find(std::uint32_t pc) {
    for (std::size_t i = 0; i < size_; ++i) {
      if (all_[i].pc == pc) return &all_[i];
    }
    return nullptr;
  }

 private:
  std::size_t front_index() const { return size_ - 1 - held_; }
  void insert_at(std::size_t at, const Fragment& fragment, bool merge) {
    while (at > 0 && all_[at - 1].pc < fragment.pc) --at;
    if (merge && at > 0 && all_[at - 1].pc == fragment.pc) {
      all_[at - 1].mask |= fragment.mask;
      all_[at - 1].streak = 0;
      return;
    }
    Fragment carried = fragment;
    for (; at < size_; ++at) std::swap(all_[at], carried);
    all_[size_++] = carried;
  }
  std::array<Fragment, kLanes> all_;  ///< each has a lane of its own
  std::size_t size_ = 0;
  std::size_t held_ = 0;  ///< so many last ones do not run
};

}  // namespace mxfa::emu::exec
