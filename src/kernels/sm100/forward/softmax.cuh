#pragma once

#include "attention/mask.h"
#include "device/barrier.cuh"
#include "kernels/sm100/forward/exp2.cuh"
#include "kernels/sm100/forward/roles.cuh"
#include "mx/e8m0.h"
#include "ptx/packed_f32.cuh"
#include "ptx/tcgen05.cuh"

/// The softmax role.
namespace mxfa::sm100::forward {

/// One warpgroup of a stream, a thread a row: S to registers, row maximum, P in MXFP8 to the
/// columns of S that it came from, row sum. What the correction needs (how far the maximum moved;
/// at the end row_sum and row_max) goes through shared memory; the wait for that to be free stands
/// right before the next message, behind the step's own work.
/// Waits on tile_full, s_full, message_empty; signals s_read, pv_ready, message_full.
template <class Config>
class Softmax {
 public:
  using Tmem = TmemPlan<Config::kHeadDim>;

  __device__ Softmax(const ForwardParams& params, SmemPlan<Config>& smem, int stream)
      : params_(params),
        smem_(smem),
        barriers_(smem.barriers),
        tiles_(smem),
        stream_(stream),
        lane_row_(threadIdx.x % kTileM),
        s_(smem.tmem + Tmem::s(stream).column + (threadIdx.x / 32 % 4 << 21)) {}

  __device__ void run() {
    TileRecord tile;
    while (tiles_.next(tile)) run_tile(tile);
  }

 private:
  struct KeySpan {
    int begin, end;
  };
  struct Row {
    float max = -INFINITY;       ///< what P is taken against, log2 units
    float true_max = -INFINITY;  ///< of all scores: not behind, where max may be
    float sum = 0.0f;
  };
  /// The keys that this thread's row sees. A row behind the sequence does as the last one.
  __device__ KeySpan visible_keys(const TileRecord& tile) const {
    const int row = min(tile.row0 + kTileM * stream_ + lane_row_, tile.seqlen_q - 1);
    const attention::KeyRange keys =
        attention::visible_keys(params_.shape.mask, tile.seqlen_q, tile.seqlen_k, row);
    return {static_cast<int>(keys.begin), static_cast<int>(keys.end)};
  }

  __device__ void run_tile(const TileRecord& tile) {
    const int begin = tile.begin_of(stream_), end = tile.end_of(stream_);
    if (begin < end) run_blocks(tile, begin, end);
    stages_ += 2 * (tile.n_end - tile.n_begin);
  }

  __device__ void run_blocks(const TileRecord& tile, int begin, int end) {
    const KeySpan keys = visible_keys(tile);
    Row row;
    // A stream may have passed over whole tiles, and a parity tells only the last two phases of a
    // stage apart: S tells that the stage's phase before this one is over.
    if constexpr (Config::kLeakFree) wait(barriers_.s_full[stream_], scores_.parity());
    for (int n = begin; n < end; ++n) {
      if constexpr (Config::kLeakFree) share_folds(stages_ + 2 * (n - tile.n_begin) + 1);
      run_step(tile, n, {keys.begin - n * kTileN, keys.end - n * kTileN}, n == begin, row);
    }
    wait(barriers_.message_empty[stream_], scores_.parity());
    smem_.row_sum[stream_][lane_row_] = row.sum;
    smem_.row_max[stream_][lane_row_] = row.max;
    if constexpr (Config::kOwnTrueMax) smem_.true_max[stream_][lane_row_] = row.true_max;
    warp_arrive(barriers_.message_full[stream_]);
  }

  /// `keys` that the row sees, counted from the step's first one; `n`: the step, for the probe.
  __device__ void run_step(const TileRecord& tile, int n, const KeySpan& keys, bool first,
                           Row& row) {
    wait(barriers_.s_full[stream_], scores_.parity());
    ++scores_.count;
    ptx::tcgen05_fence_after();
    float x[kTileN];
    float top[kGroups];  // of each 32 keys; NaN where all are
    load_scores(x, top);
    ptx::tcgen05_fence_before();
    warp_arrive(barriers_.s_read[stream_]);
    if (__any_sync(~0u, keys.begin > 0 || keys.end < kTileN)) hide_keys(keys, x, top);
    const float block = block_maximum(top) * params_.scale_log2;
    if constexpr (Config::kOwnTrueMax) row.true_max = fmaxf(row.true_max, block);
    if constexpr (Config::kLeakFree) fold_values(x, top);
    const float rescale = move_maximum(Config::kLeakFree ? block_maximum(top) : block, row);
    if (!first) {
      wait(barriers_.message_empty[stream_], scores_.last_parity());
      smem_.rescale[stream_][lane_row_] = rescale;
      warp_arrive(barriers_.message_full[stream_]);
    }
    const float safe_max = row.max == -INFINITY ? 0.0f : row.max;
    const float base = p_offset(Config::kPScale) - safe_max;
    make_p(tile, n, base, top, x);
    row.sum = fmaf(row.sum, rescale, sum_of(x));
  }

