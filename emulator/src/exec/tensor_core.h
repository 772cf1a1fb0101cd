#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "ir/inst.h"
#include "model/tmem.h"

/// State of tcgen05: the tensor memory of a CTA, and the order of the work that its threads issue.
namespace mxfa::emu::exec {

/// An allocation instruction of cta_group::2 that waits for the one of the peer CTA.
struct PairRequest {
  const ir::Inst* inst = nullptr;
  std::uint32_t warp = 0;
  std::uint32_t columns = 0;
  bool granted = false;
  std::uint32_t base = 0;  ///< column, once granted
};

struct TensorCore {
  explicit TensorCore(std::shared_ptr<model::TmemColumns> columns) : memory(std::move(columns)) {}
  model::TensorMemory memory;
  PairRequest request;
};

/// tcgen05.mma, cp and commit in flight in a cluster, numbered in the order of their issue, and
/// those among them that a tcgen05.fence::before_thread_sync has ordered before what follows.
struct TensorOrder {
  std::uint64_t next = 1;
  std::set<std::uint64_t> in_flight;
  std::set<std::uint64_t> published;

  void done(std::uint64_t id) {
    in_flight.erase(id);
    published.erase(id);
  }
};

/// The A operand that a collector buffer holds.
struct CollectorContent {
  bool valid = false;
  bool in_tmem = false;
  std::uint64_t a = 0;  ///< its descriptor or address
  friend bool operator==(const CollectorContent&, const CollectorContent&) = default;
};

/// The same of one thread.
struct LaneTensor {
  CollectorContent collector;
  std::vector<std::uint64_t> issued;  ///< since its last fence::before_thread_sync
  std::vector<std::uint64_t> after;   ///< what a fence::after_thread_sync orders it behind
};

}  // namespace mxfa::emu::exec
