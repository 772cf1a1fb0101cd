#pragma once

#include <cfloat>

#include "device/fp8.cuh"
#include "kernels/sm90/common/half_exponential.h"
#include "kernels/sm90/forward/config.h"
#include "kernels/sm90/forward/sums.cuh"
#include "ptx/half2.cuh"

/// Scores to payload of P, and what the softmax keeps of each row. With s in log2 units,
/// base = 8 - (running maximum of s), P' = 2^(s + base + fold) goes to FP8 and P' * 2^-fold to the
/// row sum; the running maximum therefore becomes 256, an exact code.
namespace mxfa::sm90::forward {

/// Rows quad and quad + 8 of a warp's 16, by index 0 and 1.
struct RowState {
  float base[2] = {FLT_MAX, FLT_MAX};
  float sum[2] = {0.0f, 0.0f};  ///< of this thread's columns
  int anchor = kNoAnchor;       ///< exponent that O is scaled by
};

/// Half scores: the same bases in half where the packed path serves all rows of the warp.
struct PackedRowState : RowState {
  static constexpr std::uint32_t kNoBases = 0x7C007C00;
  std::uint32_t bases = kNoBases;  ///< infinite: the next block finds them anew

  /// Of rows put together of parts, from `base` alone: what a part's own were must not count, as
  /// another part may come last in another run.
  __device__ void find_bases() {
    bases = ptx::half2_pack(fabsf(base[0]) <= 8.0f ? base[0] : INFINITY,
                            fabsf(base[1]) <= 8.0f ? base[1] : INFINITY);
  }
};

/// What a call of the softmax is told of its block.
struct BlockUse {
  bool partial;    ///< some rows of the warpgroup do not see all of it
  bool keeps_top;  ///< rows' largest scores are asked for; the recipe's maxima are these elsewhere
};

/// max(a, b, c) of FP32 by bits: right where the largest is positive, else some negative number.
__device__ inline float positive_max(float a, float b, float c) {
  return __int_as_float(__vimax3_s32(__float_as_int(a), __float_as_int(b), __float_as_int(c)));
}

__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

/// Largest scores of both rows times their factors, by all lanes of a warp. Three-input integer
/// maxima cost half of FP32 ones. Where a row's maximum is not positive they mislead, and the warp
/// takes the plain way.
template <class Factors, int kCount>
__device__ inline void find_maxima(const Factors& factors, const float (&s)[kCount],
                                   float (&maximum)[2]) {
  constexpr int kScores = kCount / Factors::kGroups;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    maximum[h] = -INFINITY;
#pragma unroll
    for (int g = 0; g < Factors::kGroups; ++g) {
      const float* const e = s + kScores * g + 2 * h;
      float most[2] = {e[0], e[4]};  // two chains
#pragma unroll
      for (int i = 0; i < kScores; i += 4) {
        float& chain = most[(i >> 2) & 1];
        chain = positive_max(chain, e[i], e[i + 1]);
      }
      maximum[h] = fmaxf(maximum[h], positive_max(most[0], most[1], most[1]) * factors.factor(g));
    }
    maximum[h] = quad_max(maximum[h]);
  }
  if (__builtin_expect(__all_sync(~0u, maximum[0] > 0.0f && maximum[1] > 0.0f), 1)) return;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    maximum[h] = -INFINITY;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (((i >> 1) & 1) == h) maximum[h] = fmaxf(maximum[h], s[i] * factors.factor(i / kScores));
    }
    maximum[h] = quad_max(maximum[h]);
  }
}

/// Moves the bases to the new maxima; `rescale` is what O and the sums so far are worth after it.
__device__ inline void raise_bases(RowState& rows, const float (&maximum)[2], float (&rescale)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float base = fminf(rows.base[h], kOffset - maximum[h]);
    rescale[h] = ptx::exp2_approx(base - rows.base[h]);
    rows.base[h] = base;
  }
}

/// Eight FP32 values of each of two rows, a group of 16 keys, as payload of P.
__device__ inline void payload_of(const float* e, std::uint32_t* p) {
  p[0] = device::encode_e4m3_quad(e[0], e[1], e[4], e[5]);
  p[1] = device::encode_e4m3_quad(e[2], e[3], e[6], e[7]);
}

