#pragma once

#include <cuda/ptx>

#include "device/warp_fetch_add.cuh"
#include "kernels/sm90/common/mma.cuh"
#include "kernels/sm90/forward/config.h"
#include "kernels/sm90/forward/params.h"
#include "ptx/lane.cuh"
#include "ptx/mbarrier.cuh"

/// The role that takes tiles.
namespace mxfa::sm90::forward {

/// What a NaN group's scale becomes here: an exponent that no scale has, by which those of V are
/// told. (Q and K of such a group are NaN themselves.)
inline constexpr int kNanExponent = -128;
__device__ inline int scale_code(const device::OperandScales& scales, std::int64_t row,
                                 std::int32_t head) {
  return __ldg(scales.data + row * scales.row_stride + head * scales.head_stride);
}
__device__ inline int exponent_of(int code) {
  return code == mx::kE8M0Nan ? kNanExponent : scale_exponent(static_cast<std::uint8_t>(code));
}
__device__ inline int exponent(const device::OperandScales& scales, std::int64_t row,
                               std::int32_t head) {
  return exponent_of(scale_code(scales, row, head));
}

/// One warp, a tile ahead of the others: takes tiles, says what they are, copies Q. What it knows
/// of a tile lies in shared memory, and its lane is read anew, for want of registers. Waits on
/// q_empty, rows_read; signals tile_full, q_full, rows_full; owns what it writes until then, and
/// `taken`.
template <class Config>
class TileProducer {
 public:
  using Plan = SmemPlan<Config>;

  __device__ TileProducer(const ForwardParams& params, Plan& smem) : params_(params), smem_(smem) {}

  __device__ void run() {
    if (params_.plan.sequences != nullptr) {
      run_jagged();
    } else {
      run_dense();
    }
    wait_for_buffer();
    finish();
  }

 private:
  /// The call's, with tiles as constants.
  __device__ attention::TileShape shape() const {
    attention::TileShape shape = params_.shape;
    shape.tile_m = Config::kTileM;
    shape.tile_n = Config::kTileN;
    return shape;
  }

  __device__ void run_jagged() {
    using namespace attention;
    const JaggedOrder order(shape(), params_.seqlens, params_.batch, params_.plan);
    const device::WarpFetchAdd fetch_add{params_.counter, order.size()};
    TileScheduler tiles(order,
                        DynamicCounter(static_cast<std::int32_t>(blockIdx.x),
                                       static_cast<std::int32_t>(gridDim.x), fetch_add),
                        true);
    for (WorkTile tile = tiles.next(); tile.valid(); tile = tiles.next()) {
      hand_over(tile, TailSegment());
    }
  }

  /// Short tiles and what else is left of whole rounds: this CTA's share, in segments. Those of
  /// short tiles are due when whole tiles of the same section are, which read the same keys.
  __device__ void run_dense() {
    using namespace attention;
    const bool divided = params_.partials != nullptr;
    const bool apart = divided && params_.tail.short_tiles > 0;
    const DenseOrder order{
        shape(), params_.batch,
        apart ? params_.seqlen_q / Config::kTileM * Config::kTileM : params_.seqlen_q,
        params_.seqlen_k};
    const std::int32_t count = divided ? params_.tail.whole_tiles() : order.size();
    StaticCounter counter(static_cast<std::int32_t>(blockIdx.x),
                          static_cast<std::int32_t>(gridDim.x));
    std::int32_t number = counter.next(), index = 0;
    take_segment(divided, index);
    while (true) {
      const TailSegment& segment = smem_.segment;
      if (segment.valid() && (number >= count || is_due(segment, number))) {
        hand_over(tile_of(order, segment), segment);
        take_segment(true, ++index);
      } else if (number < count) {
        hand_over(order.at(number), TailSegment());
        number = counter.next();
      } else {
        return;
      }
    }
  }

  __device__ void take_segment(bool divided, std::int32_t index) {
    // Every lane has read the one before: hand_over() has met since.
    if (ptx::lane_now() == 0) {
      smem_.segment = divided ? params_.tail.at(static_cast<std::int32_t>(blockIdx.x), index)
                              : attention::TailSegment();
    }
    __syncwarp();
  }
  __device__ attention::WorkTile tile_of(const attention::DenseOrder& order,
                                         const attention::TailSegment& segment) const {
    if (segment.is_short == 0) return order.at(params_.tail.whole_tiles() + segment.tile);
    const std::int32_t heads = params_.shape.num_heads;
    return {.batch = segment.tile / heads,
            .head = segment.tile % heads,
            .m_block = static_cast<std::int32_t>(params_.seqlen_q / Config::kTileM)};
  }
  /// Beside whole tile `number`.
  __device__ bool is_due(const attention::TailSegment& segment, std::int32_t number) const {
    const std::int32_t heads = params_.shape.pairs_per_section * params_.shape.heads_per_kv();
    const auto m_blocks = static_cast<std::int32_t>(params_.seqlen_q) / Config::kTileM;
    return segment.is_short != 0 && segment.tile / heads * m_blocks <= number / heads;
  }

