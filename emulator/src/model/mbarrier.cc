#include "model/mbarrier.h"

#include <algorithm>
#include <utility>

#include "model/fault.h"

namespace mxfa::emu::model {
namespace {

constexpr std::uint32_t kObjectBytes = 8;

// Token: bits 31:0 phase, 51:32 pending count, 52 .noComplete, 63:53 a mark that tells tokens
// from other values.
constexpr std::uint64_t kTokenMark = 0x5A3;

std::uint64_t make_token(std::int64_t phase, std::int64_t pending, bool no_complete) {
  return static_cast<std::uint32_t>(phase) | (static_cast<std::uint64_t>(pending) << 32) |
         (static_cast<std::uint64_t>(no_complete) << 52) | (kTokenMark << 53);
}

void check_token(std::string_view what, std::uint64_t state) {
  if (state >> 53 != kTokenMark) {
    fault(what, "a state returned by mbarrier.arrive", fmt::format("{:#x}", state));
  }
}

void check_aligned(std::string_view operation, std::uint32_t address) {
  if (address % kObjectBytes != 0) {
    fault(fmt::format("{} address", operation), "a multiple of 8", fmt::format("{:#x}", address));
  }
}

}  // namespace

Mbarrier::Mbarrier(std::uint64_t count) {
  if (count < 1 || count > static_cast<std::uint64_t>(kMaxCount)) {
    fault("mbarrier.init count", fmt::format("1..{}", kMaxCount), std::to_string(count));
  }
  expected_ = pending_ = static_cast<std::int64_t>(count);
}

void Mbarrier::add_tx(std::int64_t bytes, std::string_view operation) {
  const std::int64_t next = tx_count_ + bytes;
  if (bytes > kMaxCount || bytes < -kMaxCount || next > kMaxCount || next < -kMaxCount) {
    fault(fmt::format("mbarrier.{} tx-count", operation),
          fmt::format("at most {} in magnitude", kMaxCount),
          fmt::format("{} ({} before)", next, tx_count_));
  }
  tx_count_ = next;
}

bool Mbarrier::complete_if_done() {
  if (pending_ != 0) return false;
  if (tx_count_ < 0) {
    fault("mbarrier tx-count at the end of a phase",
          "as many bytes announced by expect_tx as were completed",
          fmt::format("{} ({})", tx_count_, describe()));
  }
  if (tx_count_ != 0) return false;
  ++phase_;
  pending_ = expected_;
  observed_ = false;
  return true;
}

Mbarrier::Arrival Mbarrier::arrive(const ArriveOptions& options) {
  const std::string_view name = options.drop ? "mbarrier.arrive_drop" : "mbarrier.arrive";
  const std::int64_t count = static_cast<std::int64_t>(options.count);
  if (count < 1 || count > kMaxCount) {
    fault(fmt::format("{} count", name), fmt::format("1..{}", kMaxCount), count);
  }
  if (options.expect_tx && count != 1) fault(fmt::format("{}.expect_tx count", name), "1", count);
  if (count > pending_) {
    fault(fmt::format("{} count", name), fmt::format("at most the {} pending arrivals", pending_),
          fmt::format("{} ({})", count, describe()));
  }
  if (options.drop && count >= expected_) {
    fault(fmt::format("{} count", name), "an expected count of at least 1 left",
          fmt::format("{} of {}", count, expected_));
  }
  Arrival result;
  result.state = make_token(phase_, pending_, options.no_complete);
  result.previous_unobserved = !observed_;
  if (options.expect_tx) {
    add_tx(static_cast<std::int64_t>(std::min<std::uint64_t>(*options.expect_tx, kMaxCount + 1)),
           "expect_tx");
  }
  if (options.drop) expected_ -= count;
  pending_ -= count;
  result.completed = complete_if_done();
  if (result.completed && options.no_complete) {
    fault(fmt::format("{}.noComplete", name), "a phase that stays incomplete", describe());
  }
  return result;
}

void Mbarrier::expect_tx(std::uint64_t bytes) {
  add_tx(static_cast<std::int64_t>(std::min<std::uint64_t>(bytes, kMaxCount + 1)), "expect_tx");
}

bool Mbarrier::complete_tx(std::uint64_t bytes) {
  add_tx(-static_cast<std::int64_t>(std::min<std::uint64_t>(bytes, kMaxCount + 1)), "complete_tx");
  return complete_if_done();
}

void Mbarrier::increment_pending() {
  if (pending_ >= kMaxCount) {
    fault("cp.async.mbarrier.arrive pending count", fmt::format("at most {}", kMaxCount),
          pending_ + 1);
  }
  ++pending_;
}

Mbarrier::Wait Mbarrier::wait_state(std::uint64_t state) {
  check_token("mbarrier wait state", state);
  const std::uint32_t behind =
      static_cast<std::uint32_t>(phase_) - static_cast<std::uint32_t>(state);
  if (behind > 1) {
    fault("mbarrier wait state", "the current or the preceding phase",
          fmt::format("{} phases back ({})", static_cast<std::int32_t>(behind), describe()));
  }
  if (behind == 1) observed_ = true;
  return {behind == 1, phase_ - behind};
}

Mbarrier::Wait Mbarrier::wait_parity(std::uint64_t parity) {
  if (parity > 1) fault("mbarrier wait phaseParity", "0 or 1", std::to_string(parity));
  const bool complete = (phase_ & 1) != static_cast<std::int64_t>(parity);
  if (complete) observed_ = true;
  return {complete, complete ? phase_ - 1 : phase_};
}

std::uint32_t Mbarrier::pending_count(std::uint64_t state) {
  check_token("mbarrier.pending_count state", state);
  if (((state >> 52) & 1u) == 0) {
    fault("mbarrier.pending_count state", "the state of a .noComplete arrival",
          fmt::format("{:#x}", state));
  }
  return static_cast<std::uint32_t>(state >> 32) & 0xFFFFFu;
}

std::uint64_t Mbarrier::image() const {
  return static_cast<std::uint64_t>(pending_) | (static_cast<std::uint64_t>(expected_) << 20) |
         ((static_cast<std::uint64_t>(tx_count_) & 0x1FFFFF) << 40) |
         (static_cast<std::uint64_t>(phase_ & 1) << 61) | (std::uint64_t{2} << 62);
}

std::string Mbarrier::describe() const {
  return fmt::format("phase {}, {} of {} arrivals pending, tx-count {}", phase_, pending_,
                     expected_, tx_count_);
}

std::int64_t WaitHistory::skipped(const Mbarrier::Wait& wait) {
  const std::int64_t missed = last_ && wait.phase > *last_ + 1 ? wait.phase - *last_ - 1 : 0;
  if (wait.complete) last_ = last_ ? std::max(*last_, wait.phase) : wait.phase;
  return missed;
}

Mbarrier& MbarrierTable::init(std::uint32_t address, std::uint64_t count) {
  check_aligned("mbarrier.init", address);
  if (const auto it = live_.find(address); it != live_.end()) {
    fault("mbarrier.init address", "no live mbarrier there (mbarrier.inval comes first)",
          fmt::format("{:#x} ({})", address, it->second.describe()));
  }
  return live_.emplace(address, Mbarrier(count)).first->second;
}

void MbarrierTable::inval(std::uint32_t address) {
  at(address, "mbarrier.inval");
  live_.erase(address);
}

Mbarrier& MbarrierTable::at(std::uint32_t address, std::string_view operation) {
  check_aligned(operation, address);
  const auto it = live_.find(address);
  if (it == live_.end()) {
    fault(fmt::format("{} address", operation), "an initialised mbarrier",
          fmt::format("{:#x}", address));
  }
  return it->second;
}

std::string MbarrierTable::describe(std::uint32_t address) const {
  const auto it = live_.find(address);
  return it == live_.end() ? "none" : it->second.describe();
}

std::optional<std::uint32_t> MbarrierTable::overlapping(std::uint32_t address,
                                                        std::uint32_t size) const {
  if (size == 0) return std::nullopt;
  const std::uint64_t end = std::uint64_t{address} + size;
  const auto it = live_.lower_bound(address < kObjectBytes ? 0 : address - kObjectBytes + 1);
  if (it == live_.end() || it->first >= end) return std::nullopt;
  return it->first;
}

std::vector<std::string> MbarrierTable::leftovers() const {
  std::vector<std::string> lines;
  for (const auto& [address, barrier] : live_) {
    if (barrier.mid_phase()) {
      lines.push_back(fmt::format("mbarrier at {:#x}: {}", address, barrier.describe()));
    }
  }
  return lines;
}

}  // namespace mxfa::emu::model