/// Scores of both rows for each of the thread's column pairs, in a loop that stays one: what is
/// rare must not cost the usual block registers.
template <int kCount, class Body>
__device__ inline void each_pair(std::uint32_t (&s)[kCount], const Body& body) {
#pragma unroll 1
  for (int j = 0; j < kCount / 2; ++j) {
    std::uint32_t pair[2] = {s[0], s[1]};
    body(j, pair);
#pragma unroll
    for (int i = 2; i < kCount; ++i) s[i - 2] = s[i];
    s[kCount - 2] = pair[0];
    s[kCount - 1] = pair[1];
  }
}
/// All of P in half as payload, behind it.
template <int kCount>
__device__ inline void payload_of_half(const std::uint32_t (&e)[2 * kCount],
                                       std::uint32_t (&p)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const std::uint32_t* const first = e + 4 * (i / 2) + i % 2;
    p[i] = ptx::e4m3_from_half2<1>(first[0], first[2]);
  }
}

template <class Config, Scores kScores = Config::kScores, bool kTokenScales = Config::kTokenScales>
class Softmax;

/// FP32 scores.
template <class Config>
class Softmax<Config, Scores::kF32, false> {
 public:
  using Fragment = float[Config::kTileN / 2];
  using State = RowState;

  /// What the usual block needs is read while the scores are computed.
  struct Scales {
    const StageScales<Config>& stage;
    int q_group;
    float factor;  ///< of the first group
    bool uniform;

    __device__ Scales(const StageScales<Config>& source, const RowNumbers<Config>&, int warp_row,
                      BlockUse)
        : stage(source),
          q_group(warp_row / kScaleGroup),
          factor(__uint_as_float(source.factor[q_group][0])),
          uniform(source.packing == Packing::kUniform) {}
  };

  __device__ static float row_max(const State& rows, int h) { return kOffset - rows.base[h]; }
  __device__ static float whole_sum(const State&, int, float sum) { return sum; }

  __device__ static void run(const Scales& scales, RowState& rows, Fragment& s,
                             std::uint32_t (&p)[Config::kTileN / 8], float (&rescale)[2]) {
    if (__builtin_expect(scales.uniform, 1)) {
      run(UniformFactors{scales.factor}, rows, s, p, rescale);
    } else {
      run(GroupFactors{scales.stage, scales.q_group}, rows, s, p, rescale);
    }
  }

 private:
  /// As of half scores: one factor, no folds.
  struct UniformFactors {
    static constexpr int kGroups = 1;
    float all;

    __device__ float factor(int) const { return all; }
    __device__ float folded(float base, int) const { return base; }
    __device__ float add(float part, float sum, int) const { return part + sum; }
  };
  /// Read where they are used, for want of registers.
  struct GroupFactors {
    static constexpr int kGroups = Config::kKGroups;
    const StageScales<Config>& stage;
    int q_group;

    __device__ float factor(int g) const { return __uint_as_float(stage.factor[q_group][g]); }
    __device__ float folded(float base, int g) const {
      return base + __uint_as_float(stage.fold[g]);
    }
    __device__ float add(float part, float sum, int g) const {
      return fmaf(part, __uint_as_float(stage.unfold[g]), sum);
    }
  };

  template <class Factors>
  __device__ static void run(const Factors& factors, RowState& rows, Fragment& s,
                             std::uint32_t (&p)[Config::kTileN / 8], float (&rescale)[2]) {
    constexpr int kScores = Config::kTileN / 2 / Factors::kGroups;  // of a group
    float maximum[2];
    find_maxima(factors, s, maximum);
    raise_bases(rows, maximum, rescale);
    float sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int g = 0; g < Factors::kGroups; ++g) {
      const float factor = factors.factor(g);
      const float base[2] = {factors.folded(rows.base[0], g), factors.folded(rows.base[1], g)};
      float part[2] = {0.0f, 0.0f};
#pragma unroll
      for (int j = 0; j < kScores; j += 8) {
        float* const e = s + kScores * g + j;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const int h = (i >> 1) & 1;
          e[i] = ptx::exp2_approx(fmaf(e[i], factor, base[h]));
          part[h] += e[i];
        }
        payload_of(e, p + (kScores * g + j) / 4);
      }
      sum[0] = factors.add(part[0], sum[0], g);
      sum[1] = factors.add(part[1], sum[1], g);
    }
    rows.sum[0] = fmaf(rows.sum[0], rescale[0], sum[0]);
    rows.sum[1] = fmaf(rows.sum[1], rescale[1], sum[1]);
  }
};

/// Scores in half: packed maxima, one HFMA2 for two scores, sums in half chains of 16. The packed
/// path serves while bases lie within +-8 (maxima from 0 to 16), where 2^(s + base) of the maximum
/// rounds to 256 exactly; elsewhere scores are widened.
template <class Config>
class Softmax<Config, Scores::kF16, false> {
 public:
  using Fragment = std::uint32_t[Config::kTileN / 4];
  using State = PackedRowState;