  __device__ void hand_over(const attention::WorkTile& tile,
                            const attention::TailSegment& segment) {
    __syncwarp();  // every lane has read what was taken before
    if (ptx::lane_now() == 0) {
      take(tile, segment);
      take_lengths(tile.batch);
      TileRecord& record = smem_.taken.record;
      record.band = Band::of_rows(params_.shape.mask, record.seqlen_q, record.seqlen_k,
                                  tile.m_block * Config::kTileM);
      if (!segment.valid()) take_blocks(record);
    }
    __syncwarp();
    wait_for_buffer();
    load();
    if (++buffer_ == Config::kTileBuffers) {
      buffer_ = 0;
      buffer_phase_ ^= 1;
    }
  }

  __device__ void wait_for_buffer() {
    ptx::mbarrier_wait(shared_address(&smem_.q_empty[buffer_]), buffer_phase_ ^ 1);
  }
  __device__ void finish() {
    if (ptx::lane_now() == 0) smem_.tile[buffer_].parts = 0;
    ptx::mbarrier_arrive(shared_address(&smem_.tile_full[buffer_]));
    if constexpr (Config::kQBuffers == 2) {
      ptx::mbarrier_arrive(shared_address(&smem_.q_full[buffer_]));
    }
  }

  __device__ void take(const attention::WorkTile& tile, const attention::TailSegment& segment) {
    TileRecord& record = smem_.taken.record;
    record.head = tile.head;
    record.head_kv = tile.head / params_.shape.heads_per_kv();
    record.m_block = tile.m_block;
    record.n_begin = segment.n_begin;
    record.n_end = segment.n_end;
    record.parts = segment.parts;
    record.part = segment.part;
    record.slot = segment.slot;
  }
  __device__ void take_lengths(std::int32_t batch) {
    TakenTile& taken = smem_.taken;
    const std::int64_t q_sequence = params_.broadcast_q ? 0 : batch;
    attention::Sequence sequence;
    if (params_.plan.sequences != nullptr) {
      sequence = params_.seqlens.at(batch);
      taken.record.o_offset = sequence.o_begin * params_.o_token_stride;
    } else {
      sequence = {.q_begin = q_sequence * params_.seqlen_q,
                  .o_begin = batch * params_.seqlen_q,
                  .k_begin = batch * params_.seqlen_k,
                  .seqlen_q = params_.seqlen_q,
                  .seqlen_k = params_.seqlen_k};
      taken.record.o_offset = batch * params_.o_batch_stride;
    }
    taken.q_begin = static_cast<std::int32_t>(sequence.q_begin);
    taken.record.o_begin = sequence.o_begin;
    taken.record.k_begin = static_cast<std::int32_t>(sequence.k_begin);
    taken.record.seqlen_q = static_cast<std::int32_t>(sequence.seqlen_q);
    taken.record.seqlen_k = static_cast<std::int32_t>(sequence.seqlen_k);
    taken.q_group = params_.q.offsets.groups(q_sequence);
    const std::int64_t own_groups = (sequence.seqlen_q + kScaleGroup - 1) / kScaleGroup;
    taken.record.o_group = params_.broadcast_q ? batch * own_groups : taken.q_group;
    taken.record.k_group = params_.k.offsets.groups(batch);
    taken.record.v_tile = static_cast<std::int32_t>(params_.k.offsets.tiles(batch));
  }

  /// What the order says too, but from the band: it takes 32 bits and few registers.
  __device__ static void take_blocks(TileRecord& record) {
    constexpr int kN = Config::kTileN;
    const std::int32_t left = record.seqlen_q - record.m_block * Config::kTileM;
    const std::int32_t first_key = record.band.first(0);
    const std::int32_t end_key = record.band.end_of(min(Config::kTileM, left) - 1, record.seqlen_k);
    if (end_key <= first_key) return;
    record.n_begin = first_key / kN;
    record.n_end = (end_key + kN - 1) / kN;
  }

  /// The tile's record, factors or exponents of its rows, its Q.
  __device__ void load() {
    TileRecord& record = smem_.tile[buffer_];
    constexpr int kWords = sizeof(TileRecord) / 4;
    static_assert(kWords <= 32);
    if (const int word = ptx::lane_now(); word < kWords) {
      reinterpret_cast<std::uint32_t*>(&record)[word] =
          reinterpret_cast<const std::uint32_t*>(&smem_.taken.record)[word];
    }
    __syncwarp();
    if constexpr (Config::kTokenScales) {
      write_row_factors(record);
    } else if constexpr (!Config::kBf16) {
      write_exponents(record);
    }
    if (const int part = ptx::lane_now(); part < Config::kConsumers) {
      smem_.blocks[buffer_][part] = blocks_of(record, part);
    }
    ptx::mbarrier_arrive(shared_address(&smem_.tile_full[buffer_]));
    if constexpr (Config::kQBuffers == 1) {
      copy_rows_as_read();
    } else {
      std::uint64_t* const full = &smem_.q_full[buffer_];
      if (ptx::lane_now() != 0) {
        ptx::mbarrier_arrive(shared_address(full));
        return;
      }
      using namespace cuda::ptx;
      mbarrier_arrive_expect_tx(sem_release, scope_cta, space_shared, full, sizeof(smem_.q[0]));
      for (int part = 0; part < Config::kConsumers; ++part) copy_rows(part, full);
    }
  }

