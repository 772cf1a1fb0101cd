#include "ir/allocate.h"

#include <algorithm>
#include <array>
#include <queue>

#include "ir/flow_graph.h"

namespace mxfa::emu::ir {
namespace {

struct Block {
  BasicBlock code;
  BitSet used;     ///< read before any write
  BitSet defined;  ///< written without guard
  BitSet in;
  BitSet out;
};

void solve_liveness(std::vector<Block>& blocks) {
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t b = blocks.size(); b-- > 0;) {
      for (const std::uint32_t next : blocks[b].code.next) blocks[b].out.merge(blocks[next].in);
      changed |= blocks[b].in.assign(blocks[b].used, blocks[b].out, blocks[b].defined);
    }
  }
}

struct Interval {
  std::uint32_t begin = UINT32_MAX;
  std::uint32_t end = 0;
  std::uint32_t reg = 0;
  void cover(std::uint32_t position) {
    begin = std::min(begin, position);
    end = std::max(end, position);
  }
};

class Analysis {
 public:
  Analysis(std::span<const Inst> code, std::span<const RegisterUse> uses,
           std::span<const VirtualRegister> registers, std::span<const HeldRange> held)
      : code_(code), uses_(uses), registers_(registers), held_(held) {
    for (BasicBlock& block : basic_blocks(code)) blocks_.emplace_back().code = std::move(block);
  }

  std::vector<Interval> run() {
    for (Block& block : blocks_) {
      block.used = block.defined = block.in = block.out = BitSet(registers_.size());
    }
    find_guards();
    summarise_blocks();
    solve_liveness(blocks_);
    return intervals();
  }

 private:
  void find_guards() {
    guarded_.resize(code_.size());
    for (const RegisterUse& use : uses_) {
      if (use.where == RegisterUse::kGuard) guarded_[use.inst] = true;
    }
  }

  // Uses are in the order of the instructions; reads of an instruction come before its writes.
  void summarise_blocks() {
    std::size_t at = 0;
    for (Block& block : blocks_) {
      while (at < uses_.size() && uses_[at].inst < block.code.end) {
        std::size_t last = at;
        while (last < uses_.size() && uses_[last].inst == uses_[at].inst) ++last;
        for (std::size_t i = at; i < last; ++i) {
          const bool reads = !uses_[i].is_def;
          if (reads && !block.defined.test(uses_[i].reg)) block.used.set(uses_[i].reg);
        }
        for (std::size_t i = at; i < last; ++i) {
          if (uses_[i].is_def && !guarded_[uses_[i].inst]) block.defined.set(uses_[i].reg);
        }
        at = last;
      }
    }
  }

  std::vector<Interval> intervals() const {
    std::vector<Interval> result(registers_.size());
    for (std::uint32_t reg = 0; reg < result.size(); ++reg) result[reg].reg = reg;
    for (const RegisterUse& use : uses_) {
      result[use.reg].cover(use.inst);
    }
    for (const HeldRange& range : held_) {
      result[range.reg].cover(range.begin);
      result[range.reg].cover(range.end);
    }
    for (const Block& block : blocks_) {
      block.in.for_each([&](std::size_t reg) { result[reg].cover(block.code.begin); });
      block.out.for_each([&](std::size_t reg) { result[reg].cover(block.code.end); });
    }
    std::erase_if(result, [](const Interval& i) { return i.begin == UINT32_MAX; });
    std::ranges::sort(result, {}, &Interval::begin);
    return result;
  }

  std::span<const Inst> code_;
  std::span<const RegisterUse> uses_;
  std::span<const VirtualRegister> registers_;
  std::span<const HeldRange> held_;
  std::vector<Block> blocks_;
  std::vector<bool> guarded_;
};

/// Rows of one class. A row is free again one instruction after the last use, so that no
/// instruction reads and writes different registers in the same row.
class RowPool {
 public:
  std::uint32_t take(const Interval& interval) {
    std::uint32_t row = count_;
    if (!busy_.empty() && busy_.top().first < interval.begin) {
      row = busy_.top().second;
      busy_.pop();
    } else {
      ++count_;
    }
    busy_.emplace(interval.end, row);
    return row;
  }
  std::uint32_t count() const { return count_; }

 private:
  using Busy = std::pair<std::uint32_t, std::uint32_t>;  ///< last use, row
  std::priority_queue<Busy, std::vector<Busy>, std::greater<>> busy_;
  std::uint32_t count_ = 0;
};

}  // namespace

Allocation allocate_registers(std::span<const Inst> code, std::span<const RegisterUse> uses,
                              std::span<const VirtualRegister> registers,
                              std::span<const HeldRange> held) {
  Allocation result;
  result.place.assign(registers.size(), 0);
  std::array<RowPool, 4> pools;
  for (const Interval& interval : Analysis(code, uses, registers, held).run()) {
    const auto row = static_cast<std::size_t>(registers[interval.reg].row);
    result.place[interval.reg] = static_cast<std::int32_t>(pools[row].take(interval));
  }
  std::array<std::uint32_t, 4> base{};
  std::uint32_t at = kSinkBytes;
  for (const RowClass row : {RowClass::kRow16, RowClass::kRow8, RowClass::kRow4}) {
    const auto index = static_cast<std::size_t>(row);
    base[index] = at;
    at += pools[index].count() * slot_bytes(row) * 32;
  }
  for (std::size_t reg = 0; reg < registers.size(); ++reg) {
    const RowClass row = registers[reg].row;
    const auto index = static_cast<std::uint32_t>(result.place[reg]);
    if (row == RowClass::kPredicate) {
      result.place[reg] = static_cast<std::int32_t>(index + 2);
    } else {
      result.place[reg] = static_cast<std::int32_t>(base[static_cast<std::size_t>(row)] +
                                                    index * slot_bytes(row) * 32);
    }
  }
  result.register_bytes = at;
  result.predicates = pools[0].count() + 2;
  return result;
}

}  // namespace mxfa::emu::ir
