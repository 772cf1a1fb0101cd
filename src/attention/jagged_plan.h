#pragma once

#include <cstdint>

#include "attention/tile_scheduler.h"

/// The plan of a jagged batch, made on the device by one group of threads before the kernel that
/// uses it: a stable counting sort of the sequences and a prefix sum, O(batch) work and memory.
namespace mxfa::attention {

/// Sequences are sorted by cost in so many steps of the largest: a step is 3% of the costliest
/// tile, which is what the last tiles of a kernel may differ by.
inline constexpr std::int32_t kPlanLevels = 32;

/// Elements of int32 scratch that `threads` threads share.
MXFA_HOST_DEVICE constexpr std::int64_t plan_scratch_elems(std::int64_t threads) {
  return threads * (kPlanLevels + 2);
}
/// Elements of int32 that hold the plan of a batch.
MXFA_HOST_DEVICE constexpr std::int64_t plan_elems(std::int64_t batch) { return 2 * batch + 1; }

/// The plan that lies in plan_elems(batch) elements from `memory`.
MXFA_HOST_DEVICE constexpr JaggedPlan plan_in(const std::int32_t* memory, std::int32_t batch) {
  return {memory, memory + batch};
}

/// A group of one thread. Groups of the device have the same members.
struct SingleThread {
  MXFA_HOST_DEVICE constexpr std::int32_t rank() const { return 0; }
  MXFA_HOST_DEVICE constexpr std::int32_t size() const { return 1; }
  MXFA_HOST_DEVICE constexpr void sync() const {}
};

/// Every thread of `Group` calls run() with the same arguments. rank() counts from 0 to size();
/// sync() waits for all threads and orders their accesses to the plan and the scratch.
template <class Group>
class JaggedPlanBuilder {
 public:
  MXFA_EITHER_SIDE
  MXFA_HOST_DEVICE JaggedPlanBuilder(const Group& group, const TileShape& shape,
                                     const Seqlens& seqlens, std::int32_t batch,
                                     std::int32_t* scratch)
      : group_(group),
        shape_(shape),
        seqlens_(seqlens),
        batch_(batch),
        scans_(scratch),
        counts_(scratch + 2 * group.size()) {}

  /// Writes plan_elems(batch) elements to `memory`.
  MXFA_EITHER_SIDE
  MXFA_HOST_DEVICE void run(std::int32_t* memory) const {
    sort(memory);
    group_.sync();
    sum_blocks(memory, memory + batch_);
  }

 private:
  struct Chunk {
    std::int32_t begin, end;
  };
  struct Plus {
    MXFA_HOST_DEVICE constexpr std::int32_t operator()(std::int32_t a, std::int32_t b) const {
      return a + b;
    }
  };
  struct Larger {
    MXFA_HOST_DEVICE constexpr std::int32_t operator()(std::int32_t a, std::int32_t b) const {
      return a > b ? a : b;
    }
  };
  MXFA_EITHER_SIDE
  MXFA_HOST_DEVICE Chunk own_chunk() const {
    const std::int64_t rank = group_.rank(), size = group_.size();
    return {static_cast<std::int32_t>(batch_ * rank / size),
            static_cast<std::int32_t>(batch_ * (rank + 1) / size)};
  }

  /// Key blocks that no block of rows exceeds: those of the last rows without a left bound, of the
  /// first without a right one, else the width of the band.
  MXFA_HOST_DEVICE std::int32_t cost(std::int32_t sequence) const {
    const Sequence lengths = seqlens_.at(sequence);
    const std::int32_t m_blocks = shape_.m_blocks(lengths.seqlen_q);
    if (m_blocks == 0 || lengths.seqlen_k <= 0) return 0;
    const Mask& mask = shape_.mask;
    const bool right_bound = mask.causal || mask.window_right >= 0;
    if (mask.window_left < 0 || !right_bound) {
      const std::int32_t m_block = mask.window_left < 0 ? m_blocks - 1 : 0;
      const KeyRange blocks = shape_.n_blocks(lengths.seqlen_q, lengths.seqlen_k, m_block);
      return static_cast<std::int32_t>(blocks.end - blocks.begin);
    }
    const std::int64_t band =
        std::int64_t{mask.window_left} + (mask.causal ? 0 : mask.window_right) + shape_.tile_m;
    const std::int64_t keys = band < lengths.seqlen_k ? band : lengths.seqlen_k;
    return static_cast<std::int32_t>((keys + shape_.tile_n - 1) / shape_.tile_n + 1);
  }
  /// 0 for the costliest.
  MXFA_HOST_DEVICE static std::int32_t level(std::int32_t cost, std::int32_t most) {
    if (most == 0) return 0;
    return static_cast<std::int32_t>(std::int64_t{most - cost} * (kPlanLevels - 1) / most);
  }