  __device__ void load_scores(float (&x)[kTileN], float (&top)[kGroups]) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 1030
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      ptx::tmem_load_32_max(s_ + kScaleGroup * g, x + kScaleGroup * g, top[g]);
    }
    ptx::tmem_wait_load(x);
#pragma unroll
    for (float& most : top) asm volatile("" : "+f"(most));
#else
#pragma unroll
    for (int c = 0; c < kTileN; c += 32) ptx::tmem_load_32(s_ + c, x + c);
    ptx::tmem_wait_load(x);
    group_maxima(x, top);
#endif
  }

  __device__ static void hide_keys(const KeySpan& keys, float (&x)[kTileN], float (&top)[kGroups]) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const std::uint32_t visible =
          bits_below(keys.end - kScaleGroup * g) & ~bits_below(keys.begin - kScaleGroup * g);
#pragma unroll
      for (int i = 0; i < kScaleGroup; ++i) {
        float& score = x[kScaleGroup * g + i];
        score = (visible >> i & 1) != 0 ? score : -INFINITY;
      }
    }
    group_maxima(x, top);
  }
  __device__ static std::uint32_t bits_below(int bit) {
    return bit <= 0 ? 0u : bit >= 32 ? ~0u : (1u << bit) - 1;
  }

  __device__ static void group_maxima(const float (&x)[kTileN], float (&top)[kGroups]) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const float* const group = x + kScaleGroup * g;
      float a = fmaxf(group[0], group[1]), b = fmaxf(group[2], group[3]);
#pragma unroll
      for (int i = 4; i < kScaleGroup; i += 4) {
        a = ptx::max3(a, group[i], group[i + 1]);
        b = ptx::max3(b, group[i + 2], group[i + 3]);
      }
      top[g] = fmaxf(a, b);
    }
  }

  __device__ static float block_maximum(const float (&top)[kGroups]) {
    return ptx::max3(fmaxf(top[0], top[1]), top[2], top[3]);
  }

  /// V's exponents of the keys of a step to where all threads of the stream read them. `stage`
  /// counts the tiles of K and V that the CTA has had.
  __device__ void share_folds(unsigned stage) {
    wait(barriers_.kv_full[stage % Config::kStages], stage / Config::kStages & 1);
    const std::uint8_t scale = smem_.sf_kv[stage % Config::kStages][mx::byte_in_atom(lane_row_, 0)];
    // A NaN key has NaN codes, so any exponent serves.
    const std::uint8_t code = scale == mx::kE8M0Nan ? 0 : scale;
    const int buffer = scores_.count & 1;
    smem_.fold[stream_][buffer][lane_row_] = static_cast<float>(code - mx::kE8M0Bias);
    smem_.unfold[stream_][buffer][lane_row_] = mx::inverse_e8m0(code);
    asm volatile("bar.sync %0, 128;" ::"r"(1 + stream_) : "memory");
  }

  /// Four numbers of all threads. In the order of the program: ahead of it they would cost
  /// registers.
  __device__ static void load_quad(std::uint32_t address, ptx::F32x2 (&pairs)[2]) {
    asm volatile("ld.shared.v2.b64 {%0, %1}, [%2];"
                 : "=l"(pairs[0].bits), "=l"(pairs[1].bits)
                 : "r"(address));
  }

  /// Scores to log2 units, V's exponents on top: what the maximum is taken of.
  __device__ void fold_values(float (&x)[kTileN], float (&top)[kGroups]) const {
    const std::uint32_t fold = shared_address(smem_.fold[stream_][(scores_.count - 1) & 1]);
    const ptx::F32x2 scale = ptx::pack_f32(params_.scale_log2, params_.scale_log2);
#pragma unroll
    for (int i = 0; i < kTileN; i += 4) {
      ptx::F32x2 v[2];
      load_quad(fold + 4 * i, v);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& low = x[i + 2 * j];
        float& high = x[i + 2 * j + 1];
        ptx::unpack_f32(ptx::fma_f32x2(ptx::pack_f32(low, high), scale, v[j]), low, high);
      }
    }
    group_maxima(x, top);
  }

  /// Returns what O and the row sum so far are to be multiplied by. `block`: the step's maximum.
  __device__ static float move_maximum(float block, Row& row) {
    const float old = row.max;
    float moved = fmaxf(old, block);
    if (Config::kLazy && moved - old <= kRescaleThreshold) moved = old;
    row.max = moved;
    return moved == old ? 1.0f : exp2_fast(old - moved);
  }

  /// x becomes P, which goes in MXFP8 to tensor memory.
  __device__ void make_p(const TileRecord& tile, int n, float base, const float (&top)[kGroups],
                         float (&x)[kTileN]) {
    std::uint32_t scales = 0;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      float* const group = x + kScaleGroup * g;
      exp2_group(Config::kLeakFree ? 1.0f : params_.scale_log2, base, group);
      std::uint32_t codes[kScaleGroup / 4];
      const std::uint32_t scale = quantize(base, top[g], group, codes);
      scales |= scale << (8 * g);
      ptx::tmem_store_8(s_ + Tmem::p(0).column - Tmem::s(0).column + 8 * g, codes);
      if constexpr (Config::kProbe) probe(tile, n, g, scale, codes);
    }
    if constexpr (Config::kPScale != PScale::kConstant) {
      auto* const atom = reinterpret_cast<std::uint32_t*>(smem_.sf_p[stream_]);
      atom[mx::byte_in_atom(lane_row_, 0) / 4] = scales;
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    ptx::tmem_wait_store();
    ptx::tcgen05_fence_before();
    warp_arrive(barriers_.pv_ready[stream_]);
  }

  /// 32 values of P to codes; returns their scale. `top` is their largest score.
  __device__ std::uint32_t quantize(float base, float top, const float* p,
                                    std::uint32_t (&codes)[kScaleGroup / 4]) const {
    if constexpr (Config::kPScale == PScale::kConstant) {
#pragma unroll
      for (int i = 0; i < kScaleGroup / 4; ++i) {
        codes[i] = ptx::e4m3_quad(p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3]);
      }
      return kConstantScale;
    }
    const float amax = Config::kPScale == PScale::kBlockAmax
                           ? largest(p)
                           : exp2_fast(fmaf(top, params_.scale_log2, base));
    const std::uint32_t scale = mx::scale_from_amax<mx::E4M3>(amax, ScaleRule::kRoundUp);
    const float inverse = mx::inverse_e8m0(static_cast<std::uint8_t>(scale));
    const ptx::F32x2 factor = ptx::pack_f32(inverse, inverse);
