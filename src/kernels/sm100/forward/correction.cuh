#pragma once

#include "device/fp8.cuh"
#include "kernels/sm100/forward/roles.cuh"
#include "ptx/tcgen05.cuh"

/// The correction role.
namespace mxfa::sm100::forward {

/// One warpgroup, a thread a row of both streams: O *= rescale where a maximum moved, and at the
/// end of a tile O / row_sum to shared memory, LSE and row maximum to memory.
/// Waits on tile_full, message_full, o_full, out_empty; signals pv_ready, message_empty, out_full.
template <class Config>
class Correction {
 public:
  using Tmem = TmemPlan<Config::kHeadDim>;

  __device__ Correction(const ForwardParams& params, SmemPlan<Config>& smem)
      : params_(params),
        smem_(smem),
        barriers_(smem.barriers),
        tiles_(smem),
        row_(threadIdx.x % kTileM),
        tmem_(smem.tmem + (threadIdx.x / 32 % 4 << 21)) {}

  __device__ void run() {
    for (int i = 0; i < kStreams; ++i) warp_arrive(barriers_.pv_ready[i]);  // O is free
    TileRecord tile;
    while (tiles_.next(tile)) {
      for (int n = tile.n_begin; n <= tile.n_end; ++n) {
#pragma unroll
        for (int i = 0; i < kStreams; ++i) {
          if (n > tile.begin[i] && n < tile.end[i]) rescale(i);
          if (n == tile.end[i] && tile.has_rows(i)) finish(tile, i);
        }
      }
    }
  }

 private:
  __device__ void take_message(int stream) {
    wait(barriers_.message_full[stream], messages_[stream].parity());
    ++messages_[stream].count;
  }

  __device__ void rescale(int stream) {
    take_message(stream);
    const float factor = smem_.rescale[stream][row_];
    warp_arrive(barriers_.message_empty[stream]);
    // The message came after S of this step, whose commit covers the O GEMM before it.
    if (__any_sync(~0u, factor != 1.0f)) {
      ptx::tcgen05_fence_after();
      const std::uint32_t o = tmem_ + Tmem::o(stream).column;
#pragma unroll
      for (int c = 0; c < Config::kHeadDim; c += 16) {
        float x[16];
        ptx::tmem_load_16(o + c, x);
        ptx::tmem_wait_load(x);
#pragma unroll
        for (float& value : x) value *= factor;
        ptx::tmem_store_16(o + c, x);
      }
      ptx::tmem_wait_store();
    }
    ptx::tcgen05_fence_before();
    warp_arrive(barriers_.pv_ready[stream]);
  }

  __device__ void finish(const TileRecord& tile, int stream) {
    const bool seen = tile.end[stream] > tile.begin[stream];
    float sum = 0.0f, max = 0.0f, true_max = 0.0f;
    if (seen) {
      take_message(stream);
      sum = smem_.row_sum[stream][row_];
      max = smem_.row_max[stream][row_];
      true_max = Config::kOwnTrueMax ? smem_.true_max[stream][row_] : max;
      warp_arrive(barriers_.message_empty[stream]);
      wait(barriers_.o_full[stream], outputs_[stream].parity());
      ++outputs_[stream].count;
      ptx::tcgen05_fence_after();
    }
    wait(barriers_.out_empty[stream], stores_[stream].last_parity());
    ++stores_[stream].count;
    // The MMA takes P with its scale, the sum is of P as it was before.
    constexpr float kUnit = Config::kPScale == PScale::kConstant ? 256.0f : 1.0f;
    const float inverse = sum != 0.0f ? kUnit / sum : 0.0f;
#pragma unroll
    for (int c = 0; c < Config::kHeadDim; c += 16) {
      float o[16];
      if (seen) {
        ptx::tmem_load_16(tmem_ + Tmem::o(stream).column + c, o);
        ptx::tmem_wait_load(o);
      }
      // A row that saw no key has a sum of 0, and whatever O.
#pragma unroll
      for (float& value : o) value = sum != 0.0f ? value * inverse : 0.0f;
      stage(stream, c, o);
    }
    if (seen) {
      ptx::tcgen05_fence_before();
      warp_arrive(barriers_.pv_ready[stream]);  // O is free for the next tile
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    warp_arrive(barriers_.out_full[stream]);
    store_row(tile, stream, sum, max, true_max);
  }

  /// 16 columns from `column` on as BF16, where the copy engine's swizzle wants them.
  __device__ void stage(int stream, int column, const float (&o)[16]) const {
    std::uint8_t* const box = smem_.out[stream] + column / Config::kOutBox * kTileM * 128;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float* const x = o + 8 * i;
      const uint4 chunk{device::encode_bf16_pair(x[0], x[1]), device::encode_bf16_pair(x[2], x[3]),
                        device::encode_bf16_pair(x[4], x[5]), device::encode_bf16_pair(x[6], x[7])};
      const int index = column % Config::kOutBox / 8 + i;
      *reinterpret_cast<uint4*>(box + row_ * 128 + ((index ^ (row_ % 8)) * 16)) = chunk;
    }
  }

  __device__ void store_row(const TileRecord& tile, int stream, float sum, float max,
                            float true_max) const {
    const int row = tile.row0 + kTileM * stream + row_;
    if (row >= tile.seqlen_q) return;
    constexpr float kLn2 = 0.693147182f;
    const std::int64_t at = tile.head * params_.lse_head_stride + tile.o_begin + row;
    const bool seen = sum != 0.0f;
    const float base = p_offset(Config::kPScale) - (max == -INFINITY ? 0.0f : max);
    params_.lse[at] = seen ? (__log2f(sum) - base) * kLn2 : -INFINITY;
    if (params_.row_max != nullptr) params_.row_max[at] = seen ? true_max : -INFINITY;
  }

  const ForwardParams& params_;
  SmemPlan<Config>& smem_;
  Barriers<Config>& barriers_;
  TileReader<Config, true> tiles_;
  int row_;
  std::uint32_t tmem_;  ///< of this warp's lanes
  Turn messages_[kStreams];
  Turn outputs_[kStreams];
  Turn stores_[kStreams];
};

}  // namespace mxfa::sm100::forward
