#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ir/inst.h"

/// What analyses of whole functions need.
namespace mxfa::emu::ir {

class BitSet {
 public:
  explicit BitSet(std::size_t bits = 0) : words_((bits + 63) / 64) {}
  void set(std::size_t i) { words_[i / 64] |= std::uint64_t{1} << (i % 64); }
  void reset(std::size_t i) { words_[i / 64] &= ~(std::uint64_t{1} << (i % 64)); }
  bool test(std::size_t i) const { return (words_[i / 64] >> (i % 64)) & 1u; }
  /// this = a | (b & ~c); true where it changed.
  bool assign(const BitSet& a, const BitSet& b, const BitSet& c) {
    bool changed = false;
    for (std::size_t i = 0; i < words_.size(); ++i) {
      const std::uint64_t value = a.words_[i] | (b.words_[i] & ~c.words_[i]);
      changed |= value != words_[i];
      words_[i] = value;
    }
    return changed;
  }
  /// As merge(); true where it changed.
  bool add(const BitSet& other) {
    bool changed = false;
    for (std::size_t i = 0; i < words_.size(); ++i) {
      changed |= (other.words_[i] & ~words_[i]) != 0;
      words_[i] |= other.words_[i];
    }
    return changed;
  }
  void merge(const BitSet& other) {
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
  }
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (std::size_t w = 0; w < words_.size(); ++w) {
      for (std::uint64_t bits = words_[w]; bits != 0; bits &= bits - 1) {
        visit(w * 64 + static_cast<std::size_t>(__builtin_ctzll(bits)));
      }
    }
  }

 private:
  std::vector<std::uint64_t> words_;
};

struct BasicBlock {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  std::vector<std::uint32_t> next;
};

/// Branches hold indices of instructions. The code ends with an exit.
std::vector<BasicBlock> basic_blocks(std::span<const Inst> code);

/// Writes into each branch back whose loop lies in another one where that one ends.
void mark_outer_loops(std::span<Inst> code);

}  // namespace mxfa::emu::ir
