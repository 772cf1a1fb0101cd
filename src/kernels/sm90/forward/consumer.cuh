#pragma once

#include "kernels/sm90/forward/epilogue.cuh"
#include "kernels/sm90/forward/folded_sums.cuh"
#include "kernels/sm90/forward/load.cuh"
#include "kernels/sm90/forward/mma.cuh"
#include "kernels/sm90/forward/split.cuh"
#include "kernels/sm90/forward/sums.cuh"
#include "kernels/sm90/forward/token_half_softmax.cuh"
#include "kernels/sm90/forward/token_softmax.cuh"
#include "kernels/sm90/forward/visible.cuh"
#include "ptx/lane.cuh"

/// The consumer role.
namespace mxfa::sm90::forward {

/// One warpgroup, 64 rows: S of a key block, its softmax, PV into a fresh accumulator (the FP8
/// accumulator keeps 13 bits), O = O * rescale + fresh. Three or four such groups in turn keep the
/// tensor cores busy without an order among them.
/// Waits on q_full or, of one Q, tile_full and rows_full, and on full; signals q_empty, rows_read,
/// empty; owns O and the rows' state.
template <class Config>
class Consumer {
 public:
  using Plan = SmemPlan<Config>;
  using Rows = Softmax<Config>;

  __device__ Consumer(const ForwardParams& params, Plan& smem, int warpgroup)
      : params_(params),
        part_(uniform(warpgroup)),
        base_(static_cast<std::uint32_t>(uniform(static_cast<int>(shared_address(&smem))))),
        smem_(Config::kWindowInRegister ? *static_cast<Plan*>(__cvta_shared_to_generic(base_))
                                        : smem),
        k_word_(uniform(static_cast<int>(tile_word(at(offsetof(Plan, k), 0, 0))))),
        v_word_(uniform(static_cast<int>(tile_word(at(offsetof(Plan, v), 0, 0))))),
        warp_(uniform(static_cast<int>(threadIdx.x / 32 % 4))) {}

  __device__ void run() {
    while (true) {
      constexpr std::size_t kRecord =
          Config::kQBuffers == 1 ? offsetof(Plan, tile_full) : offsetof(Plan, q_full);
      ptx::mbarrier_wait(at(kRecord, buffer_, 8), buffer_phase_);
      if (smem_.tile[buffer_].parts == 0) return;
      if constexpr (Config::kQBuffers == 1) {
        ptx::mbarrier_wait(at(offsetof(Plan, rows_full), part_, 8), rows_phase_);
        rows_phase_ ^= 1;
      }
      run_tile(smem_.tile[buffer_]);
    }
  }

 private:
  using Sums = typename Config::Sums;
  using Fresh = typename Config::Fresh;
  static constexpr int kFresh = Config::kValueColumns / 2;
  /// Leak-free FP32 scores: a block of one factor is never partial, and its path must not join that
  /// of hidden scores ahead of its softmax. (ptxas then moves half of S to other registers.)
  static constexpr bool kHidesLate = Config::kTokenScales && Config::kScores == Scores::kF32;
  static constexpr bool kPackedTokens = Config::kTokenScales && Config::kScores == Scores::kF16;
  static constexpr int kLastHalf = Config::kHeadDim / Config::kValueColumns - 1;

  /// What all lanes hold, by a reduction: then the compiler keeps it in a uniform register.
  __device__ static int uniform(int x) {
    return static_cast<int>(__reduce_or_sync(~0u, static_cast<unsigned>(x)));
  }
  __device__ std::uint32_t at(std::size_t member, int index, std::size_t size) const {
    return base_ + static_cast<std::uint32_t>(member) + index * static_cast<std::uint32_t>(size);
  }

  __device__ int first_row() const { return 64 * part_ + 16 * warp_; }

  /// Read where it is needed, for want of registers.
  __device__ int end_of_blocks() const { return smem_.blocks[buffer_][part_].end; }

