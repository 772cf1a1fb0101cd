#pragma once

#include "device/fp8.cuh"
#include "kernels/sm100/forward/mxfp8_output.cuh"
#include "kernels/sm100/forward/roles.cuh"
#include "ptx/tcgen05.cuh"

/// The correction role.
namespace mxfa::sm100::forward {

/// One warpgroup, a thread a row of both streams: O *= rescale where a maximum moved, and at the
/// end of a tile O / row_sum to shared memory (BF16) or memory (MXFP8), LSE and row maximum to
/// memory.
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
    for (int i = 0; i < kStreams; ++i) {
      if (ptx::elect_one()) arrive(barriers_.pv_ready[i]);  // O is free
    }
    while (const TileRecord* const tile = tiles_.hold()) {
      const int begin[kStreams] = {tile->begin[0], tile->begin[1]};
      const int end[kStreams] = {tile->end[0], tile->end[1]};
      const int n_end = tile->n_end;
      for (int n = tile->n_begin; n <= n_end; ++n) {
#pragma unroll
        for (int i = 0; i < kStreams; ++i) {
          if (n > begin[i] && n < end[i]) rescale(i);
          if (n == end[i] && tile->has_rows(i)) finish(*tile, i);
        }
      }
      tiles_.release();
    }
  }

 private:
  /// What O is divided by. A row that saw no key has a sum of 0.
  struct Divisor {
    bool stream_seen;
    bool row_seen;
    float inverse;
  };

  __device__ void take_message(int stream) {
    wait(barriers_.message_full[stream], messages_.parity(stream));
    messages_.advance(stream);
  }

  __device__ void rescale(int stream) {
    take_message(stream);
    const float factor = smem_.rescale[stream][recomputed(row_)];
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
    const int lane_row = recomputed(row_);
    if (seen) {
      take_message(stream);
      sum = smem_.row_sum[stream][lane_row];
      max = smem_.row_max[stream][lane_row];
      true_max = Config::kOwnTrueMax ? smem_.true_max[stream][lane_row] : max;
      warp_arrive(barriers_.message_empty[stream]);
      wait(barriers_.o_full[stream], outputs_.parity(stream));
      outputs_.advance(stream);
      ptx::tcgen05_fence_after();
    }
    // The MMA takes P with its scale, the sum is of P as it was before.
    constexpr float kUnit = Config::kPScale == PScale::kConstant ? 256.0f : 1.0f;
    const Divisor divisor{seen, sum != 0.0f, kUnit / sum};
    const bool mxfp8 = params_.o_mxfp8.codes != nullptr;
    if (mxfp8) {
      store_codes(tile, stream, lane_row, divisor);
    } else {
      wait(barriers_.out_empty[stream], stores_.last_parity(stream));
      stores_.advance(stream);
#pragma unroll
      for (int c = 0; c < Config::kHeadDim; c += 16) {
        float o[16];
        load_columns(stream, c, divisor, o);
        stage(stream, lane_row, c, o);
      }
    }
    if (seen) {
      ptx::tmem_wait_load();
      ptx::tcgen05_fence_before();
      warp_arrive(barriers_.pv_ready[stream]);  // O is free for the next tile
    }
    if (!mxfp8) {
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      warp_arrive(barriers_.out_full[stream]);
    }
    store_row(tile, tile.row0 + kTileM * stream + lane_row, sum, max, true_max);
  }

  /// O of 16 columns, divided by the row sum. What saw no key has whatever O. To read registers of
  /// a load needs no wait (PTX 9.7.16.6.4.5).
  __device__ void load_columns(int stream, int column, const Divisor& divisor,
                               float (&o)[16]) const {
    if (divisor.stream_seen) ptx::tmem_load_16(tmem_ + Tmem::o(stream).column + column, o);
#pragma unroll
    for (float& value : o) value = divisor.row_seen ? value * divisor.inverse : 0.0f;
  }

  __device__ void store_codes(const TileRecord& tile, int stream, int lane_row,
                              const Divisor& divisor) const {
    const int row = tile.row0 + kTileM * stream + lane_row;
#pragma unroll 1  // or numbers of several parts live at once
    for (int part = 0; kScaleGroup * part < params_.columns; ++part) {
      Mxfp8Output output(params_.o_mxfp8, tile, row, part);
      float o[16];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        load_columns(stream, kScaleGroup * part + 16 * half, divisor, o);
        if constexpr (Config::kProbe) probe(tile, row, kScaleGroup * part + 16 * half, o);
        output.see(o);
      }
      output.find_scale();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        load_columns(stream, kScaleGroup * part + 16 * half, divisor, o);
        output.store(half, params_.columns, o);
      }
    }
  }

  __device__ void probe(const TileRecord& tile, int row, int column, const float (&o)[16]) const {
    if (row >= tile.seqlen_q) return;
    float* const out =
        params_.probe.o +
        ((tile.o_begin + row) * params_.shape.num_heads + tile.head) * params_.columns;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if (column + i < params_.columns) out[column + i] = o[i];
    }
  }

  /// 16 columns from `column` on as BF16, where the copy engine's swizzle wants them.
  __device__ void stage(int stream, int lane_row, int column, const float (&o)[16]) const {
    std::uint8_t* const box = smem_.out[stream] + column / Config::kOutBox * kTileM * 128;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float* const x = o + 8 * i;
      const uint4 chunk{device::encode_bf16_pair(x[0], x[1]), device::encode_bf16_pair(x[2], x[3]),
                        device::encode_bf16_pair(x[4], x[5]), device::encode_bf16_pair(x[6], x[7])};
      const int index = column % Config::kOutBox / 8 + i;
      *reinterpret_cast<uint4*>(box + lane_row * 128 + ((index ^ (lane_row % 8)) * 16)) = chunk;
    }
  }

  __device__ void store_row(const TileRecord& tile, int row, float sum, float max,
                            float true_max) const {
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
  StreamTurns messages_;
  StreamTurns outputs_;
  StreamTurns stores_;
};

}  // namespace mxfa::sm100::forward