  /// Of one Q, the rows of each warpgroup as soon as it, and those before it, have read theirs.
  __device__ void copy_rows_as_read() {
    using namespace cuda::ptx;
    for (int part = 0; part < Config::kConsumers; ++part) {
      ptx::mbarrier_wait(shared_address(&smem_.rows_read[part]), rows_phase_ ^ 1);
      if (ptx::lane_now() != 0) continue;
      std::uint64_t* const full = &smem_.rows_full[part];
      mbarrier_arrive_expect_tx(sem_release, scope_cta, space_shared, full,
                                sizeof(smem_.q[0]) / Config::kConsumers);
      copy_rows(part, full);
    }
    rows_phase_ ^= 1;
  }

  /// Q of a warpgroup's 64 rows, by one thread.
  __device__ void copy_rows(int part, std::uint64_t* full) {
    const TileRecord& record = smem_.tile[buffer_];
    constexpr int kBytes = 64 * Config::kQkPartBytes;
    for (int i = 0; i < Config::kQkParts; ++i) {
      const std::int32_t at[3] = {
          i * (Config::kHeadDim / Config::kQkParts), record.head,
          smem_.taken.q_begin + record.m_block * Config::kTileM + 64 * part};
      cuda::ptx::cp_async_bulk_tensor(
          cuda::ptx::space_cluster, cuda::ptx::space_global,
          &smem_.q[buffer_ % Config::kQBuffers][(part * Config::kQkParts + i) * kBytes],
          &params_.q_map, at, full);
    }
  }

  /// Of a tile's blocks, those that 64 rows work on: here, and not where it would hold them up.
  __device__ static BlockRange blocks_of(const TileRecord& tile, int part) {
    const std::int32_t seqlen_k = tile.seqlen_k, n_begin = tile.n_begin;
    const std::int32_t left = tile.seqlen_q - tile.m_block * Config::kTileM;
    const std::int32_t row0 = 64 * part, last = min(row0 + 64, left) - 1;
    const Band band = tile.band;
    constexpr int kN = Config::kTileN;
    // Both ends of a row's keys only grow with the row.
    const std::int32_t first_key = band.first(row0), end_key = band.end_of(last, seqlen_k);
    const std::int32_t begin = max(first_key / kN, n_begin);
    const std::int32_t end = min((end_key + kN - 1) / kN, tile.n_end);
    if (last < row0 || end_key <= first_key || end <= begin) return {n_begin, n_begin, 0, 0};
    const std::int32_t full_end_key = band.end_of(row0, seqlen_k);
    const std::int32_t full_first_key = band.first(last);
    const bool all_see = full_end_key > first_key && end_key > full_first_key;
    return {begin, end, (full_first_key + kN - 1) / kN, all_see ? full_end_key / kN : 0};
  }

  /// Of the groups of the tile's rows.
  __device__ void write_exponents(const TileRecord& tile) {
    const int lane = ptx::lane_now();
    if (lane >= Config::kQGroups) return;
    const std::int32_t last = (tile.seqlen_q - 1) / kScaleGroup;
    const std::int32_t group = min(tile.m_block * Config::kQGroups + lane, last);
    smem_.q_exponent[buffer_][lane] =
        exponent(params_.q.scales, smem_.taken.q_group + group, tile.head);
  }

  /// What the scores of a tile's rows are multiplied by.
  __device__ void write_row_factors(const TileRecord& tile) {
    for (int i = ptx::lane_now(); i < Config::kTileM; i += 32) {
      const std::int32_t row = min(tile.m_block * Config::kTileM + i, tile.seqlen_q - 1);
      const int e = exponent(params_.q.scales, std::int64_t{smem_.taken.q_begin} + row, tile.head);
      smem_.rows[buffer_].factor[i] = row_factor(e);
    }
  }

  __device__ float row_factor(int exponent) const {
    if constexpr (Config::kScores == Scores::kF32) {
      return params_.scale_log2 * power_of_two(exponent);
    } else {
      // 0 in half would make a hidden score, -infinity, NaN.
      constexpr float kLeastHalf = 0x1p-24f;
      return fmaxf(params_.scale_log2 * power_of_two(exponent + kKeyShift), kLeastHalf);
    }
  }

  const ForwardParams& params_;
  Plan& smem_;
  int buffer_ = 0;
  unsigned buffer_phase_ = 0;
  unsigned rows_phase_ = 0;
};

}  // namespace mxfa::sm90::forward