  __device__ void run_tile(const TileRecord& tile) {
    BlockRange blocks = smem_.blocks[buffer_][part_];
    blocks = {uniform(blocks.begin), uniform(blocks.end), uniform(blocks.full_begin),
              uniform(blocks.full_end)};
    typename Rows::State rows;
    if constexpr (Config::kTokenScales) Rows::begin(smem_.rows[buffer_], first_row(), rows);
    Sums sums = {};
    const QOperand<Config> q(
        at(offsetof(Plan, q), buffer_ % Config::kQBuffers, sizeof(smem_.q[0])) +
            part_ * 64 * Config::kQkBytes,
        warp_, ptx::lane_now());
    int folds = 0;  // segments laid aside
    pass_blocks(blocks.begin - tile.n_begin);
    if (blocks.begin < blocks.end) {
      if constexpr (Config::kHalfSums) {
        folds = run_segments(tile, blocks, q, rows, sums);
      } else {
        run_blocks(tile, blocks, q, rows, sums);
      }
    } else {
      release_q();
    }
    pass_blocks(tile.n_end - end_of_blocks());
    if constexpr (Config::kTokenScales) {
      if (params_.row_max != nullptr) Rows::finish(smem_.rows[buffer_], first_row(), rows);
    }
    // Ahead of O's stores, for which it would wait.
    if constexpr (Config::kQBuffers == 2) fence_q();
    finish_tile(tile, rows, sums, folds);
    ptx::mbarrier_arrive(at(offsetof(Plan, q_empty), buffer_, 8));
    if (++buffer_ == Config::kTileBuffers) {
      buffer_ = 0;
      buffer_phase_ ^= 1;
    }
  }

  __device__ void finish_tile(const TileRecord& tile, typename Rows::State& rows, Sums& sums,
                              int folds) {
    if (tile.m_block * Config::kTileM + 64 * part_ >= tile.seqlen_q) return;  // no rows
    if constexpr (Config::kHalfSums) {
      float o[Config::kHeadDim / 2];
      widen_sums(sums, o);
      folded_sums().add(folds, rows, o);
      if (rows.anchor != kNoAnchor) rows.anchor += sums_exponent(tile);
      store_tile(tile, rows, o);
    } else {
      store_tile(tile, rows, sums);
    }
  }
  __device__ void store_tile(const TileRecord& tile, typename Rows::State& rows,
                             float (&o)[Config::kHeadDim / 2]) {
    if (tile.parts == 1 || PartMerger<Config>(params_, tile, part_, ptx::thread_now() % 128)
                               .run(rows, o, smem_.merges[part_])) {
      store_rows<Config, Rows>(params_, tile, rows, o, smem_.o_amax[part_],
                               64 * part_ + 16 * warp_);
    }
  }

  __device__ void wait_for_stage() {
    ptx::mbarrier_wait(at(offsetof(Plan, full), stage_, 8), phase_);
  }
  /// One Q goes back as soon as the last scores are made, each warpgroup's rows by themselves; of
  /// two there is one in hand.
  __device__ void release_q() const {
    if constexpr (Config::kQBuffers == 1) {
      fence_q();
      ptx::mbarrier_arrive(at(offsetof(Plan, rows_read), part_, 8));
    }
  }
  /// Ahead of giving Q back: ldmatrix has read it, and the copy engine fills it through another
  /// proxy.
  __device__ static void fence_q() { cuda::ptx::fence_proxy_async(cuda::ptx::space_shared); }
  __device__ int next_stage() const { return stage_ + 1 == Config::kStages ? 0 : stage_ + 1; }
  __device__ unsigned next_phase() const {
    return stage_ + 1 == Config::kStages ? phase_ ^ 1 : phase_;
  }
  /// Whether the next stage is full already: asked for ahead, since even a yes takes long.
  __device__ bool next_is_ready() const {
    return ptx::mbarrier_test_wait(at(offsetof(Plan, full), next_stage(), 8), next_phase());
  }
  __device__ void wait_for_next_stage() const {
    ptx::mbarrier_wait(at(offsetof(Plan, full), next_stage(), 8), next_phase());
  }
  __device__ void release_stage() {
    ptx::mbarrier_arrive(at(offsetof(Plan, empty), stage_, 8));
    if (++stage_ == Config::kStages) {
      stage_ = 0;
      phase_ ^= 1;
    }
  }
  __device__ void pass_blocks(int count) {
    for (int i = 0; i < count; ++i) {
      wait_for_stage();
      release_stage();
    }
  }

