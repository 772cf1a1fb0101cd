#pragma once

#include "kernels/sm90/forward/epilogue.cuh"
#include "kernels/sm90/forward/load.cuh"
#include "kernels/sm90/forward/mma.cuh"
#include "kernels/sm90/forward/softmax.cuh"
#include "kernels/sm90/forward/split.cuh"

/// The consumer role.
namespace mxfa::sm90::forward {

/// Key blocks that 64 rows work on: the visible ones, and those that need no mask.
struct BlockRange {
  int begin, end;
  int full_begin, full_end;
};

/// One warpgroup, 64 rows: S of a key block, its softmax, PV into a fresh accumulator (the FP8
/// accumulator keeps 13 bits), O = O * rescale + fresh. Three such groups in turn keep the tensor
/// cores busy without an order among them.
/// Waits on q_full, full; signals q_empty, empty; owns O and the rows' state.
template <class Config>
class Consumer {
 public:
  using Plan = SmemPlan<Config>;
  using Rows = Softmax<Config>;

  /// Addresses come out of a reduction so that the compiler keeps them in uniform registers.
  __device__ Consumer(const ForwardParams& params, Plan& smem, int warpgroup)
      : params_(params),
        smem_(smem),
        part_(static_cast<int>(__reduce_or_sync(~0u, static_cast<unsigned>(warpgroup)))),
        base_(__reduce_or_sync(~0u, shared_address(&smem))),
        warp_(threadIdx.x / 32 % 4),
        lane_(threadIdx.x % 32) {}

  __device__ void run() {
    while (true) {
      ptx::mbarrier_wait(at(offsetof(Plan, q_full), buffer_, 8), buffer_phase_);
      if (smem_.tile[buffer_].valid == 0) return;
      run_tile(smem_.tile[buffer_]);
    }
  }

 private:
  __device__ std::uint32_t at(std::size_t member, int index, std::size_t size) const {
    return base_ + static_cast<std::uint32_t>(member) + index * static_cast<std::uint32_t>(size);
  }

  __device__ BlockRange blocks_of(const TileRecord& tile) const {
    using namespace attention;
    const Mask& mask = params_.shape.mask;
    const int row0 = tile.m_block * Config::kTileM + 64 * part_;
    int row1 = row0 + 64;
    if (row1 > tile.seqlen_q) row1 = tile.seqlen_q;
    const KeyRange any = visible_span(mask, tile.seqlen_q, tile.seqlen_k, row0, row1);
    if (any.empty()) return {tile.n_end, tile.n_end, 0, 0};
    const KeyRange first = visible_keys(mask, tile.seqlen_q, tile.seqlen_k, row0);
    const KeyRange last = visible_keys(mask, tile.seqlen_q, tile.seqlen_k, row1 - 1);
    constexpr int kN = Config::kTileN;
    BlockRange blocks;
    blocks.begin = static_cast<int>(any.begin / kN);
    blocks.end = static_cast<int>((any.end + kN - 1) / kN);
    blocks.full_begin = static_cast<int>((last.begin + kN - 1) / kN);
    blocks.full_end = first.empty() || last.empty() ? 0 : static_cast<int>(first.end / kN);
    return blocks;
  }

  __device__ void hide_keys(const TileRecord& tile, int n_block, typename Rows::Fragment& s) const {
    const int row = tile.m_block * Config::kTileM + 64 * part_ + 16 * warp_ + lane_ / 4;
    const int column0 = n_block * Config::kTileN + 2 * (lane_ % 4);
    VisibleColumns visible[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const attention::KeyRange keys =
          attention::visible_keys(params_.shape.mask, tile.seqlen_q, tile.seqlen_k, row + 8 * h);
      visible[h] = {static_cast<int>(keys.begin) - column0, static_cast<int>(keys.end) - column0};
    }
    Rows::hide(s, visible);
  }

