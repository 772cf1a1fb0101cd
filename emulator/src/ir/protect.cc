#include "ir/protect.h"

#include <algorithm>
#include <map>

#include "exec/tensor_handlers.h"
#include "ir/flow_graph.h"

namespace mxfa::emu::ir {
namespace {

/// A may-analysis, forward: which registers are held where. A register has two bits: held by work
/// that no commit has put into a group yet, which no wait covers, and by committed work.
class HoldAnalysis {
 public:
  explicit HoldAnalysis(const Builder& builder) : builder_(builder) {
    for (const HoldEvent& event : builder.holds) {
      if (!event.is_register()) continue;
      const auto [it, is_new] = number_.try_emplace(event.reg, registers_.size());
      if (!is_new) continue;
      registers_.push_back(event.reg);
      owners_.push_back(event.owner);
    }
    blocks_ = basic_blocks(builder.code);
    solve();
  }

  /// visit(instruction, registers held before it)
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      BitSet held = in_[b];
      std::size_t event = first_event(blocks_[b].begin);
      for (std::uint32_t i = blocks_[b].begin; i < blocks_[b].end; ++i) {
        visit(i, held);
        apply(i, event, held);
      }
    }
  }
  bool holds(const BitSet& held, std::size_t number) const {
    return held.test(number) || held.test(committed(number));
  }
  /// Of a bit.
  std::uint32_t reg_of(std::size_t bit) const { return registers_[bit % registers_.size()]; }
  RegisterOwner owner(std::size_t number) const { return owners_[number]; }
  /// Null where the register is never held.
  const std::size_t* number_of(std::uint32_t reg) const {
    const auto it = number_.find(reg);
    return it == number_.end() ? nullptr : &it->second;
  }

 private:
  std::size_t committed(std::size_t number) const { return registers_.size() + number; }

  std::size_t first_event(std::uint32_t inst) const {
    const auto it = std::ranges::lower_bound(builder_.holds, inst, {}, &HoldEvent::inst);
    return static_cast<std::size_t>(it - builder_.holds.begin());
  }

  void apply(std::uint32_t inst, std::size_t& event, BitSet& held) const {
    for (; event < builder_.holds.size() && builder_.holds[event].inst == inst; ++event) {
      const HoldEvent& what = builder_.holds[event];
      if (what.is_register()) {
        const std::size_t number = number_.at(what.reg);
        held.set(what.owner == RegisterOwner::kWgmma ? number : committed(number));
        continue;
      }
      for (std::size_t i = 0; i < registers_.size(); ++i) {
        if (owners_[i] != what.owner) continue;
        if (what.reg == HoldEvent::kAll) {
          held.reset(committed(i));
        } else if (held.test(i)) {
          held.reset(i);
          held.set(committed(i));
        }
      }
    }
  }

  void solve() {
    in_.assign(blocks_.size(), BitSet(2 * registers_.size()));
    for (bool changed = true; changed;) {
      changed = false;
      for (std::size_t b = 0; b < blocks_.size(); ++b) {
        BitSet out = in_[b];
        std::size_t event = first_event(blocks_[b].begin);
        while (event < builder_.holds.size() && builder_.holds[event].inst < blocks_[b].end) {
          apply(builder_.holds[event].inst, event, out);
        }
        for (const std::uint32_t next : blocks_[b].next) changed |= in_[next].add(out);
      }
    }
  }

  const Builder& builder_;
  std::map<std::uint32_t, std::size_t> number_;
  std::vector<std::uint32_t> registers_;
  std::vector<RegisterOwner> owners_;
  std::vector<BasicBlock> blocks_;
  std::vector<BitSet> in_;
};

/// An instruction that may touch held registers.
struct Hazard {
  std::uint32_t inst = 0;
  std::vector<std::uint32_t> read;
  std::vector<std::uint32_t> written;  ///< and not read
};

void add_unique(std::vector<std::uint32_t>& list, std::uint32_t reg) {
  if (std::ranges::find(list, reg) == list.end()) list.push_back(reg);
}