  __device__ void run_blocks(const TileRecord& tile, const BlockRange& blocks,
                             const QOperand<Config>& q, typename Rows::State& rows, Sums& sums) {
    typename Rows::Fragment s;
    wait_for_stage();
    multiply_keys(q, s, stage_);
    for (int n_block = blocks.begin;; ++n_block) {
      std::uint32_t p[Config::kTileN / 8];
      float rescale[2];
      const typename Rows::Scales scales = wait_for_scores(tile, n_block, blocks, rows, s, sums);
      Rows::run(scales, rows, s, p, rescale);
      Fresh fresh;
      multiply_values(p, rescale, sums, fresh);
      const bool ready = next_is_ready();
      ptx::wgmma_wait<0>();
      fence_registers(fresh);
      release_stage();
      promote(kLastHalf, fresh, rescale, sums);
      // Not as a branch that joins: MMAs in flight behind a join make the compiler wait for them.
      if (n_block + 1 == end_of_blocks()) break;
      if (!ready) wait_for_stage();
      multiply_keys(q, s, stage_);
    }
  }

  /// With half sums: log2 of what P V of a block is divided by.
  __device__ static int sums_exponent(const TileRecord& tile) {
    return half_sums_exponent(tile.n_end - tile.n_begin);
  }
  __device__ FoldedSums<Config> folded_sums() const {
    return {params_, part_, ptx::thread_now() % 128};
  }
  /// With half sums: a segment at a time. How many of them were laid aside.
  __device__ int run_segments(const TileRecord& tile, BlockRange blocks, const QOperand<Config>& q,
                              typename Rows::State& rows, Sums& sums) {
    int folds = 0;
    for (bool first = true;; first = false) {
      const int count = end_of_blocks() - smem_.blocks[buffer_][part_].begin;
      const int length = first ? kFirstSegment : segment_blocks(count);
      const int end = min(blocks.begin + length, blocks.end);
      run_blocks_in_half(tile, blocks, end, q, rows, sums);
      if (end == end_of_blocks()) return folds;
      if (FoldedSums<Config>::matters(rows, sums, sums_exponent(tile))) {
        folded_sums().lay_aside(folds++, rows, sums);
      }
      blocks.begin = end;
    }
  }
  /// Those before `end`.
  __device__ void run_blocks_in_half(const TileRecord& tile, const BlockRange& blocks, int end,
                                     const QOperand<Config>& q, typename Rows::State& rows,
                                     Sums& sums) {
    const float unit = power_of_two(-sums_exponent(tile));
    const std::uint32_t units =
        static_cast<std::uint32_t>(uniform(static_cast<int>(ptx::half2_pack(unit, unit))));
    typename Rows::Fragment s;
    wait_for_stage();
    multiply_keys(q, s, stage_);
    for (int n_block = blocks.begin;; ++n_block) {
      bool ready = Config::kScoresAhead && next_is_ready();
      const bool last = n_block + 1 == end;
      std::uint32_t p[Config::kTileN / 8];
      const Rescale rescale = weigh(tile, n_block, blocks, rows, s, p, sums);
      Fresh fresh;
      const std::uint32_t v = v_word_ + stage_ * (sizeof(smem_.v[0]) / 16);
      // Not as a branch that joins: MMAs in flight behind a join make the compiler wait for them.
      if (Config::kScoresAhead && !last) {
        if (!ready) wait_for_next_stage();
        ptx::wgmma_fence();
        issue_values<Config>(fresh, p, v);
        multiply_keys(q, s, next_stage());
        rescale_sums(rescale, sums);
        ptx::wgmma_wait<1>();
        fence_registers(fresh);
        release_stage();
        promote(fresh, units, sums);
        continue;
      }
      if (last && end == end_of_blocks()) release_q();
      ptx::wgmma_fence();
      issue_values<Config>(fresh, p, v);
      if (!Config::kScoresAhead) ready = next_is_ready();
      rescale_sums(rescale, sums);
      ptx::wgmma_wait<0>();
      fence_registers(fresh);
      release_stage();
      promote(fresh, units, sums);
      if (Config::kScoresAhead || last) break;
      if (!ready) wait_for_stage();
      multiply_keys(q, s, stage_);
    }
  }
  /// Waits for S and makes P of it.
  __device__ Rescale weigh(const TileRecord& tile, int n_block, const BlockRange& blocks,
                           typename Rows::State& rows, typename Rows::Fragment& s,
                           std::uint32_t (&p)[Config::kTileN / 8], Sums& sums) {
    const typename Rows::Scales scales = wait_for_scores(tile, n_block, blocks, rows, s, sums);
    if constexpr (Config::kScores == Scores::kF16) {
      return Rows::run(scales, rows, s, p);
    } else {
      float rescale[2];
      if constexpr (kHidesLate) {
        if (__builtin_expect(scales.uniform, 1)) {
          Rows::run_uniform(scales, rows, s, p, rescale);
          return ptx::half2_pack(rescale[0], rescale[1]);
        }
        if (scales.partial) hide(tile, n_block, s);
      }
      Rows::run(scales, rows, s, p, rescale);
      return ptx::half2_pack(rescale[0], rescale[1]);
    }
  }