  __device__ void run_tile(const TileRecord& tile) {
    const BlockRange blocks = blocks_of(tile);
    RowState rows;
    float o[Config::kHeadDim / 2];
#pragma unroll
    for (float& value : o) value = 0.0f;
    const QOperand<Config> q(
        at(offsetof(Plan, q), buffer_, sizeof(smem_.q[0])) + part_ * 64 * Config::kHeadDim, warp_,
        lane_);
    bool ready = false;
    for (int n_block = tile.n_begin; n_block < tile.n_end; ++n_block) {
      const std::uint32_t full = at(offsetof(Plan, full), stage_, 8);
      if (!ready) ptx::mbarrier_wait(full, phase_);
      ready = n_block >= blocks.begin && n_block < blocks.end
                  ? run_block(tile, n_block, blocks, q, rows, o)
                  : pass_block();
    }
    if (tile.parts == 1 ||
        PartMerger<Config>(params_, tile, part_).run(rows, o, smem_.merges[part_])) {
      store_rows<Config>(params_, tile, rows, o,
                         tile.m_block * Config::kTileM + 64 * part_ + 16 * warp_, lane_);
    }
    __syncwarp();
    if (lane_ == 0) ptx::mbarrier_arrive(at(offsetof(Plan, q_empty), buffer_, 8));
    if (++buffer_ == Config::kQBuffers) {
      buffer_ = 0;
      buffer_phase_ ^= 1;
    }
  }

  /// Whether the next stage is full already: asked for ahead, since even a yes takes long.
  __device__ bool next_is_ready() {
    int stage = stage_ + 1;
    unsigned phase = phase_;
    if (stage == Config::kStages) {
      stage = 0;
      phase ^= 1;
    }
    return ptx::mbarrier_try_wait(at(offsetof(Plan, full), stage, 8), phase);
  }
  __device__ void release_stage() {
    __syncwarp();
    if (lane_ == 0) ptx::mbarrier_arrive(at(offsetof(Plan, empty), stage_, 8));
    if (++stage_ == Config::kStages) {
      stage_ = 0;
      phase_ ^= 1;
    }
  }
  __device__ bool pass_block() {
    release_stage();
    return false;
  }

  __device__ bool run_block(const TileRecord& tile, int n_block, const BlockRange& blocks,
                            const QOperand<Config>& q, RowState& rows,
                            float (&o)[Config::kHeadDim / 2]) {
    std::uint32_t p[Config::kTileN / 8];
    float rescale[2];
    {
      typename Rows::Fragment s;  // in here: an accumulator that outlives the block would be kept
      ptx::wgmma_fence();
      issue_scores<Config>(s, q, at(offsetof(Plan, k), stage_, sizeof(smem_.k[0])));
      const typename Rows::Scales scales(smem_.scales[stage_], 2 * part_ + warp_ / 2);
      ptx::wgmma_wait<0>();
      fence_registers(s);
      if (n_block < blocks.full_begin || n_block >= blocks.full_end) hide_keys(tile, n_block, s);
      Rows::run(scales, rows, s, p, rescale);
    }
    const std::uint32_t v = at(offsetof(Plan, v), stage_, sizeof(smem_.v[0]));
    bool ready = false;
#pragma unroll
    for (int half = 0; half < Config::kHeadDim / Config::kValueColumns; ++half) {
      constexpr int kRegisters = Config::kValueColumns / 2;
      float fresh[kRegisters];
      ptx::wgmma_fence();
      issue_values<Config>(fresh, p, v + half * Config::kValueColumns * Config::kTileN);
      const bool last = (half + 1) * Config::kValueColumns == Config::kHeadDim;
      if (last) ready = next_is_ready();
      ptx::wgmma_wait<0>();
      fence_registers(fresh);
      if (last) release_stage();
#pragma unroll
      for (int i = 0; i < kRegisters; ++i) {
        float& value = o[half * kRegisters + i];
        value = fmaf(value, rescale[(i >> 1) & 1], fresh[i]);
      }
    }
    return ready;
  }

  const ForwardParams& params_;
  Plan& smem_;
  int part_;
  std::uint32_t base_;
  int warp_;
  int lane_;
  int stage_ = 0;
  unsigned phase_ = 0;
  int buffer_ = 0;
  unsigned buffer_phase_ = 0;
};

}  // namespace mxfa::sm90::forward
