#pragma once

#include <cuda/ptx>

#include "device/warp_fetch_add.cuh"
#include "kernels/sm90/common/mma.cuh"
#include "kernels/sm90/forward/config.h"
#include "kernels/sm90/forward/params.h"
#include "ptx/mbarrier.cuh"

/// The role that takes tiles.
namespace mxfa::sm90::forward {

/// What a NaN group's scale becomes here: an exponent that no scale has, by which those of V are
/// told. (Q and K of such a group are NaN themselves.)
inline constexpr int kNanExponent = -128;
__device__ inline int exponent(const device::OperandScales& scales, std::int64_t row,
                               std::int32_t head) {
  const std::uint8_t code =
      __ldg(scales.data + row * scales.row_stride + head * scales.head_stride);
  return code == mx::kE8M0Nan ? kNanExponent : scale_exponent(code);
}

/// One warp, a tile ahead of the others: takes tiles, says what they are, copies Q.
/// Waits on q_empty; signals q_full; owns what it writes until then.
template <class Config>
class TileProducer {
 public:
  using Plan = SmemPlan<Config>;

  __device__ TileProducer(const ForwardParams& params, Plan& smem)
      : params_(params), smem_(smem), lane_(threadIdx.x & 31) {}

  __device__ void run() {
    using namespace attention;
    const std::int32_t cta = static_cast<std::int32_t>(blockIdx.x);
    const std::int32_t ctas = static_cast<std::int32_t>(gridDim.x);
    if (params_.plan.sequences != nullptr) {
      const JaggedOrder order(params_.shape, params_.seqlens, params_.batch, params_.plan);
      const device::WarpFetchAdd fetch_add{params_.counter, order.size()};
      TileScheduler scheduler(order, DynamicCounter(cta, ctas, fetch_add), true);
      load_all([&] { return Work{.tile = scheduler.next()}; });
    } else {
      const DenseOrder order{params_.shape, params_.batch, params_.seqlen_q, params_.seqlen_k};
      const SplitTail split{ctas, order.size(), static_cast<std::int32_t>(blocks())};
      const bool divided = params_.partials != nullptr;
      TileScheduler scheduler(FirstTiles{order, divided ? split.whole_tiles() : order.size()},
                              StaticCounter(cta, ctas), true);
      std::int64_t done = 0;  // blocks of this CTA's share of the last round
      load_all([&] {
        Work work{.tile = scheduler.next()};
        if (work.tile.valid() || !divided) return work;
        work.segment = split.at(cta, done);
        if (!work.segment.valid()) return work;
        work.tile = order.at(work.segment.tile);
        work.tile.n_begin = work.segment.n_begin;
        work.tile.n_end = work.segment.n_end;
        done += work.tile.n_end - work.tile.n_begin;
        return work;
      });
    }
    wait_for_buffer();
    finish();
  }

 private:
  struct Lengths {
    attention::Sequence sequence;
    std::int64_t q_group;  ///< first scale group of Q's sequence
    std::int64_t k_group;
    std::int64_t v_column;  ///< of V^T
    std::int64_t o_offset;  ///< TileRecord
    std::int64_t o_group;
  };
  struct Work {
    attention::WorkTile tile = {};
    attention::TailSegment segment = {};
  };

  /// The first `count` tiles of an order.
  struct FirstTiles {
    attention::DenseOrder order;
    std::int32_t count;
    __device__ std::int32_t size() const { return count; }
    __device__ attention::WorkTile at(std::int32_t index) const { return order.at(index); }
  };

  __device__ std::int64_t blocks() const {
    return (params_.seqlen_k + Config::kTileN - 1) / Config::kTileN;
  }

  template <class Source>
  __device__ void load_all(const Source& source) {
    while (true) {
      const Work work = source();
      if (!work.tile.valid()) return;
      const Lengths lengths = lengths_of(work.tile);
      wait_for_buffer();
      load(work, lengths);
      if (++buffer_ == Config::kQBuffers) {
        buffer_ = 0;
        buffer_phase_ ^= 1;
      }
    }
  }

  __device__ void wait_for_buffer() {
    ptx::mbarrier_wait(shared_address(&smem_.q_empty[buffer_]), buffer_phase_ ^ 1);
  }
  __device__ void finish() {
    if (lane_ == 0) smem_.tile[buffer_].valid = 0;
    ptx::mbarrier_arrive(shared_address(&smem_.q_full[buffer_]));
  }

  __device__ Lengths lengths_of(const attention::WorkTile& tile) const {
    Lengths result;
    const std::int64_t q_sequence = params_.broadcast_q ? 0 : tile.batch;
    if (params_.plan.sequences != nullptr) {
      result.sequence = params_.seqlens.at(tile.batch);
    } else {
      result.sequence = {.q_begin = q_sequence * params_.seqlen_q,
                         .o_begin = tile.batch * params_.seqlen_q,
                         .k_begin = tile.batch * params_.seqlen_k,
                         .seqlen_q = params_.seqlen_q,
                         .seqlen_k = params_.seqlen_k};
    }
    result.q_group = params_.q.offsets.groups(q_sequence);
    result.k_group = params_.k.offsets.groups(tile.batch);
    result.v_column = params_.k.offsets.tiles(tile.batch) * mx::kAtomRows;
    result.o_offset = params_.plan.sequences == nullptr
                          ? tile.batch * params_.o_batch_stride
                          : result.sequence.o_begin * params_.o_token_stride;
    const std::int64_t own_groups = (result.sequence.seqlen_q + kScaleGroup - 1) / kScaleGroup;
    result.o_group = params_.broadcast_q ? tile.batch * own_groups : result.q_group;
    return result;
  }