  __device__ static void rescale_sums(Rescale factors, Sums& sums) {
    if (__any_sync(~0u, factors != kNoRescale)) scale_sums<Config>(factors, sums);
  }

  /// Issues S of the stage's keys.
  __device__ void multiply_keys(const QOperand<Config>& q, typename Rows::Fragment& s,
                                int stage) const {
    ptx::wgmma_fence();
    issue_scores<Config>(s, q, k_word_ + stage * (sizeof(smem_.k[0]) / 16));
  }

  /// Waits for S and, but for kHidesLate, hides what is not visible; what the block's softmax
  /// multiplies.
  __device__ typename Rows::Scales wait_for_scores(const TileRecord& tile, int n_block,
                                                   const BlockRange& blocks,
                                                   typename Rows::State& rows,
                                                   typename Rows::Fragment& s, Sums& sums) {
    const bool partial = n_block < blocks.full_begin || n_block >= blocks.full_end;
    const typename Rows::Scales scales(
        smem_.scales[stage_], smem_.rows[buffer_], first_row(),
        {.partial = partial, .keeps_top = params_.row_max != nullptr});
    const int anchor = smem_.scales[stage_].anchor;
    ptx::wgmma_wait<0>();
    fence_registers(s);
    const bool hides = partial && !kHidesLate;
    if (__builtin_expect(hides || anchor != rows.anchor, 0)) {
      const int nan_groups = (anchor + kNanGroupUnit / 2) / kNanGroupUnit;
      if (hides) hide(tile, n_block, s);
      if (anchor != rows.anchor) {
        move_anchor(anchor - nan_groups * kNanGroupUnit, nan_groups, tile, n_block, rows, sums);
      }
    }
    if constexpr (kPackedTokens) {
      if (scales.kind != rows.kind) scale_sums<Config>(Rows::turn(scales, rows), sums);
    }
    return scales;
  }