#pragma unroll
    for (int i = 0; i < kScaleGroup / 4; ++i) {
      float q[4];
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        ptx::unpack_f32(ptx::mul_f32x2(ptx::pack_f32(p[4 * i + j], p[4 * i + j + 1]), factor), q[j],
                        q[j + 1]);
      }
      codes[i] = ptx::e4m3_quad(q[0], q[1], q[2], q[3]);
    }
    return scale;
  }

  __device__ static float largest(const float* p) {
    float a = ptx::max3_nan(p[0], p[1], p[2]), b = ptx::max3_nan(p[3], p[4], p[5]);
#pragma unroll
    for (int i = 6; i < kScaleGroup - 2; i += 4) {
      a = ptx::max3_nan(a, p[i], p[i + 1]);
      b = ptx::max3_nan(b, p[i + 2], p[i + 3]);
    }
    return ptx::max3_nan(a, b, ptx::max3_nan(p[30], p[31], p[31]));
  }

  /// Of P as it was before V's exponents.
  __device__ float sum_of(const float (&p)[kTileN]) const {
    ptx::F32x2 sums[4];
#pragma unroll
    for (int i = 0; i < kTileN; i += 4) {
      ptx::F32x2 unfold[2];
      if constexpr (Config::kLeakFree) {
        load_quad(shared_address(smem_.unfold[stream_][(scores_.count - 1) & 1]) + 4 * i, unfold);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        ptx::F32x2& sum = sums[i / 2 % 4 + j];
        const ptx::F32x2 values = ptx::pack_f32(p[i + 2 * j], p[i + 2 * j + 1]);
        if constexpr (Config::kLeakFree) {
          sum = i < 8 ? ptx::mul_f32x2(values, unfold[j]) : ptx::fma_f32x2(values, unfold[j], sum);
        } else {
          sum = i < 8 ? values : ptx::add_f32x2(sum, values);
        }
      }
    }
    float low, high;
    ptx::unpack_f32(
        ptx::add_f32x2(ptx::add_f32x2(sums[0], sums[1]), ptx::add_f32x2(sums[2], sums[3])), low,
        high);
    return low + high;
  }

  __device__ void probe(const TileRecord& tile, int n, int group, std::uint32_t scale,
                        const std::uint32_t (&codes)[kScaleGroup / 4]) const {
    const int row = tile.row0 + kTileM * stream_ + lane_row_;
    if (row >= tile.seqlen_q) return;
    const Probe& out = params_.probe;
    const std::int64_t at =
        (tile.head * out.rows + tile.o_begin + row) * out.pitch + n * kTileN + kScaleGroup * group;
#pragma unroll
    for (int i = 0; i < kScaleGroup / 4; ++i) {
      *reinterpret_cast<std::uint32_t*>(out.codes + at + 4 * i) = codes[i];
    }
    out.scales[at / kScaleGroup] = static_cast<std::uint8_t>(scale);
  }

  const ForwardParams& params_;
  SmemPlan<Config>& smem_;
  Barriers<Config>& barriers_;
  TileReader<Config, true> tiles_;
  int stream_;
  int lane_row_;
  std::uint32_t s_;      ///< of this warp's lanes
  unsigned stages_ = 0;  ///< tiles of K and V of the work tiles before
  /// A tile sends as many messages as it has steps, each step but the first one, and one behind
  /// them: so this counts messages as well.
  Turn scores_;
};

}  // namespace mxfa::sm100::forward
