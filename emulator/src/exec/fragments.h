#pragma once

#include <array>
#include <bit>
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
///
/// Fragments stay where they are and a list of their places is kept in order: to read a whole
/// fragment right after one of its members has been written would stall the processor.
class ReadyFragments {
 public:
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  Fragment& front() { return at(front_index()); }
  const Fragment& operator[](std::size_t i) const { return all_[order_[i]]; }
  /// Where the fragment before the front is.
  std::uint32_t next_pc() const {
    return size_ > held_ + 1 ? at(front_index() - 1).pc : UINT32_MAX;
  }

  void pop_front() {
    free_ |= 1u << order_[front_index()];
    take_out(front_index());
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
    const std::size_t from = front_index();
    const std::uint32_t pc = at(from).pc;
    if (held_ > 0 && at(from + 1).pc >= pc) {  // it has come past those that are held
      move(from, size_ - 1, merge);
      held_ = 0;
    } else if (next_pc() <= pc) {
      move(from, from, merge);
    }
  }
  /// The front has reached the next fragment.
  void join_front() {
    join(at(front_index() - 1), front().mask);
    pop_front();
  }
  /// The next fragment runs instead, until it has come past the front or is told to let it go.
  void hold_front() { ++held_; }
  void release() { held_ = 0; }
  bool holds() const { return held_ > 0; }
  Fragment* find(std::uint32_t pc) {
    for (std::size_t i = 0; i < size_; ++i) {
      if (at(i).pc == pc) return &at(i);
    }
    return nullptr;
  }

 private:
  std::size_t front_index() const { return size_ - 1 - held_; }
  Fragment& at(std::size_t i) { return all_[order_[i]]; }
  const Fragment& at(std::size_t i) const { return all_[order_[i]]; }
  static void join(Fragment& fragment, std::uint32_t mask) {
    fragment.mask |= mask;
    fragment.streak = 0;
  }
  void take_out(std::size_t i) {
    std::uint8_t carried = order_[--size_];
    for (std::size_t j = size_; j > i; --j) std::swap(order_[j - 1], carried);
    if (held_ == size_) held_ = 0;
  }
  void put_in(std::size_t i, std::uint8_t place) {
    for (; i < size_; ++i) std::swap(order_[i], place);
    order_[size_++] = place;
  }
  /// Where a fragment of this pc belongs, of the first `end` ones.
  std::size_t find_position(std::size_t end, std::uint32_t pc) const {
    while (end > 0 && at(end - 1).pc < pc) --end;
    return end;
  }
  void insert_at(std::size_t end, const Fragment& fragment, bool merge) {
    const std::size_t i = find_position(end, fragment.pc);
    if (merge && i > 0 && at(i - 1).pc == fragment.pc) return join(at(i - 1), fragment.mask);
    const int place = std::countr_zero(free_);
    free_ &= free_ - 1;
    all_[static_cast<std::size_t>(place)] = fragment;
    put_in(i, static_cast<std::uint8_t>(place));
  }
  /// To where it belongs, of the first `end` others.
  void move(std::size_t from, std::size_t end, bool merge) {
    const std::uint8_t place = order_[from];
    const Fragment& moved = all_[place];
    const std::size_t held = held_;
    take_out(from);
    held_ = held;
    const std::size_t i = find_position(end, moved.pc);
    if (merge && i > 0 && at(i - 1).pc == moved.pc) {
      join(at(i - 1), moved.mask);
      free_ |= 1u << place;
    } else {
      put_in(i, place);
    }
  }

  std::array<Fragment, kLanes> all_;          ///< each has a lane of its own
  std::array<std::uint8_t, kLanes> order_{};  ///< places in all_
  std::uint32_t free_ = kFullMask;            ///< places that are not in use
  std::size_t size_ = 0;
  std::size_t held_ = 0;  ///< so many last ones do not run
};

}  // namespace mxfa::emu::exec
