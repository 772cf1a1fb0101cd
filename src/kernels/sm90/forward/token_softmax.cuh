#pragma once

#include "kernels/sm90/forward/softmax.cuh"

/// The softmax of the leak-free form, in which no two tokens share a scale. With z = s + V's
/// exponent: base = 8 - (running maximum of z), P' = 2^(z + base) goes to FP8, P' * 2^-exponent to
/// the row sum. A row's numbers depend on the keys that it sees and on nothing else.
namespace mxfa::sm90::forward {

template <class Config>
class Softmax<Config, Scores::kF32, true> {
 public:
  using Fragment = float[Config::kTileN / 2];
  struct State : RowState {
    float top[2] = {-INFINITY, -INFINITY};  ///< largest visible s, where `keeps_top`
    bool keeps_top = false;
  };

  struct Scales {
    const StageScales<Config>& stage;
    float row[2];  ///< softmax_scale * log2(e) * 2^(exponent of the row)

    __device__ Scales(const StageScales<Config>& source, const float* row_factors, int warp_row)
        : stage(source) {
      const int quad = static_cast<int>(threadIdx.x) % 32 / 4;
      row[0] = row_factors[warp_row + quad];
      row[1] = row_factors[warp_row + quad + 8];
    }
  };

  __device__ static float row_max(const State& rows, int h) { return rows.top[h]; }

  __device__ static void run(const Scales& scales, State& rows, Fragment& s,
                             std::uint32_t (&p)[Config::kTileN / 8], float (&rescale)[2]) {
    float maximum[2];
    if (rows.keeps_top) {
      scale_scores<true>(scales, rows, s, maximum);
    } else {
      scale_scores<false>(scales, rows, s, maximum);
    }
    raise_bases(rows, maximum, rescale);
    float sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int j = 0; j < Config::kTileN / 8; ++j) {
      const float2 unfold = *reinterpret_cast<const float2*>(scales.stage.unfold + 2 * index(j));
      float* const e = s + 4 * j;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int h = i >> 1;
        e[i] = ptx::exp2_approx(e[i] + rows.base[h]);
        sum[h] = fmaf(e[i], (i & 1) == 0 ? unfold.x : unfold.y, sum[h]);
      }
      if ((j & 1) != 0) payload_of(e - 4, p + j - 1);
    }
    rows.sum[0] = fmaf(rows.sum[0], rescale[0], sum[0]);
    rows.sum[1] = fmaf(rows.sum[1], rescale[1], sum[1]);
  }

 private:
  /// Of the pair of columns 8 j + 2 * (lane % 4).
  __device__ static int index(int j) { return 4 * j + static_cast<int>(threadIdx.x) % 4; }

  /// Accumulators to z. The factors of keys are powers of two: one rounding.
  template <bool kTop>
  __device__ static void scale_scores(const Scales& scales, State& rows, Fragment& s,
                                      float (&maximum)[2]) {
    float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int j = 0; j < Config::kTileN / 8; ++j) {
      const auto pair = scales.stage.pair[index(j)];
      float* const z = s + 4 * j;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float scaled = z[i] * pair.key[i & 1];
        if (kTop) top[i >> 1] = fmaxf(top[i >> 1], scaled);
        z[i] = fmaf(scaled, scales.row[i >> 1], pair.value[i & 1]);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float* const pair_of_row = z + 2 * h;
        maximum[h] =
            positive_max(j == 0 ? pair_of_row[0] : maximum[h], pair_of_row[0], pair_of_row[1]);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      maximum[h] = quad_max(maximum[h]);
      if (kTop) rows.top[h] = fmaxf(rows.top[h], quad_max(top[h]) * scales.row[h]);
    }
    if (__builtin_expect(__all_sync(~0u, maximum[0] > 0.0f && maximum[1] > 0.0f), 1)) return;
    maximum[0] = maximum[1] = -INFINITY;
#pragma unroll
    for (int i = 0; i < Config::kTileN / 2; ++i) {
      float& most = maximum[(i >> 1) & 1];
      most = fmaxf(most, s[i]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) maximum[h] = quad_max(maximum[h]);
  }
};

}  // namespace mxfa::sm90::forward
