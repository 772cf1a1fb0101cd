#pragma once

#include <cstdint>
#include <vector>

namespace mxfa::emu::mem {

/// One bit a byte: has anything been written there? Safe to mark from several threads.
class InitMap {
 public:
  explicit InitMap(std::uint64_t bytes = 0) : words_((bytes + 63) / 64) {}

  void mark(std::uint64_t offset, std::uint64_t bytes) {
    for_words(offset, bytes, [&](std::uint64_t word, std::uint64_t bits) {
      std::uint64_t* at = &words_[word];
      if (bits == ~std::uint64_t{0}) {
        __atomic_store_n(at, bits, __ATOMIC_RELAXED);
      } else if ((__atomic_load_n(at, __ATOMIC_RELAXED) & bits) != bits) {
        __atomic_fetch_or(at, bits, __ATOMIC_RELAXED);
      }
      return true;
    });
  }
  bool all(std::uint64_t offset, std::uint64_t bytes) const {
    return for_words(offset, bytes, [&](std::uint64_t word, std::uint64_t bits) {
      return (__atomic_load_n(&words_[word], __ATOMIC_RELAXED) & bits) == bits;
    });
  }
  /// Bit i of word w is byte 64 * w + i.
  const std::uint64_t* words() const { return words_.data(); }
  void clear() { words_.assign(words_.size(), 0); }

 private:
  template <class Visit>
  static bool for_words(std::uint64_t offset, std::uint64_t bytes, const Visit& visit) {
    while (bytes > 0) {
      const std::uint64_t shift = offset % 64;
      const std::uint64_t count = bytes < 64 - shift ? bytes : 64 - shift;
      if (!visit(offset / 64, (~std::uint64_t{0} >> (64 - count)) << shift)) return false;
      offset += count;
      bytes -= count;
    }
    return true;
  }

  std::vector<std::uint64_t> words_;
};

}  // namespace mxfa::emu::mem