  /// What the usual block needs is read while the scores are computed.
  struct Scales {
    const StageScales<Config>& stage;
    const std::uint32_t (&shared_factors)[Config::kKGroups];
    std::uint32_t factors[Config::kKGroups];
    Packing packing;

    __device__ Scales(const StageScales<Config>& source, const RowNumbers<Config>&, int warp_row,
                      BlockUse)
        : stage(source),
          shared_factors(source.factor[warp_row / kScaleGroup]),
          packing(source.packing) {
#pragma unroll
      for (int g = 0; g < Config::kKGroups; ++g) factors[g] = shared_factors[g];
    }
  };

  __device__ static float row_max(const State& rows, int h) { return kOffset - rows.base[h]; }
  /// With what exponentials in half have cut off in the mean, of all but the largest P'.
  __device__ static float whole_sum(const State& rows, int h, float sum) {
    constexpr float kLargest = 256.0f;
    const bool packed = (rows.bases >> (16 * h) & 0xFFFFu) != (State::kNoBases & 0xFFFFu);
    return packed ? fmaf(sum - kLargest, kHalfExp2Cut, sum) : sum;
  }

  /// The row sums follow the maxima, where any of the warp's moved; O is to.
  __device__ static Rescale run(const Scales& scales, State& rows, Fragment& s,
                                std::uint32_t (&p)[Config::kTileN / 8]) {
    const bool uniform = scales.packing == Packing::kUniform;
    const UniformFactors one{scales.factors[0]};
    const GroupFactors groups{scales.factors, scales.stage};
    // All that decides comes first: a path that gave up would keep scores and payload apart.
    const std::uint32_t bases = __builtin_expect(uniform, 1) ? one.bases(s) : groups.bases(s);
    Rescale rescale = kNoRescale;
    if (__any_sync(~0u, ptx::half2_min(bases, rows.bases) != rows.bases)) {
      rescale = move_bases(bases, rows);
    }
    const bool packed = rows.bases != State::kNoBases && scales.packing != Packing::kNone;
    if (__builtin_expect(packed && uniform, 1)) {
      run_packed(one, rows, s, p);
    } else if (packed) {
      run_packed(groups, rows, s, p);
    } else {
      rescale = ptx::half2_mul(rescale, run_wide(scales, rows, s, p));
    }
    return rescale;
  }

 private:
  static constexpr std::uint32_t kEight = 0x48004800, kMinusEight = 0xC800C800;

  /// Of a block whose groups share one factor, and whose V has the anchor's exponent.
  struct UniformFactors {
    std::uint32_t all;

    __device__ std::uint32_t factor(int) const { return all; }
    __device__ std::uint32_t folded(std::uint32_t bases, int) const { return bases; }
    __device__ std::uint32_t add(std::uint32_t part, std::uint32_t sum, int) const {
      return ptx::half2_add(part, sum);
    }
    /// 8 - the largest score of each row among the thread's.
    __device__ std::uint32_t bases(const Fragment& s) const {
      std::uint32_t row[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        std::uint32_t group[Config::kKGroups];
#pragma unroll
        for (int g = 0; g < Config::kKGroups; ++g) group[g] = group_max(s, g, h);
        row[h] = max_of(group);
      }
      return ptx::half2_fma(both_rows(row), all ^ 0x80008000u, kEight);
    }
  };
  struct GroupFactors {
    const std::uint32_t (&factors)[Config::kKGroups];
    const StageScales<Config>& stage;

    __device__ std::uint32_t factor(int g) const { return factors[g]; }
    __device__ std::uint32_t folded(std::uint32_t bases, int g) const {
      return ptx::half2_add(bases, stage.fold[g]);
    }
    __device__ std::uint32_t add(std::uint32_t part, std::uint32_t sum, int g) const {
      return ptx::half2_fma(part, stage.unfold[g], sum);
    }
    __device__ std::uint32_t bases(const Fragment& s) const {
      std::uint32_t row[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        std::uint32_t group[Config::kKGroups];
#pragma unroll
        for (int g = 0; g < Config::kKGroups; ++g) {
          // Rounded once, so that the maximum's P' is exact: a maximum itself may lack another bit.
          group[g] = ptx::half2_fma(group_max(s, g, h), factors[g], kMinusEight);
        }
        row[h] = max_of(group);
      }
      return both_rows(row) ^ 0x80008000u;
    }
  };

  /// Maximum of a thread's eight scores of one row and group, in pairs.
  __device__ static std::uint32_t group_max(const Fragment& s, int g, int h) {
    const std::uint32_t* const e = s + 8 * g + h;
    return ptx::half2_max(ptx::half2_max(ptx::half2_max(e[0], e[2]), e[4]), e[6]);
  }

