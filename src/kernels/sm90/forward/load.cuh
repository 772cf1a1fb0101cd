#pragma once

#include <cuda/ptx>

#include "device/warp_fetch_add.cuh"
#include "kernels/sm90/common/mma.cuh"
#include "kernels/sm90/forward/config.h"
#include "kernels/sm90/forward/params.h"
#include "mx/permutation.h"
#include "ptx/half2.cuh"
#include "ptx/mbarrier.cuh"

/// The producer role.
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

/// Exponents of a key block's groups: a lane's is that of its group, kNoAnchor past the end.
template <class Config>
struct BlockExponents {
  const ForwardParams& params;
  std::int64_t first_group;  ///< of the sequence
  std::int32_t head, groups;
  int k = kNoAnchor, v = kNoAnchor;

  __device__ BlockExponents(const ForwardParams& call, std::int64_t group, std::int32_t kv_head,
                            std::int64_t seqlen_k)
      : params(call),
        first_group(group),
        head(kv_head),
        groups(static_cast<std::int32_t>((seqlen_k + kScaleGroup - 1) / kScaleGroup)) {}

  __device__ void fetch(std::int32_t n_block, std::int32_t n_end) {
    if constexpr (Config::kTokenScales) return;
    const std::int32_t group =
        n_block * Config::kKGroups + static_cast<int>(threadIdx.x) % Config::kKGroups;
    k = v = kNoAnchor;
    if (n_block >= n_end || group >= groups) return;
    k = Config::kBf16 ? 0 : exponent(params.k.scales, first_group + group, head);
    v = exponent(params.v_scales, first_group + group, head);
  }
};

/// One warp: takes tiles, copies Q, K and V^T, turns scales into factors.
/// Waits on q_empty, empty; signals q_full, full; owns what it writes until then.
template <class Config>
class Producer {
 public:
  using Plan = SmemPlan<Config>;

  __device__ Producer(const ForwardParams& params, Plan& smem)
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
    Lengths lengths = {};
    int q_exponent = 0;  ///< of the lane's group of Q
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

