#pragma once

#include <cstdint>

#include "attention/mask.h"
#include "attention/seqlen.h"
#include "core/host_device.h"

/// Which tile of scores a CTA works on next. Tiles are numbered; an *order* turns a number into a
/// tile, a *counter* says which numbers a CTA takes. Both are plain data and integer arithmetic, so
/// one thread of a persistent kernel runs them a tile ahead of the others.
///
/// Tiles that read the same keys have neighbouring numbers, so that those keys come from L2: the
/// query heads of a kv head first, then the kv heads of a *section*, then the blocks of rows, then
/// sections. Blocks of rows go from the last to the first: under a causal mask the costly ones.
namespace mxfa::attention {

/// Rows [m_block, m_block + 1) * tile_m of one head of one sequence, and the key blocks
/// [n_begin, n_end) of tile_n keys that hold what these rows see.
struct WorkTile {
  std::int32_t batch = -1;
  std::int32_t head = 0;
  std::int32_t m_block = 0;
  std::int32_t n_begin = 0;
  std::int32_t n_end = 0;

  MXFA_HOST_DEVICE constexpr bool valid() const { return batch >= 0; }
  /// No row sees a key: O = 0 and LSE = -inf have to be written all the same.
  MXFA_HOST_DEVICE constexpr bool empty() const { return n_end <= n_begin; }
  friend constexpr bool operator==(const WorkTile&, const WorkTile&) = default;
};

/// What all orders know of a call.
struct TileShape {
  Mask mask = {};
  std::int32_t num_heads = 1;
  std::int32_t num_heads_kv = 1;
  std::int32_t tile_m = 128;
  std::int32_t tile_n = 128;
  /// (sequence, kv head) pairs whose keys are read at a time, 1 or more: kv_heads_per_section().
  std::int32_t pairs_per_section = 1;

  MXFA_HOST_DEVICE constexpr std::int32_t heads_per_kv() const { return num_heads / num_heads_kv; }
  MXFA_HOST_DEVICE constexpr std::int32_t m_blocks(std::int64_t seqlen_q) const {
    return seqlen_q <= 0 ? 0 : static_cast<std::int32_t>((seqlen_q + tile_m - 1) / tile_m);
  }
  /// Key blocks that a block of rows sees; {0, 0} where it sees none.
  MXFA_HOST_DEVICE constexpr KeyRange n_blocks(std::int64_t seqlen_q, std::int64_t seqlen_k,
                                               std::int32_t m_block) const {
    const std::int64_t row = std::int64_t{m_block} * tile_m;
    const KeyRange keys = visible_span(mask, seqlen_q, seqlen_k, row, row + tile_m);
    if (keys.empty()) return {0, 0};
    return {keys.begin / tile_n, (keys.end + tile_n - 1) / tile_n};
  }
};

/// Tiles of a batch at most, from shapes alone: what grids and 32-bit numbers are checked against.
constexpr std::int64_t most_tiles(const TileShape& shape, std::int64_t total_q,
                                  std::int64_t batch) {
  return (total_q / shape.tile_m + batch) * shape.num_heads;
}

/// Kv heads whose keys and values fit into `l2_bytes` together. `token_bytes` of one head's K and V
/// with their scales; `seqlen_k` the longest, or the mean where lengths stay on the device.
constexpr std::int32_t kv_heads_per_section(std::int64_t l2_bytes, std::int64_t seqlen_k,
                                            std::int64_t token_bytes) {
  const std::int64_t head_bytes = seqlen_k * token_bytes;
  const std::int64_t heads = head_bytes > 0 ? l2_bytes / head_bytes : l2_bytes;
  return static_cast<std::int32_t>(heads < 1 ? 1 : heads > (1 << 20) ? 1 << 20 : heads);
}

/// TileShape::pairs_per_section of a forward. Costs fall from tile to tile under a causal mask, and
/// sections would bring costly ones last: all pairs are one.
constexpr std::int32_t forward_pairs_per_section(const TileShape& shape, std::int32_t batch,
                                                 std::int64_t total_k, std::int64_t l2_bytes,
                                                 std::int64_t token_bytes) {
  const std::int64_t mean = batch > 0 ? total_k / batch : 0;
  const std::int32_t pairs = shape.mask.causal ? batch * shape.num_heads_kv
                                               : kv_heads_per_section(l2_bytes, mean, token_bytes);
  return pairs > 0 ? pairs : 1;
}

namespace internal {

struct GroupTile {
  std::int32_t pair;     ///< (sequence, kv head)
  std::int32_t member;   ///< query head of the kv head
  std::int32_t m_block;  ///< the last first
};

/// Tile `index` of a group of `pairs` x heads_per_kv x m_blocks.
MXFA_HOST_DEVICE constexpr GroupTile tile_in_group(const TileShape& shape, std::int32_t index,
                                                   std::int32_t pairs, std::int32_t m_blocks) {
  const std::int32_t heads = shape.heads_per_kv();
  const std::int32_t wide = shape.pairs_per_section < pairs ? shape.pairs_per_section : pairs;
  const std::int32_t section = index / (wide * heads * m_blocks);
  const std::int32_t first = section * wide;
  const std::int32_t here = (pairs - first < wide ? pairs - first : wide) * heads;
  const std::int32_t in_section = index - first * heads * m_blocks;
  const std::int32_t in_row = in_section % here;
  return {first + in_row / heads, in_row % heads, m_blocks - 1 - in_section / here};
}

}  // namespace internal

/// Every sequence has the same lengths, known to the host.
struct DenseOrder {
  TileShape shape = {};
  std::int32_t batch = 0;
  std::int64_t seqlen_q = 0;
  std::int64_t seqlen_k = 0;

