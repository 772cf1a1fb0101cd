#pragma once

#include <cstdint>
#include <vector>

#include "ir/inst.h"

/// Registers that asynchronous instructions still read or write. A program may not touch them
/// before it has waited, whenever the work is really done; ir/protect.h finds the instructions that
/// could.
namespace mxfa::emu::exec {

class HeldRegisters {
 public:
  struct Holder {
    ir::RegisterOwner owner = ir::RegisterOwner::kNone;
    std::uint32_t line = 0;    ///< of the instruction that owns the register
    std::uint64_t ticket = 0;  ///< its number among those of its owner
  };

  void hold(std::int32_t row, const Holder& holder) {
    const std::size_t index = slot(row);
    if (index >= by_row_.size()) by_row_.resize(index + 1);
    if (by_row_[index].owner == ir::RegisterOwner::kNone) held_.push_back(index);
    by_row_[index] = holder;
  }
  /// Null where nobody holds the row.
  const Holder* holder(std::int32_t row) const {
    if (row < 0) return nullptr;
    const std::size_t index = slot(row);
    if (index >= by_row_.size() || by_row_[index].owner == ir::RegisterOwner::kNone) return nullptr;
    return &by_row_[index];
  }
  /// The owner's instructions with tickets below `end` are done with their registers.
  void release(ir::RegisterOwner owner, std::uint64_t end) {
    std::erase_if(held_, [&](std::size_t index) {
      Holder& holder = by_row_[index];
      if (holder.owner != owner || holder.ticket >= end) return false;
      holder = {};
      return true;
    });
  }
  void release_row(std::int32_t row) {
    std::erase(held_, slot(row));
    by_row_[slot(row)] = {};
  }

 private:
  static std::size_t slot(std::int32_t row) { return static_cast<std::size_t>(row) / 128; }
  std::vector<Holder> by_row_;
  std::vector<std::size_t> held_;
};

}  // namespace mxfa::emu::exec
