#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/fault.h"
#include "model/tmem.h"

/// The seam for agents that finish on their own: copies, matrix units, bulk reductions. An
/// instruction queues an operation; the scheduler decides when it completes.
namespace mxfa::emu::async {

/// Memory that an operation reads or writes.
struct Touch {
  enum class Space : std::uint8_t { kGlobal, kShared, kTensor };
  Space space = Space::kShared;
  bool writes = false;
  std::uint32_t cta = 0;   ///< rank in the cluster: whose shared or tensor memory
  model::ByteRange bytes;  ///< kGlobal: host address; kShared: offset
  model::TmemRange words;  ///< kTensor

  static Touch shared(std::uint32_t cta, const model::ByteRange& bytes, bool writes) {
    return {Space::kShared, writes, cta, bytes, {}};
  }
  static Touch tensor(std::uint32_t cta, const model::TmemRange& words, bool writes) {
    return {Space::kTensor, writes, cta, {}, words};
  }
};

/// The threads that issued an operation, and where.
struct Issuer {
  std::uint32_t cta = 0;  ///< rank in the cluster
  std::uint32_t warp = 0;
  std::uint32_t lanes = 0;  ///< as a mask
  std::uint32_t line = 0;   ///< of the PTX text
};

/// Work in flight. Operations of one ordered channel complete in the order of their issue; those of
/// channel kUnordered in any order.
class AsyncOp {
 public:
  static constexpr std::uint32_t kUnordered = 0;

  virtual ~AsyncOp() = default;

  /// Makes the effects visible. Called once, from the scheduler's thread; may queue what follows.
  virtual void complete() = 0;
  /// False while it waits for other work.
  virtual bool ready() const { return true; }
  /// It still uses the shared memory or the registers of its block, which so may not exit.
  virtual bool needs_block() const { return true; }
  /// Hardware lets the block exit nevertheless, although the ISA does not say so.
  virtual bool may_outlive_block() const { return false; }
  /// For reports: what it is and where it was issued, in one line.
  virtual std::string describe() const = 0;
  virtual std::uint32_t channel() const { return kUnordered; }
  /// Its kind, "wgmma", and the PTX line that issued it; 0 where there is none.
  virtual std::string_view what() const { return {}; }
  virtual std::uint32_t line() const { return 0; }
  /// What it reads and writes, known at its issue; for whoever watches races. Appends to `out`.
  virtual void touches(std::vector<Touch>&) const {}
  virtual Issuer issuer() const { return {}; }
};

/// The operations that one CTA has in flight, oldest first.
class AsyncQueue {
 public:
  void push(std::unique_ptr<AsyncOp> op) { pending_.push_back(std::move(op)); }
  bool empty() const { return pending_.empty(); }
  std::size_t size() const { return pending_.size(); }
  const AsyncOp& at(std::size_t i) const { return *pending_[i]; }
  /// Indices of the operations that may complete now: ready, and the first of an ordered channel.
  std::vector<std::size_t> eligible() const;
  /// Removes the operation and completes it.
  void complete(std::size_t index);

 private:
  std::vector<std::unique_ptr<AsyncOp>> pending_;
};

/// Operations that a thread waits for together (commit_group, wait_group). Reading the sources
/// comes before writing the results.
struct Group {
  int reads = 0;
  int writes = 0;
};

/// The groups of one thread, oldest first, and the one that is still open.
class GroupList {
 public:
  /// The open group, for an operation that is being issued.
  std::shared_ptr<Group> open() {
    if (!open_) open_ = std::make_shared<Group>();
    return open_;
  }
  void commit();
  /// All but the newest `allowed` groups are done (their reads only).
  bool done(std::uint64_t allowed, bool reads_only) const;
  /// Every operation issued so far, also those of the open group.
  std::vector<std::shared_ptr<Group>> all() const;
  bool uncommitted() const { return open_ != nullptr; }

 private:
  std::vector<std::shared_ptr<Group>> committed_;
  std::shared_ptr<Group> open_;
};

}  // namespace mxfa::emu::async