  /// Combines `own` over the threads up to this one, and (in `all`) over all of them. A sync() lies
  /// between two of them: the last elements are read after the last one in here.
  MXFA_EITHER_SIDE
  template <class Op>
  MXFA_HOST_DEVICE std::int32_t scan(std::int32_t own, std::int32_t& all) const {
    constexpr Op op;
    const std::int32_t rank = group_.rank(), size = group_.size();
    std::int32_t* from = scans_;
    std::int32_t* to = scans_ + size;
    from[rank] = own;
    group_.sync();
    for (std::int32_t step = 1; step < size; step *= 2) {
      to[rank] = rank >= step ? op(from[rank - step], from[rank]) : from[rank];
      group_.sync();
      std::int32_t* const old = from;
      from = to;
      to = old;
    }
    all = from[size - 1];
    return from[rank];
  }

  MXFA_EITHER_SIDE
  MXFA_HOST_DEVICE void sort(std::int32_t* sequences) const {
    const std::int32_t rank = group_.rank(), size = group_.size();
    const Chunk chunk = own_chunk();
    std::int32_t own_most = 0, most = 0;
    for (std::int32_t s = chunk.begin; s < chunk.end; ++s) {
      const std::int32_t value = cost(s);
      if (value > own_most) own_most = value;
    }
    scan<Larger>(own_most, most);
    // counts_[level][thread], whose prefix sums are where a thread's sequences of a level go.
    for (std::int32_t l = 0; l < kPlanLevels; ++l) counts_[l * size + rank] = 0;
    for (std::int32_t s = chunk.begin; s < chunk.end; ++s) {
      ++counts_[level(cost(s), most) * size + rank];
    }
    group_.sync();
    std::int32_t own = 0, total = 0;
    std::int32_t* const mine = counts_ + rank * kPlanLevels;
    for (std::int32_t i = 0; i < kPlanLevels; ++i) own += mine[i];
    std::int32_t next = scan<Plus>(own, total) - own;
    for (std::int32_t i = 0; i < kPlanLevels; ++i) {
      const std::int32_t count = mine[i];
      mine[i] = next;
      next += count;
    }
    group_.sync();
    for (std::int32_t s = chunk.begin; s < chunk.end; ++s) {
      sequences[counts_[level(cost(s), most) * size + rank]++] = s;
    }
  }

  MXFA_EITHER_SIDE
  MXFA_HOST_DEVICE void sum_blocks(const std::int32_t* sequences, std::int32_t* block_begin) const {
    const Chunk chunk = own_chunk();
    std::int32_t own = 0, total = 0;
    for (std::int32_t slot = chunk.begin; slot < chunk.end; ++slot) {
      own += shape_.m_blocks(seqlens_.at(sequences[slot]).seqlen_q);
    }
    std::int32_t next = scan<Plus>(own, total) - own;
    for (std::int32_t slot = chunk.begin; slot < chunk.end; ++slot) {
      block_begin[slot] = next;
      next += shape_.m_blocks(seqlens_.at(sequences[slot]).seqlen_q);
    }
    if (group_.rank() == 0) block_begin[batch_] = total;
  }

  Group group_;
  TileShape shape_;
  Seqlens seqlens_;
  std::int32_t batch_;
  std::int32_t* scans_;   ///< [2][threads]
  std::int32_t* counts_;  ///< [kPlanLevels][threads]
};

}  // namespace mxfa::attention