  /// A tile's Q is on its way before the keys of the tile before it have all been copied: nobody
  /// waits for what a new tile takes to find.
  template <class Source>
  __device__ void load_all(const Source& source) {
    Work work = begin(source);
    while (work.tile.valid()) work = load_keys(work, source);
  }
  template <class Source>
  __device__ Work begin(const Source& source) {
    Work work = source();
    if (!work.tile.valid()) return work;
    wait_for_buffer();
    work.lengths = lengths_of(work.tile);
    load_q(work);
    if (++buffer_ == Config::kQBuffers) {
      buffer_ = 0;
      buffer_phase_ ^= 1;
    }
    return work;
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

  __device__ void load_q(Work& work) {
    const attention::WorkTile& tile = work.tile;
    const attention::TailSegment& segment = work.segment;
    const Lengths& lengths = work.lengths;
    const std::int32_t row0 = tile.m_block * Config::kTileM;
    if constexpr (Config::kTokenScales) {
      write_row_factors(tile, lengths);
    } else if constexpr (!Config::kBf16) {
      // The exponents that lanes 4 g .. 4 g + 3 need for group g of the tile.
      const std::int64_t groups = (lengths.sequence.seqlen_q + kScaleGroup - 1) / kScaleGroup;
      std::int64_t group = row0 / kScaleGroup + lane_ / Config::kKGroups;
      if (group >= groups) group = groups - 1;
      work.q_exponent = exponent(params_.q.scales, lengths.q_group + group, tile.head);
    }
    if (lane_ < Config::kConsumers) {
      smem_.blocks[buffer_][lane_] = blocks_of(tile, lengths, lane_);
    }
    std::uint64_t* const full = &smem_.q_full[buffer_];
    if (lane_ != 0) {
      ptx::mbarrier_arrive(shared_address(full));
      return;
    }
    smem_.tile[buffer_] = {.o_begin = lengths.sequence.o_begin,
                           .o_offset = lengths.o_offset,
                           .o_group = lengths.o_group,
                           .seqlen_q = static_cast<std::int32_t>(lengths.sequence.seqlen_q),
                           .seqlen_k = static_cast<std::int32_t>(lengths.sequence.seqlen_k),
                           .head = tile.head,
                           .m_block = tile.m_block,
                           .n_begin = tile.n_begin,
                           .n_end = tile.empty() ? tile.n_begin : tile.n_end,
                           .valid = 1,
                           .parts = segment.parts,
                           .part = segment.part,
                           .slot = segment.slot,
                           .segment = segment.segment};
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

  /// Returns the next tile, begun.
  template <class Source>
  __device__ Work load_keys(const Work& work, const Source& source) {
    const attention::WorkTile& tile = work.tile;
    const Lengths& lengths = work.lengths;
    const std::int32_t head = tile.head / params_.shape.heads_per_kv();
    BlockExponents<Config> exponents(params_, lengths.k_group, head, lengths.sequence.seqlen_k);
    int anchor = kNoAnchor;
    exponents.fetch(tile.n_begin, tile.n_end);
    // With one buffer for Q the next tile cannot begin before this one's keys have come.
    const std::int32_t early = tile.n_begin + Config::kStages - 1;
    const std::int32_t begin_at = Config::kQBuffers > 1 && early < tile.n_end ? early : tile.n_end;
    Work next;
    for (std::int32_t n_block = tile.n_begin;; ++n_block) {
      if (n_block == begin_at) next = begin(source);
      if (n_block >= tile.n_end) return next;
      const int k_exponent = exponents.k, v_exponent = exponents.v;
      // A block ahead, so that their latency hides behind the wait for a free stage.
      exponents.fetch(n_block + 1, tile.n_end);
      ptx::mbarrier_wait(shared_address(&smem_.empty[stage_]), phase_ ^ 1);
      bool has_nan;
      if constexpr (Config::kTokenScales) {
        has_nan = write_token_scales(head, n_block, lengths);
      } else {
        has_nan = write_scales(work.q_exponent, k_exponent, v_exponent, anchor);
      }
      if (has_nan) {
        copy_patched(head, n_block, lengths);
      } else if (lane_ == 0) {
        copy_keys(head, n_block, lengths, &smem_.full[stage_]);
      } else {
        // Every lane hands over what it wrote.
        ptx::mbarrier_arrive(shared_address(&smem_.full[stage_]));
      }
      if (++stage_ == Config::kStages) {
        stage_ = 0;
        phase_ ^= 1;
      }
    }
  }

  /// NaN in V would reach rows that do not see it, as 0 * NaN: zeros take its place, and the
  /// consumers make O of the rows that see it NaN.
  __device__ void copy_patched(std::int32_t head, std::int32_t n_block, const Lengths& lengths) {
    if (lane_ == 0) copy_keys(head, n_block, lengths, &smem_.patched);
    __syncwarp();  // also: what the stage's scales say of NaN has been written
    ptx::mbarrier_wait(shared_address(&smem_.patched), patched_phase_);
    patched_phase_ ^= 1;
    if constexpr (Config::kTokenScales) {
      clear_nan_tokens();
    } else {
      clear_nan_groups();
    }
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    ptx::mbarrier_arrive(shared_address(&smem_.full[stage_]));
  }
  __device__ void clear_nan_groups() {
    const int anchor = smem_.scales[stage_].anchor;
    const int nan_groups = (anchor + kNanGroupUnit / 2) / kNanGroupUnit;
    constexpr int kChunks = Config::kTileN / 16;  // of a row of V^T, swizzled among themselves
    for (int i = lane_; i < Config::kHeadDim * kChunks; i += 32) {
      const int row = i / kChunks, chunk = i % kChunks ^ row % 8;
      if ((nan_groups >> chunk / 2 & 1) == 0) continue;
      reinterpret_cast<uint4*>(smem_.v[stage_])[i] = uint4{};
    }
  }
  __device__ void clear_nan_tokens() {
    for (int token = 0; token < Config::kTileN; ++token) {
      if ((smem_.scales[stage_].nan_tokens[token / 32] >> token % 32 & 1) == 0) continue;
      for (int row = lane_; row < Config::kHeadDim; row += 32) {
        const int chunk = token / 16 ^ row % 8;
        smem_.v[stage_][row * Config::kTileN + 16 * chunk + mx::pi_position(token % 16)] = 0;
      }
    }
  }

  /// Signals `full` when K and V^T have come.
  __device__ void copy_keys(std::int32_t head, std::int32_t n_block, const Lengths& lengths,
                            std::uint64_t* full) {
    using namespace cuda::ptx;
    const std::int32_t key0 = n_block * Config::kTileN;
    mbarrier_arrive_expect_tx(sem_release, scope_cta, space_shared, full,
                              sizeof(smem_.k[0]) + sizeof(smem_.v[0]));
    for (int part = 0; part < Config::kQkParts; ++part) {
      const std::int32_t k_at[3] = {part * (Config::kHeadDim / Config::kQkParts), head,
                                    static_cast<std::int32_t>(lengths.sequence.k_begin + key0)};
      cp_async_bulk_tensor(space_cluster, space_global,
                           &smem_.k[stage_][part * Config::kTileN * Config::kQkPartBytes],
                           &params_.k_map, k_at, full);
    }
    const std::int32_t v_at[2] = {static_cast<std::int32_t>(lengths.v_column + key0),
                                  head * Config::kHeadDim};
    cp_async_bulk_tensor(space_cluster, space_global, smem_.v[stage_], &params_.v_map, v_at, full);
  }

  /// As the softmax of this configuration takes a number.
  __device__ static std::uint32_t lane_value(float x) {
    if constexpr (Config::kScores == Scores::kF16) return ptx::half2_pack(x, x);
    return __float_as_uint(x);
  }

  /// Lane 4 i + g writes the factor of Q's group i and the block's group g. Whether V has NaN.
  __device__ bool write_scales(int q_exponent, int k_exponent, int v_exponent, int& anchor) {
    constexpr unsigned kAll = ~0u;
    constexpr int kGroups = Config::kKGroups;
    StageScales<Config>& out = smem_.scales[stage_];
    const unsigned nan_groups =
        __ballot_sync(kAll, v_exponent == kNanExponent) & ((1u << kGroups) - 1);
    int most = v_exponent;
    for (int step = 1; step < kGroups; step *= 2) {
      const int other = __shfl_xor_sync(kAll, most, step);
      most = other > most ? other : most;
    }
    anchor = most > anchor ? most : anchor;
    // Groups past the end have no codes but zeros.
    int fold = v_exponent == kNoAnchor ? 0 : v_exponent - anchor;
    fold = fold < kLeastFold ? kLeastFold : fold;
    int sum = q_exponent + (k_exponent == kNoAnchor ? 0 : k_exponent);
    bool packable = fold >= kLeastPackedFold;
    if constexpr (Config::kScores == Scores::kF16) {
      // Factors must neither overflow in half nor, below the normal range, lose what counts.
      packable = packable && sum <= 12;
      sum = sum < -20 ? -20 : sum > 12 ? 12 : sum;
    }
    const int lane_group = lane_ % kGroups;
    packable = __all_sync(kAll, packable);
    if (lane_ < Config::kQGroups * kGroups) {
      out.factor[lane_ / kGroups][lane_group] = lane_value(params_.scale_log2 * power_of_two(sum));
    }
    if (lane_ < kGroups) {
      out.fold[lane_group] = lane_value(static_cast<float>(fold));
      const int safe = Config::kScores == Scores::kF16 && fold < kLeastPackedFold ? 0 : fold;
      out.unfold[lane_group] = lane_value(power_of_two(-safe));
    }
    if (lane_ == 0) {
      out.anchor = anchor + static_cast<int>(nan_groups) * kNanGroupUnit;
      out.packable = packable;
    }
    return nan_groups != 0;
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

  /// Whether V has NaN.
  __device__ bool write_token_scales(std::int32_t head, std::int32_t n_block,
                                     const Lengths& lengths) {
    StageScales<Config>& out = smem_.scales[stage_];
    unsigned any_nan = 0;
    for (int word = 0; word < Config::kTileN / 32; ++word) {
      const int i = 32 * word + lane_;
      const std::int64_t key = std::int64_t{n_block} * Config::kTileN + i;
      int k = 0, v = kLeastValue;
      if (key < lengths.sequence.seqlen_k) {
        k = exponent(params_.k.scales, lengths.sequence.k_begin + key, head);
        v = exponent(params_.v_scales, lengths.sequence.k_begin + key, head);
      }
      const unsigned nan = __ballot_sync(~0u, v == kNanExponent);
      v = v < kLeastValue ? kLeastValue : v;
      out.key[i] = power_of_two(k);
      out.value[i] = static_cast<float>(v);
      out.unfold[i] = power_of_two(-v);
      if (lane_ == 0) out.nan_tokens[word] = nan;
      any_nan |= nan;
    }
    if (lane_ == 0) out.anchor = any_nan != 0 ? kNanGroupUnit : 0;
    return any_nan != 0;
  }

  const ForwardParams& params_;
  Plan& smem_;
  int lane_;
  int stage_ = 0;
  unsigned phase_ = 0;
  int buffer_ = 0;
  unsigned buffer_phase_ = 0;
  unsigned patched_phase_ = 0;
};

}  // namespace mxfa::sm90::forward
