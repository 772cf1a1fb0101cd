#pragma once

#include "kernels/sm90/forward/config.h"
#include "kernels/sm90/forward/params.h"
#include "kernels/sm90/forward/softmax.cuh"
#include "kernels/sm90/forward/sums.cuh"

/// Half sums: O and row sums of a tile's segments of key blocks (segment_blocks()), in memory.
namespace mxfa::sm90::forward {

/// A half keeps 11 bits of a sum, which many key blocks wear away. So after a segment of them O is
/// laid aside as it is and begins anew, and so do row sums; as the tile ends all are added in FP32.
/// A warp does so only where it matters, but leak-free always, as its rows must not decide for each
/// other. A thread reads what it has written itself, in memory that is its own through the launch.
/// Rows of which one key has more than a quarter of a segment's sum, an attention sink, begin with
/// a maximum of their own too: E4M3 has few bits left for 2^-14 of such a key. That is decided by
/// each row.
template <class Config>
class FoldedSums {
 public:
  using State = typename Softmax<Config>::State;

  /// `thread`: of the warpgroup.
  __device__ FoldedSums(const ForwardParams& params, int part, int thread)
      : memory_(params.folded +
                (blockIdx.x * Config::kConsumers + part) * (kMostFolds * kFoldedBytes<Config>)),
        thread_(thread) {}

  /// Whether, by whole warps. What O loses is a part of O, what payload of P loses is a part of
  /// P V's terms: nothing to mind where those cancel so that O is small beside the row sum times V,
  /// whose magnitudes are some 1 in payload (mx/half_sums.h). `exponent`: sums_exponent().
  __device__ static bool matters(const State& rows, const typename Config::Sums& sums,
                                 int exponent) {
    if constexpr (Config::kTokenScales) return true;
    std::uint32_t magnitudes[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      magnitudes[i & 1] = ptx::half2_add(magnitudes[i & 1], sums[i] & 0x7FFF7FFFu);
    }
    const float unit = power_of_two(exponent) / Config::kHeadDim;
    bool some = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float o =
          over_quad(ptx::half2_low(magnitudes[h]) + ptx::half2_high(magnitudes[h])) * unit;
      const float sum = over_quad(rows.sum[h]);
      some = some || sum < kFewKeys || !(o <= kSmall * sum);
    }
    return __any_sync(~0u, some);
  }

  /// O and row sums as segment `index`; they become 0.
  __device__ void lay_aside(int index, State& rows, typename Config::Sums& sums) const {
    std::byte* const memory = memory_ + index * kFoldedBytes<Config>;
    auto* const quads = reinterpret_cast<uint4*>(memory) + thread_;
#pragma unroll
    for (int i = 0; i < kSums; i += 4) {
      __stcg(quads + i / 4 * 128, uint4{sums[i], sums[i + 1], sums[i + 2], sums[i + 3]});
      sums[i] = sums[i + 1] = sums[i + 2] = sums[i + 3] = 0;
    }
    __stcg(reinterpret_cast<float4*>(quads + kSums / 4 * 128),
           float4{rows.base[0], rows.base[1], rows.sum[0], rows.sum[1]});
    __stcg(reinterpret_cast<int*>(memory + (kSums / 4 + 1) * 2048) + thread_, rows.anchor);
    if constexpr (!Config::kTokenScales) restart(rows);
    rows.sum[0] = rows.sum[1] = 0.0f;
  }

  /// All that was laid aside joins `o` and the row sums.
  __device__ void add(int count, State& rows, float (&o)[Config::kHeadDim / 2]) const {
#pragma unroll 1
    for (int index = 0; index < count; ++index) {
      const std::byte* const memory = memory_ + index * kFoldedBytes<Config>;
      const auto* const quads = reinterpret_cast<const uint4*>(memory) + thread_;
      const float4 then = __ldcg(reinterpret_cast<const float4*>(quads + kSums / 4 * 128));
      const int anchor =
          __ldcg(reinterpret_cast<const int*>(memory + (kSums / 4 + 1) * 2048) + thread_);
      // Before all else, as their time is what this costs; leak-free has no registers for that.
      uint4 segment[kSums / 4];
      if constexpr (!Config::kTokenScales) load(quads, segment);
      const float worth = ptx::exp2_approx(static_cast<float>(anchor - rows.anchor));
      float keep[2], take[2];
      join_row(then.x, then.z, keep[0], take[0], rows.base[0], rows.sum[0]);
      join_row(then.y, then.w, keep[1], take[1], rows.base[1], rows.sum[1]);
      if (!Config::kTokenScales || __any_sync(~0u, keep[0] != 1.0f || keep[1] != 1.0f)) {
#pragma unroll
        for (int i = 0; i < 2 * kSums; ++i) o[i] *= keep[(i >> 1) & 1];
      }
      take[0] *= worth;
      take[1] *= worth;
#pragma unroll
      for (int i = 0; i < kSums; i += 4) {
        const uint4 quad = Config::kTokenScales ? __ldcg(quads + i / 4 * 128) : segment[i / 4];
        add_row(quad.x, take[0], o + 2 * i);
        add_row(quad.y, take[1], o + 2 * i + 2);
        add_row(quad.z, take[0], o + 2 * i + 4);
        add_row(quad.w, take[1], o + 2 * i + 6);
      }
    }
  }

 private:
  static constexpr int kSums = Config::kHeadDim / 4;
  static constexpr float kFewKeys = 4.0f * 256.0f;
  static constexpr float kSmall = 0.08f;

  __device__ static float over_quad(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
  }

  __device__ static void load(const uint4* quads, uint4 (&segment)[kSums / 4]) {
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i) segment[i] = __ldcg(quads + i * 128);
  }
  __device__ static void restart(State& rows) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (over_quad(rows.sum[h]) < kFewKeys) rows.base[h] = FLT_MAX;
    }
    if constexpr (Config::kScores == Scores::kF16) rows.bases = State::kNoBases;
  }
  /// What O of the row so far and of a segment are worth together.
  __device__ static void join_row(float base, float sum, float& keep, float& take, float& row_base,
                                  float& row_sum) {
    const float lowest = fminf(row_base, base);
    keep = ptx::exp2_approx(lowest - row_base);
    take = ptx::exp2_approx(lowest - base);
    row_base = lowest;
    row_sum = fmaf(row_sum, keep, sum * take);
  }
  __device__ static void add_row(std::uint32_t pair, float take, float* o) {
    o[0] = fmaf(ptx::half2_low(pair), take, o[0]);
    o[1] = fmaf(ptx::half2_high(pair), take, o[1]);
  }

  std::byte* memory_;
  int thread_;
};

}  // namespace mxfa::sm90::forward