  MXFA_HOST_DEVICE constexpr std::int32_t size() const {
    return batch * shape.num_heads * shape.m_blocks(seqlen_q);
  }
  MXFA_HOST_DEVICE constexpr WorkTile at(std::int32_t index) const {
    const internal::GroupTile tile =
        internal::tile_in_group(shape, index, batch * shape.num_heads_kv, shape.m_blocks(seqlen_q));
    const KeyRange blocks = shape.n_blocks(seqlen_q, seqlen_k, tile.m_block);
    return {tile.pair / shape.num_heads_kv,
            tile.pair % shape.num_heads_kv * shape.heads_per_kv() + tile.member, tile.m_block,
            static_cast<std::int32_t>(blocks.begin), static_cast<std::int32_t>(blocks.end)};
  }
};

/// What build_jagged_plan() makes of lengths that only the device knows: sequences by falling cost
/// of their costliest tile, and where the tiles of each begin.
struct JaggedPlan {
  const std::int32_t* sequences = nullptr;    ///< [batch]
  const std::int32_t* block_begin = nullptr;  ///< [batch + 1], blocks of rows before each
};

/// A jagged batch, the longest sequences first. A number is looked up in the plan's prefix sums:
/// 8 bytes a sequence instead of a table of all tiles, whose size would depend on total_q. Numbers
/// that a CTA takes only grow, so the search starts from the last hit and costs a few loads from
/// L1, far less than the tile that it hides behind. Where queries are broadcast it is a division.
class JaggedOrder {
 public:
  MXFA_HOST_DEVICE constexpr JaggedOrder(const TileShape& shape, const Seqlens& seqlens,
                                         std::int32_t batch, const JaggedPlan& plan)
      : shape_(shape),
        seqlens_(seqlens),
        batch_(batch),
        plan_(plan),
        shared_blocks_(seqlens.cu_seqlens_q == nullptr ? shape.m_blocks(seqlens.broadcast_seqlen_q)
                                                       : 0),
        size_((seqlens.cu_seqlens_q == nullptr ? batch * shared_blocks_ : plan.block_begin[batch]) *
              shape.num_heads) {}

  MXFA_HOST_DEVICE constexpr std::int32_t size() const { return size_; }

