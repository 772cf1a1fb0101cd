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
    float top[2] = {-INFINITY, -INFINITY};  ///< largest visible s
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

  __device__ static void hide(Fragment& s, const VisibleColumns (&visible)[2]) {
    hide_scores(s, visible);
  }
  __device__ static float row_max(const State& rows, int h) { return rows.top[h]; }

  __device__ static void run(const Scales& scales, State& rows, Fragment& s,
                             std::uint32_t (&p)[Config::kTileN / 8], float (&rescale)[2]) {
    float maximum[2];
    scale_scores(scales, rows, s, maximum);
    raise_bases(rows, maximum, rescale);
    float sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int j = 0; j < Config::kTileN / 8; ++j) {
      const float2 unfold = pair_of(scales.stage.unfold, j);
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
  /// Of the thread's columns 8 j + 2 pair and the one beside it.
  __device__ static float2 pair_of(const float (&values)[Config::kTileN], int j) {
    const int pair = static_cast<int>(threadIdx.x) % 4;
    return *reinterpret_cast<const float2*>(values + 8 * j + 2 * pair);
  }

  /// Accumulators to z. The factors of keys are powers of two: one rounding.
  __device__ static void scale_scores(const Scales& scales, State& rows, Fragment& s,
                                      float (&maximum)[2]) {
    float top[2] = {-INFINITY, -INFINITY};
    maximum[0] = maximum[1] = -INFINITY;
#pragma unroll
    for (int j = 0; j < Config::kTileN / 8; ++j) {
      const float2 key = pair_of(scales.stage.key, j), value = pair_of(scales.stage.value, j);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int h = i >> 1;
        float& z = s[4 * j + i];
        const float raw = z * ((i & 1) == 0 ? key.x : key.y);
        z = fmaf(raw, scales.row[h], (i & 1) == 0 ? value.x : value.y);
        top[h] = fmaxf(top[h], raw);
        maximum[h] = fmaxf(maximum[h], z);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      maximum[h] = quad_max(maximum[h]);
      rows.top[h] = fmaxf(rows.top[h], quad_max(top[h]) * scales.row[h]);
    }
  }
};

}  // namespace mxfa::sm90::forward
