#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

/// The seam for agents that finish on their own: copies, matrix units, bulk reductions. An
/// instruction queues an operation; the scheduler decides when it completes.
namespace mxfa::emu::async {

/// Work in flight. Operations of one ordered channel complete in the order of their issue; those of
/// channel kUnordered in any order.
class AsyncOp {
 public:
  static constexpr std::uint32_t kUnordered = 0;

  explicit AsyncOp(std::uint32_t channel, std::uint32_t line) : channel_(channel), line_(line) {}
  virtual ~AsyncOp() = default;

  /// Makes every effect visible. Called once, from the scheduler's thread.
  virtual void complete() = 0;
  /// For reports: what it is and what it waits for, in one line.
  virtual std::string describe() const = 0;

  std::uint32_t channel() const { return channel_; }
  std::uint32_t line() const { return line_; }  ///< of the PTX instruction

 private:
  std::uint32_t channel_;
  std::uint32_t line_;
};

/// The operations that one CTA has in flight, oldest first.
class AsyncQueue {
 public:
  void push(std::unique_ptr<AsyncOp> op) { pending_.push_back(std::move(op)); }
  bool empty() const { return pending_.empty(); }
  std::size_t size() const { return pending_.size(); }
  const AsyncOp& at(std::size_t i) const { return *pending_[i]; }
  /// Indices of the operations that may complete now: all unordered ones, the first of each
  /// channel.
  std::vector<std::size_t> eligible() const;
  /// Removes the operation and completes it.
  void complete(std::size_t index);

 private:
  std::vector<std::unique_ptr<AsyncOp>> pending_;
};

}  // namespace mxfa::emu::async
