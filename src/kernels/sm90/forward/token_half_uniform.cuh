#pragma once

#include "kernels/sm90/forward/token_half_rows.cuh"

/// Blocks whose tokens all have the same exponents, and which all of a warpgroup's rows see: in
/// packed half z = fma(s, the query's factor * 2^(K's exponent), base + V's exponent), P = 2^z, and
/// one multiply-add a score.
namespace mxfa::sm90::forward {

template <class Config>
class UniformTokens : TokenHalfRows<Config> {
  using Base = TokenHalfRows<Config>;

 public:
  using typename Base::Fragment, typename Base::Scales, typename Base::State;

  /// The row sums follow the maxima, where any of the warp's moved; O is to.
  __device__ static Rescale run(const Scales& scales, State& rows, Fragment& s,
                                std::uint32_t (&p)[Config::kTileN / 8]) {
    const std::uint32_t key = scales.stage.key[0];
    const std::uint32_t factors = ptx::half2_mul(rows.factors, key);
    const std::uint32_t largest = largest_scores(s);
    if (scales.keeps_top) {
      rows.packed_top = ptx::half2_max(rows.packed_top, ptx::half2_mul(largest, key));
    }
    const std::uint32_t bases = ptx::half2_fma(largest, factors ^ 0x80008000u, kEight);
    Rescale rescale = kNoRescale;
    if (__any_sync(~0u, !rows.packable || ptx::half2_min(bases, rows.bases) != rows.bases)) {
      rescale = move_uniform_bases(scales, largest, factors, rows);
    }
    if (__builtin_expect(rows.packable, 1)) {
      run_packed_uniform(scales, factors, rows, s, p);
    } else {
      run_wide_uniform(scales, factors, rows, s, p);
    }
    return rescale;
  }

 private:
  /// Of the thread's columns.
  __device__ static std::uint32_t largest_scores(const Fragment& s) {
    std::uint32_t most[2][4];
#pragma unroll
    for (int i = 0; i < Config::kTileN / 4; ++i) {
      std::uint32_t& chain = most[i & 1][i / 8];
      chain = i % 8 < 2 ? s[i] : ptx::half2_max(chain, s[i]);
    }
    std::uint32_t row[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      row[h] = ptx::half2_max(ptx::half2_max(ptx::half2_max(most[h][0], most[h][1]), most[h][2]),
                              most[h][3]);
    }
    return both_rows(row);
  }
  /// `largest`: of the thread's columns. Rows that are not packed take their factor in FP32.
  __device__ static Rescale move_uniform_bases(const Scales& scales, std::uint32_t largest,
                                               std::uint32_t factors, State& rows) {
    largest = over_quad(largest);
    float most[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float score = half_of(largest, h);
      most[h] = kOffset - score * half_of(factors, h);
      if (!(most[h] >= kLeastUniformBase && most[h] <= kMostUniformBase)) {
        most[h] = kOffset - clamp(score * wide_factor(scales, h));
      }
    }
    return lower_bases(scales, most, rows);
  }
  __device__ static float wide_factor(const Scales& scales, int h) {
    return scales.factor(h) * ptx::half2_low(scales.stage.key[0]);
  }

  __device__ static void run_packed_uniform(const Scales& scales, std::uint32_t factors,
                                            State& rows, Fragment& s,
                                            std::uint32_t (&p)[Config::kTileN / 8]) {
    const std::uint32_t factor[2] = {of_row(factors, 0), of_row(factors, 1)};
    const std::uint32_t base[2] = {of_row(rows.bases, 0), of_row(rows.bases, 1)};
    std::uint32_t sum[2] = {0, 0};
#pragma unroll
    for (int four = 0; four < kEights / 4; ++four) {
      std::uint32_t* const e = s + 8 * four;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        e[i] = ptx::half2_exp2(ptx::half2_fma(e[i], factor[i & 1], base[i & 1]));
        sum[i & 1] = ptx::half2_add(e[i], sum[i & 1]);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        p[4 * four + h] = ptx::e4m3_from_half2<2>(e[h], e[h + 2]);
        p[4 * four + 2 + h] = ptx::e4m3_from_half2<2>(e[h + 4], e[h + 6]);
      }
    }
    const float unfold = ptx::half2_low(scales.stage.unfold[0]);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      rows.sum[h] = fmaf(ptx::half2_low(sum[h]) + ptx::half2_high(sum[h]), unfold, rows.sum[h]);
    }
  }

  /// The same where a row is not packed: that one in FP32.
  __device__ static void run_wide_uniform(const Scales& scales, std::uint32_t factors, State& rows,
                                          Fragment& s, std::uint32_t (&p)[Config::kTileN / 8]) {
    const bool packed[2] = {(rows.bases & 0xFFFFu) != kInfinity, rows.bases >> 16 != kInfinity};
    const float value = static_cast<float>(rows.kind);
    const float base[2] = {rows.base[0] + value, rows.base[1] + value};
    const float factor[2] = {wide_factor(scales, 0), wide_factor(scales, 1)};
    std::uint32_t sum[2] = {0, 0};
    float wide_sum[2] = {0.0f, 0.0f};
    each_pair(s, [&](int, std::uint32_t(&pair)[2]) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (packed[h]) {
          pair[h] =
              ptx::half2_exp2(ptx::half2_fma(pair[h], of_row(factors, h), of_row(rows.bases, h)));
          sum[h] = ptx::half2_add(pair[h], sum[h]);
          continue;
        }
        const float low = ptx::exp2_approx(clamp(half_of(pair[h], 0) * factor[h]) + base[h]);
        const float high = ptx::exp2_approx(clamp(half_of(pair[h], 1) * factor[h]) + base[h]);
        wide_sum[h] += low + high;
        pair[h] = ptx::half2_pack(low, high);
      }
    });
    payload_of_half(s, p);
    const float unfold = ptx::half2_low(scales.stage.unfold[0]);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      rows.sum[h] = fmaf(ptx::half2_low(sum[h]) + ptx::half2_high(sum[h]), unfold, rows.sum[h]);
      rows.sum[h] = fmaf(wide_sum[h], unfold, rows.sum[h]);
    }
  }

  static constexpr int kEights = Config::kTileN / 8;
  using Base::both_rows, Base::clamp, Base::half_of, Base::lower_bases, Base::of_row;
  using Base::kEight, Base::kInfinity, Base::kLeastUniformBase, Base::kMostUniformBase;
  using Base::over_quad;
};

}  // namespace mxfa::sm90::forward
