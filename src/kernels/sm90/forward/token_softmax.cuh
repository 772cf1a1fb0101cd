#pragma once

#include "kernels/sm90/forward/token_rows.cuh"

/// The softmax of the leak-free form, in which no two tokens share a scale. With z = s + V's
/// exponent: base = 8 - (running maximum of z), P' = 2^(z + base) goes to FP8, P' * 2^-exponent to
/// the row sum. A row's numbers depend on the keys that it sees and on nothing else: a block whose
/// tokens have the same exponents goes a shorter way only where all of the warpgroup's rows see it.
namespace mxfa::sm90::forward {

template <class Config>
class Softmax<Config, Scores::kF32, true> {
 public:
  using Fragment = float[Config::kTileN / 2];
  struct State : RowState {
    float top[2];  ///< by finish()
  };

  struct Scales : TokenBlock<Config> {
    float row[2];  ///< softmax_scale * log2(e) * 2^(exponent of the row)
    /// Rows that see only a part of the block must not take numbers that the others decide.
    bool uniform;
    bool partial;

    __device__ Scales(const StageScales<Config>& source, RowNumbers<Config>& rows, int first,
                      BlockUse use)
        : TokenBlock<Config>(source, rows, first, use),
          row{rows.factor[row_of(first, 0)], rows.factor[row_of(first, 1)]},
          uniform(source.uniform != 0 && !use.partial),
          partial(use.partial) {}
  };

  /// As a tile begins and ends; of the warp's 16 rows. One lane of each row's four keeps its top.
  __device__ static void begin(RowNumbers<Config>& numbers, int warp_row, State&) {
    if (quarter() != 0) return;
    for (int h = 0; h < 2; ++h) numbers.top[row_of(warp_row, h)] = -INFINITY;
  }
  __device__ static void finish(const RowNumbers<Config>& numbers, int warp_row, State& rows) {
    __syncwarp();  // lane 0 of four has written both, lane 1 stores the second
    if (quarter() > 1) return;
    for (int h = 0; h < 2; ++h) rows.top[h] = numbers.top[row_of(warp_row, h)];
  }

  __device__ static float row_max(const State& rows, int h) { return rows.top[h]; }
  __device__ static float whole_sum(const State&, int, float sum) { return sum; }

  /// A uniform block: one multiply-add a score.
  __device__ static void run_uniform(const Scales& scales, State& rows, Fragment& s,
                                     std::uint32_t (&p)[Config::kTileN / 8], float (&rescale)[2]) {
    const float key = scales.stage.pair[0].key[0], value = scales.stage.pair[0].value[0];
    float maximum[2];
    find_maxima(NoFactor(), s, maximum);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float scaled = maximum[h] * key;
      if (scales.keeps_top) scales.raise_top(h, scaled * scales.row[h]);
      maximum[h] = fmaf(scaled, scales.row[h], value);
    }
    raise_bases(rows, maximum, rescale);
    const float factor[2] = {key * scales.row[0], key * scales.row[1]};
    const float base[2] = {rows.base[0] + value, rows.base[1] + value};
    float sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < Config::kTileN / 2; ++i) {
      const int h = (i >> 1) & 1;
      s[i] = ptx::exp2_approx(fmaf(s[i], factor[h], base[h]));
      sum[h] += s[i];
      if (i % 8 == 7) payload_of(s + i - 7, p + i / 8 * 2);
    }
    const float unfold = scales.stage.unfold[0];
    rows.sum[0] = fmaf(rows.sum[0], rescale[0], sum[0] * unfold);
    rows.sum[1] = fmaf(rows.sum[1], rescale[1], sum[1] * unfold);
  }

  /// Any other one, whose hidden scores are -infinity.
  __device__ static void run(const Scales& scales, State& rows, Fragment& s,
                             std::uint32_t (&p)[Config::kTileN / 8], float (&rescale)[2]) {
    float maximum[2];
    if (scales.keeps_top) {
      scale_scores<true>(scales, s, maximum);
    } else {
      scale_scores<false>(scales, s, maximum);
    }
    raise_bases(rows, maximum, rescale);
    float sum[2] = {0.0f, 0.0f};
    const auto* const unfolds = reinterpret_cast<const float2*>(scales.stage.unfold) + quarter();
#pragma unroll
    for (int j = 0; j < Config::kTileN / 8; ++j) {
      const float2 unfold = unfolds[4 * j];
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
  /// Of raw scores.
  struct NoFactor {
    static constexpr int kGroups = 1;
    __device__ static float factor(int) { return 1.0f; }
  };

  /// Accumulators to z. The factors of keys are powers of two: one rounding.
  template <bool kTop>
  __device__ static void scale_scores(const Scales& scales, Fragment& s, float (&maximum)[2]) {
    float top[2] = {-INFINITY, -INFINITY};
    const auto* const pairs = scales.stage.pair + quarter();
#pragma unroll
    for (int j = 0; j < Config::kTileN / 8; ++j) {
      const auto pair = pairs[4 * j];
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
      if (kTop) scales.raise_top(h, quad_max(top[h]) * scales.row[h]);
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
