#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// The mbarrier object as a state machine. Source: PTX ISA 9.0, section 9.7.13.15 (contents,
/// phases, expect-tx, complete-tx, arrive, arrive_drop, test_wait / try_wait, pending_count).
/// What the ISA calls undefined is an error here. Unconfirmed: none; the bits of the 64-bit word
/// and of the state token are opaque to programs, their layout is our own.
namespace mxfa::emu::model {

class Mbarrier {
 public:
  static constexpr std::int64_t kMaxCount = (1 << 20) - 1;  ///< of arrivals and of |tx-count|

  /// `count` expected arrivals a phase, 1..kMaxCount.
  explicit Mbarrier(std::uint64_t count);

  struct ArriveOptions {
    std::uint64_t count = 1;
    std::optional<std::uint64_t> expect_tx{};  ///< expect-tx before the arrival; count is then 1
    bool drop = false;                         ///< arrive_drop: lowers the expected count as well
    bool no_complete = false;                  ///< .noComplete: completing the phase is an error
  };
  struct Arrival {
    std::uint64_t state = 0;  ///< the opaque token: the phase and pending count before
    bool completed = false;   ///< this arrival completed the phase
    /// No wait has seen the previous phase complete, which the ISA demands before this arrival.
    bool previous_unobserved = false;
  };
  Arrival arrive(const ArriveOptions& options);
  Arrival arrive() { return arrive(ArriveOptions{}); }

  void expect_tx(std::uint64_t bytes);
  /// True where it completed the phase.
  bool complete_tx(std::uint64_t bytes);
  /// cp.async.mbarrier.arrive without .noinc: one more pending arrival in this phase only.
  void increment_pending();

  struct Wait {
    bool complete = false;
    /// The phase that was asked about: the current one where incomplete, else the one before. On
    /// a fresh barrier parity 1 asks about the phase before the first: -1.
    std::int64_t phase = 0;
  };
  /// test_wait / try_wait with a token of arrive(); older than the preceding phase is an error.
  Wait wait_state(std::uint64_t state);
  /// The .parity forms; `parity` is 0 or 1.
  Wait wait_parity(std::uint64_t parity);

  /// mbarrier.pending_count: only for tokens of .noComplete arrivals.
  static std::uint32_t pending_count(std::uint64_t state);

  std::int64_t phase() const { return phase_; }
  std::int64_t pending() const { return pending_; }
  std::int64_t expected() const { return expected_; }
  std::int64_t tx_count() const { return tx_count_; }
  /// Some arrivals or transactions of the current phase have happened, others not.
  bool mid_phase() const { return pending_ != expected_ || tx_count_ != 0; }
  /// What an ordinary load of the object's 8 bytes sees.
  std::uint64_t image() const;
  std::string describe() const;

 private:
  void add_tx(std::int64_t bytes, std::string_view operation);
  bool complete_if_done();

  std::int64_t phase_ = 0;
  std::int64_t pending_ = 0;
  std::int64_t expected_ = 0;
  std::int64_t tx_count_ = 0;
  bool observed_ = true;  ///< some wait returned true for phase_ - 1
};

/// What one waiter has seen of one barrier: tells a parity that aliases. A waiter whose question
/// is about a phase two or more after the last one it saw complete may wait for the wrong one.
class WaitHistory {
 public:
  /// Number of phases that the waiter never saw complete before this question, 0 where in step.
  std::int64_t skipped(const Mbarrier::Wait& wait);

 private:
  std::optional<std::int64_t> last_;
};

/// The live barriers of one CTA's shared memory, by address.
class MbarrierTable {
 public:
  /// Errors: misaligned address, a live barrier there already, a bad count.
  Mbarrier& init(std::uint32_t address, std::uint64_t count);
  void inval(std::uint32_t address);
  /// The live barrier that `operation` works on; an error where there is none.
  Mbarrier& at(std::uint32_t address, std::string_view operation);
  /// The first live barrier that [address, address + size) touches: ordinary accesses to it, and
  /// to bytes that asynchronous copies fill, are errors.
  std::optional<std::uint32_t> overlapping(std::uint32_t address, std::uint32_t size) const;
  /// What the barrier waits for; "none" where there is none any more.
  std::string describe(std::uint32_t address) const;
  /// One line for each barrier left in the middle of a phase, for the report at CTA exit.
  std::vector<std::string> leftovers() const;
  std::size_t size() const { return live_.size(); }
  /// visit(address, barrier), in ascending order of addresses.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (const auto& [address, barrier] : live_) visit(address, barrier);
  }

 private:
  std::map<std::uint32_t, Mbarrier> live_;
};

}  // namespace mxfa::emu::model