  template <int kCount>
  __device__ static std::uint32_t max_of(const std::uint32_t (&values)[kCount]) {
    std::uint32_t most = values[0];
#pragma unroll
    for (int i = 1; i < kCount; ++i) most = ptx::half2_max(most, values[i]);
    return most;
  }
  /// Maxima of two rows in pairs of columns as a pair of rows.
  __device__ static std::uint32_t both_rows(const std::uint32_t (&row)[2]) {
    return ptx::half2_max(__byte_perm(row[0], row[1], 0x5410), __byte_perm(row[0], row[1], 0x7632));
  }

  /// min(base, 8 - maximum) of both rows, rounded to half; `bases`: of the thread's columns.
  __device__ static Rescale move_bases(std::uint32_t bases, State& rows) {
    bases = ptx::half2_min(bases, __shfl_xor_sync(~0u, bases, 1));
    bases = ptx::half2_min(bases, __shfl_xor_sync(~0u, bases, 2));
    bases = ptx::half2_min(bases, ptx::half2_pack(rows.base[0], rows.base[1]));
    const bool packable = __all_sync(~0u, __vmaxu2(bases & 0x7FFF7FFFu, kEight) == kEight);
    rows.bases = packable ? bases : State::kNoBases;
    if (!packable) return kNoRescale;  // run_wide() moves them
    const float base[2] = {ptx::half2_low(bases), ptx::half2_high(bases)};
    float rescale[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      rescale[h] = ptx::exp2_approx(base[h] - rows.base[h]);
      rows.base[h] = base[h];
      rows.sum[h] *= rescale[h];
    }
    return ptx::half2_pack(rescale[0], rescale[1]);
  }

  template <class Factors>
  __device__ static void run_packed(const Factors& factors, State& rows, Fragment& s,
                                    std::uint32_t (&p)[Config::kTileN / 8]) {
    std::uint32_t sum[2] = {0, 0};
#pragma unroll
    for (int g = 0; g < Config::kKGroups; ++g) {
      const std::uint32_t folded = factors.folded(rows.bases, g);
      const std::uint32_t of_row[2] = {ptx::half2_broadcast_low(folded),
                                       ptx::half2_broadcast_high(folded)};
      std::uint32_t* const e = s + 8 * g;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        e[i] = ptx::half2_exp2(ptx::half2_fma(e[i], factors.factor(g), of_row[i & 1]));
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const std::uint32_t part =
            ptx::half2_add(ptx::half2_add(e[h], e[h + 2]), ptx::half2_add(e[h + 4], e[h + 6]));
        sum[h] = factors.add(part, sum[h], g);
        p[4 * g + h] = ptx::e4m3_from_half2<0>(e[h], e[h + 2]);
        p[4 * g + 2 + h] = ptx::e4m3_from_half2<0>(e[h + 4], e[h + 6]);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      rows.sum[h] += ptx::half2_low(sum[h]) + ptx::half2_high(sum[h]);
    }
  }

  __device__ static Rescale run_wide(const Scales& scales, State& rows, Fragment& s,
                                     std::uint32_t (&p)[Config::kTileN / 8]) {
    float maximum[2], rescale[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      maximum[h] = -INFINITY;
#pragma unroll
      for (int g = 0; g < Config::kKGroups; ++g) {
        const std::uint32_t most = group_max(s, g, h);
        maximum[h] = fmaxf(maximum[h], fmaxf(ptx::half2_low(most), ptx::half2_high(most)) *
                                           ptx::half2_low(scales.factors[g]));
      }
      maximum[h] = quad_max(maximum[h]);
    }
    raise_bases(rows, maximum, rescale);
    rows.bases = State::kNoBases;
    float sum[2] = {0.0f, 0.0f};
    each_pair(s, [&](int j, std::uint32_t(&pair)[2]) {
      const int g = 8 * j / kScaleGroup;
      const float factor = ptx::half2_low(scales.shared_factors[g]);
      const float fold = ptx::exp2_approx(ptx::half2_low(scales.stage.fold[g]));
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float low = ptx::exp2_approx(fmaf(ptx::half2_low(pair[h]), factor, rows.base[h]));
        const float high = ptx::exp2_approx(fmaf(ptx::half2_high(pair[h]), factor, rows.base[h]));
        sum[h] += low + high;
        pair[h] = ptx::half2_mul(ptx::half2_pack(low, high), ptx::half2_pack(fold, fold));
      }
    });
    payload_of_half(s, p);
    rows.sum[0] = fmaf(rows.sum[0], rescale[0], sum[0]);
    rows.sum[1] = fmaf(rows.sum[1], rescale[1], sum[1]);
    return ptx::half2_pack(rescale[0], rescale[1]);
  }
};

}  // namespace mxfa::sm90::forward