  /// The tile's record, factors or exponents of its rows, its Q.
  __device__ void load(const Work& work, const Lengths& lengths) {
    const attention::WorkTile& tile = work.tile;
    const std::int32_t row0 = tile.m_block * Config::kTileM;
    if constexpr (Config::kTokenScales) {
      write_row_factors(tile, lengths);
    } else if constexpr (!Config::kBf16) {
      write_exponents(tile, lengths);
    }
    if (lane_ < Config::kConsumers) {
      smem_.blocks[buffer_][lane_] = blocks_of(tile, lengths, lane_);
    }
    std::uint64_t* const full = &smem_.q_full[buffer_];
    if (lane_ != 0) {
      ptx::mbarrier_arrive(shared_address(full));
      return;
    }
    write_record(work, lengths);
    using namespace cuda::ptx;
    mbarrier_arrive_expect_tx(sem_release, scope_cta, space_shared, full, sizeof(smem_.q[0]));
    for (int i = 0; i < Config::kConsumers * Config::kQkParts; ++i) {
      const int rows = i / Config::kQkParts, part = i % Config::kQkParts;
      const std::int32_t at[3] = {
          part * (Config::kHeadDim / Config::kQkParts), tile.head,
          static_cast<std::int32_t>(lengths.sequence.q_begin + row0 + 64 * rows)};
      cp_async_bulk_tensor(space_cluster, space_global,
                           &smem_.q[buffer_][i * 64 * Config::kQkPartBytes], &params_.q_map, at,
                           full);
    }
  }

  __device__ void write_record(const Work& work, const Lengths& lengths) {
    const attention::WorkTile& tile = work.tile;
    const attention::TailSegment& segment = work.segment;
    smem_.tile[buffer_] = {.o_begin = lengths.sequence.o_begin,
                           .o_offset = lengths.o_offset,
                           .o_group = lengths.o_group,
                           .k_group = lengths.k_group,
                           .k_begin = static_cast<std::int32_t>(lengths.sequence.k_begin),
                           .v_column = static_cast<std::int32_t>(lengths.v_column),
                           .seqlen_q = static_cast<std::int32_t>(lengths.sequence.seqlen_q),
                           .seqlen_k = static_cast<std::int32_t>(lengths.sequence.seqlen_k),
                           .head = tile.head,
                           .head_kv = tile.head / params_.shape.heads_per_kv(),
                           .m_block = tile.m_block,
                           .n_begin = tile.n_begin,
                           .n_end = tile.empty() ? tile.n_begin : tile.n_end,
                           .valid = 1,
                           .parts = segment.parts,
                           .part = segment.part,
                           .slot = segment.slot,
                           .segment = segment.segment};
  }

  /// Of a tile's blocks, those that 64 rows work on: here, and not where it would hold them up.
  __device__ BlockRange blocks_of(const attention::WorkTile& tile, const Lengths& lengths,
                                  int part) const {
    using namespace attention;
    const Mask& mask = params_.shape.mask;
    const std::int64_t seqlen_q = lengths.sequence.seqlen_q, seqlen_k = lengths.sequence.seqlen_k;
    const std::int64_t row0 = std::int64_t{tile.m_block} * Config::kTileM + 64 * part;
    const std::int64_t row1 = row0 + 64 < seqlen_q ? row0 + 64 : seqlen_q;
    const KeyRange any = visible_span(mask, seqlen_q, seqlen_k, row0, row1);
    if (any.empty()) return {tile.n_begin, tile.n_begin, 0, 0};
    const KeyRange first = visible_keys(mask, seqlen_q, seqlen_k, row0);
    const KeyRange last = visible_keys(mask, seqlen_q, seqlen_k, row1 - 1);
    constexpr int kN = Config::kTileN;
    BlockRange blocks;
    blocks.begin = max(static_cast<int>(any.begin / kN), tile.n_begin);
    blocks.end = min(static_cast<int>((any.end + kN - 1) / kN), tile.n_end);
    if (blocks.end <= blocks.begin) return {tile.n_begin, tile.n_begin, 0, 0};
    blocks.full_begin = static_cast<int>((last.begin + kN - 1) / kN);
    blocks.full_end = first.empty() || last.empty() ? 0 : static_cast<int>(first.end / kN);
    return blocks;
  }

  /// Of the groups of the tile's rows.
  __device__ void write_exponents(const attention::WorkTile& tile, const Lengths& lengths) {
    if (lane_ >= Config::kQGroups) return;
    const std::int64_t groups = (lengths.sequence.seqlen_q + kScaleGroup - 1) / kScaleGroup;
    std::int64_t group = std::int64_t{tile.m_block} * Config::kQGroups + lane_;
    if (group >= groups) group = groups - 1;
    smem_.q_exponent[buffer_][lane_] =
        exponent(params_.q.scales, lengths.q_group + group, tile.head);
  }

  /// What the scores of a tile's rows are multiplied by.
  __device__ void write_row_factors(const attention::WorkTile& tile, const Lengths& lengths) {
    for (int i = lane_; i < Config::kTileM; i += 32) {
      std::int64_t row = std::int64_t{tile.m_block} * Config::kTileM + i;
      if (row >= lengths.sequence.seqlen_q) row = lengths.sequence.seqlen_q - 1;
      const int e = exponent(params_.q.scales, lengths.sequence.q_begin + row, tile.head);
      smem_.q_factor[buffer_][i] = params_.scale_log2 * power_of_two(e);
    }
  }

  const ForwardParams& params_;
  Plan& smem_;
  int lane_;
  int buffer_ = 0;
  unsigned buffer_phase_ = 0;
};

}  // namespace mxfa::sm90::forward