// The matrix unit works through accumulators in order: wgmma may use what wgmma holds.
std::vector<Hazard> find_hazards(const Builder& builder, const HoldAnalysis& analysis) {
  std::map<std::uint32_t, RegisterOwner> holders;
  for (const HoldEvent& event : builder.holds) {
    if (event.is_register()) holders[event.inst] = event.owner;
  }
  std::vector<Hazard> hazards;
  std::size_t use = 0;
  analysis.for_each([&](std::uint32_t inst, const BitSet& held) {
    Hazard hazard{inst, {}, {}};
    for (; use < builder.uses.size() && builder.uses[use].inst == inst; ++use) {
      const std::size_t* number = analysis.number_of(builder.uses[use].reg);
      if (number == nullptr || !analysis.holds(held, *number)) continue;
      const RegisterOwner owner = analysis.owner(*number);
      const auto holder = holders.find(inst);
      if (owner == RegisterOwner::kWgmma && holder != holders.end() && holder->second == owner) {
        continue;
      }
      add_unique(builder.uses[use].is_def ? hazard.written : hazard.read, builder.uses[use].reg);
    }
    std::erase_if(hazard.written, [&](std::uint32_t reg) {
      return std::ranges::find(hazard.read, reg) != hazard.read.end();
    });
    if (!hazard.read.empty() || !hazard.written.empty()) hazards.push_back(std::move(hazard));
  });
  return hazards;
}

/// Makes room for one instruction before each hazard. Returns the new index of every old one.
std::vector<std::uint32_t> insert_places(Builder& builder, const std::vector<Hazard>& hazards) {
  std::vector<std::uint32_t> moved(builder.code.size());
  std::vector<Inst> code;
  code.reserve(builder.code.size() + hazards.size());
  std::size_t next = 0;
  for (std::uint32_t i = 0; i < builder.code.size(); ++i) {
    if (next < hazards.size() && hazards[next].inst == i) {
      code.emplace_back();
      ++next;
    }
    moved[i] = static_cast<std::uint32_t>(code.size());
    code.push_back(builder.code[i]);
  }
  // Branches go to the check that stands before their target.
  const auto target = [&](std::uint32_t old) {
    const auto it = std::ranges::lower_bound(hazards, old, {}, &Hazard::inst);
    return moved[old] - (it != hazards.end() && it->inst == old ? 1 : 0);
  };
  for (Inst& in : code) {
    if (in.flow == Flow::kBranch) in.imm = target(static_cast<std::uint32_t>(in.imm));
  }
  builder.code = std::move(code);
  for (RegisterUse& use : builder.uses) use.inst = moved[use.inst];
  return moved;
}

void write_check(Builder& builder, const Hazard& hazard, std::uint32_t at) {
  Inst& in = builder.code[at];
  in.exec = &exec::check_held_registers;
  in.flow = Flow::kBlocking;
  in.line = builder.code[at + 1].line;
  std::ranges::fill(in.op, kNoOperand);
  in.extra = static_cast<std::uint32_t>(builder.lists.size());
  in.a = static_cast<std::uint8_t>(hazard.read.size());
  in.b = static_cast<std::uint8_t>(hazard.read.size() + hazard.written.size());
  for (const auto* list : {&hazard.read, &hazard.written}) {
    for (const std::uint32_t reg : *list) {
      builder.uses.push_back({at, reg, static_cast<std::uint32_t>(builder.lists.size()),
                              RegisterUse::kList, false, false});
      builder.lists.push_back(0);
    }
  }
}

}  // namespace

std::vector<HeldRange> protect_held_registers(Builder& builder) {
  if (builder.holds.empty()) return {};
  const HoldAnalysis analysis(builder);
  const std::vector<Hazard> hazards = find_hazards(builder, analysis);
  std::map<std::uint32_t, HeldRange> ranges;
  const auto cover = [&](std::uint32_t reg, std::uint32_t inst) {
    const auto [it, is_new] = ranges.try_emplace(reg, HeldRange{reg, inst, inst});
    it->second.begin = std::min(it->second.begin, inst);
    it->second.end = std::max(it->second.end, inst);
  };
  analysis.for_each([&](std::uint32_t inst, const BitSet& held) {
    held.for_each([&](std::size_t bit) { cover(analysis.reg_of(bit), inst); });
  });

  const std::vector<RegisterUse> old_uses = builder.uses;
  const std::vector<std::uint32_t> moved = insert_places(builder, hazards);
  for (const Hazard& hazard : hazards) {
    const std::uint32_t at = moved[hazard.inst] - 1;
    write_check(builder, hazard, at);
    for (const RegisterUse& use : old_uses) {
      if (use.inst != hazard.inst || use.where != RegisterUse::kGuard) continue;
      builder.uses.push_back({at, use.reg, 0, RegisterUse::kGuard, false, use.negated});
    }
  }
  std::ranges::stable_sort(builder.uses, {}, &RegisterUse::inst);
  std::vector<HeldRange> result;
  for (const auto& [reg, range] : ranges) {
    result.push_back({reg, moved[range.begin], moved[range.end]});
  }
  return result;
}

}  // namespace mxfa::emu::ir