  __device__ void hide(const TileRecord& tile, int n_block, typename Rows::Fragment& s) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) hide_scores(s, h, visible_columns(tile, n_block, h));
  }

  /// Of one of the thread's two rows, counted from its first column of the block.
  __device__ VisibleColumns visible_columns(const TileRecord& tile, int n_block, int h) const {
    const int lane = ptx::lane_now();
    const int row = 64 * part_ + 16 * warp_ + lane / 4 + 8 * h;
    const int column0 = n_block * Config::kTileN + 2 * (lane % 4);
    return {tile.band.first(row) - column0, tile.band.end_of(row, tile.seqlen_k) - column0};
  }

  /// A larger exponent of V came: O so far is worth less in its unit. Or a group of V is NaN: its
  /// payload has been replaced by zeros, so that it reaches the rows that see it and no others.
  __device__ void move_anchor(int anchor, int nan_groups, const TileRecord& tile, int n_block,
                              typename Rows::State& rows, Sums& sums) const {
    float factor[2];
    factor[0] = factor[1] = ptx::exp2_approx(static_cast<float>(rows.anchor - anchor));
    rows.anchor = anchor;
    if (nan_groups != 0) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (sees_nan(nan_groups, visible_columns(tile, n_block, h))) factor[h] = NAN;
      }
    }
    scale_sums<Config>(factor, sums);
  }

  __device__ bool sees_nan(int nan_groups, const VisibleColumns& visible) const {
    const int first = 2 * (ptx::lane_now() % 4);
    const int begin = visible.begin + first, end = visible.end + first;
    bool sees = false;
    if constexpr (Config::kTokenScales) {
      const StageScales<Config>& scales = smem_.scales[stage_];
      for (int key = begin < 0 ? 0 : begin; key < end && key < Config::kTileN; ++key) {
        sees = sees || (scales.nan_tokens[key / 32] >> key % 32 & 1) != 0;
      }
    } else {
      for (int g = 0; g < Config::kKGroups; ++g) {
        const int first = kScaleGroup * g;
        const bool overlaps = begin < first + kScaleGroup && end > first;
        sees = sees || ((nan_groups >> g & 1) != 0 && overlaps);
      }
    }
    return sees;
  }

  /// P V, all but its last kValueColumns added to O; those are in flight on return.
  __device__ void multiply_values(const std::uint32_t (&p)[Config::kTileN / 8],
                                  const float (&rescale)[2], Sums& o, Fresh& fresh) const {
    const std::uint32_t v = v_word_ + stage_ * (sizeof(smem_.v[0]) / 16);
    if constexpr (kLastHalf == 0) {
      ptx::wgmma_fence();
      issue_values<Config>(fresh, p, v);
    } else {
      Fresh first;
      ptx::wgmma_fence();
      issue_values<Config>(first, p, v);
      ptx::wgmma_wait<0>();
      fence_registers(first);
      promote(0, first, rescale, o);
      ptx::wgmma_fence();
      issue_values<Config>(fresh, p, v + Config::kValueColumns * Config::kTileN / 16);
    }
  }

  __device__ static void promote(int half, const Fresh& fresh, const float (&rescale)[2], Sums& o) {
#pragma unroll
    for (int i = 0; i < kFresh; ++i) {
      float& value = o[half * kFresh + i];
      value = fmaf(value, rescale[(i >> 1) & 1], fresh[i]);
    }
  }
  __device__ static void promote(const Fresh& fresh, std::uint32_t unit, Sums& o) {
#pragma unroll
    for (int i = 0; i < Config::kHeadDim / 4; ++i) o[i] = ptx::half2_fma(fresh[i], unit, o[i]);
  }

  const ForwardParams& params_;
  int part_;
  std::uint32_t base_;
  Plan& smem_;
  std::uint32_t k_word_, v_word_;  ///< of the first stage's descriptors
  int warp_;
  int stage_ = 0;
  unsigned phase_ = 0;
  int buffer_ = 0;
  unsigned buffer_phase_ = 0;
  unsigned rows_phase_ = 0;
};

}  // namespace mxfa::sm90::forward