  MXFA_HOST_DEVICE constexpr WorkTile at(std::int32_t index) {
    const std::int32_t block = index / shape_.num_heads;
    std::int32_t first_block = 0, m_blocks = shared_blocks_;
    if (seqlens_.cu_seqlens_q == nullptr) {
      slot_ = block / m_blocks;
      first_block = slot_ * m_blocks;
    } else {
      find_slot(block);
      first_block = plan_.block_begin[slot_];
      m_blocks = plan_.block_begin[slot_ + 1] - first_block;
    }
    const std::int32_t batch = plan_.sequences[slot_];
    const internal::GroupTile tile = internal::tile_in_group(
        shape_, index - first_block * shape_.num_heads, shape_.num_heads_kv, m_blocks);
    const Sequence lengths = seqlens_.at(batch);
    const KeyRange blocks = shape_.n_blocks(lengths.seqlen_q, lengths.seqlen_k, tile.m_block);
    return {batch, tile.pair * shape_.heads_per_kv() + tile.member, tile.m_block,
            static_cast<std::int32_t>(blocks.begin), static_cast<std::int32_t>(blocks.end)};
  }

 private:
  /// The last slot whose blocks begin at `block` or before; slots without blocks are passed over.
  MXFA_HOST_DEVICE constexpr void find_slot(std::int32_t block) {
    std::int32_t low = block >= plan_.block_begin[slot_] ? slot_ : 0;
    std::int32_t step = 1;
    while (low + step < batch_ && plan_.block_begin[low + step] <= block) {
      low += step;
      step *= 2;
    }
    std::int32_t high = low + step < batch_ ? low + step : batch_;
    while (high - low > 1) {
      const std::int32_t middle = low + (high - low) / 2;
      if (plan_.block_begin[middle] <= block) {
        low = middle;
      } else {
        high = middle;
      }
    }
    slot_ = low;
  }

  TileShape shape_;
  Seqlens seqlens_;
  std::int32_t batch_;
  JaggedPlan plan_;
  std::int32_t shared_blocks_;  ///< of every sequence where q is broadcast
  std::int32_t size_;
  std::int32_t slot_ = 0;  ///< last found
};

/// CTA `cta` of `ctas` takes one number of every `ctas`, there and back (0 1 2, 2 1 0, ..), so that
/// falling costs even out.
class StaticCounter {
 public:
  MXFA_HOST_DEVICE constexpr StaticCounter(std::int32_t cta, std::int32_t ctas)
      : cta_(cta), ctas_(ctas) {}

  MXFA_HOST_DEVICE constexpr std::int32_t next() {
    const std::int32_t begin = round_ * ctas_;
    return begin + ((round_++ & 1) == 0 ? cta_ : ctas_ - 1 - cta_);
  }

 private:
  std::int32_t cta_;
  std::int32_t ctas_;
  std::int32_t round_ = 0;
};

/// A CTA takes the next number that is left as soon as it is free. The first comes without asking;
/// `FetchAdd()` adds 1 to a counter that all CTAs share, 0 before the launch, and returns what it
/// held.
template <class FetchAdd>
class DynamicCounter {
 public:
  MXFA_HOST_DEVICE constexpr DynamicCounter(std::int32_t cta, std::int32_t ctas, FetchAdd fetch_add)
      : fetch_add_(fetch_add), first_(cta), ctas_(ctas) {}

  MXFA_EITHER_SIDE
  MXFA_HOST_DEVICE constexpr std::int32_t next() {
    const std::int32_t first = first_;
    first_ = -1;
    return first >= 0 ? first : ctas_ + fetch_add_();
  }

 private:
  FetchAdd fetch_add_;
  std::int32_t first_;
  std::int32_t ctas_;
};

/// Tiles of one CTA. Without `with_empty` those in which no row sees a key are passed over: their
/// outputs stay unwritten.
template <class Order, class Counter>
class TileScheduler {
 public:
  MXFA_HOST_DEVICE constexpr TileScheduler(const Order& order, const Counter& counter,
                                           bool with_empty)
      : order_(order), counter_(counter), with_empty_(with_empty) {}

  /// Not valid() at the end, and ever after.
  MXFA_EITHER_SIDE
  MXFA_HOST_DEVICE constexpr WorkTile next() {
    while (!ended_) {
      const std::int32_t index = counter_.next();
      // Numbers of one CTA grow: nothing follows the first one that is too large.
      ended_ = index >= order_.size();
      if (ended_) break;
      const WorkTile tile = order_.at(index);
      if (with_empty_ || !tile.empty()) return tile;
    }
    return {};
  }

 private:
  Order order_;
  Counter counter_;
  bool with_empty_;
  bool ended_ = false;
};

}  // namespace mxfa::attention
