#pragma once

#include "kernels/sm90/forward/token_half_rows.cuh"
#include "kernels/sm90/forward/token_half_uniform.cuh"

/// The softmax of the leak-free form with half scores: token_softmax.cuh's numbers in packed half.
/// z = fma(s * 2^(K's exponent), the query's factor, V's exponent) is a half, and so is z + base.
///
/// A row's numbers depend on the keys that it sees and on nothing else, bit for bit, although paths
/// are taken by whole warps: a number that one path computes otherwise than another belongs to a
/// token or a row of which that is a property (odd tokens, rows that are not packed). A block whose
/// tokens have the same exponents costs one multiply-add a score, but rows that see only a part of
/// it must not take numbers that the others decide: it is a *uniform* one only where all of the
/// warpgroup's rows see all of it.
namespace mxfa::sm90::forward {

template <class Config>
class Softmax<Config, Scores::kF16, true> : public TokenHalfRows<Config> {
  using Base = TokenHalfRows<Config>;

 public:
  using typename Base::Fragment, typename Base::Scales, typename Base::State;

  /// The row sums follow the maxima, where any of the warp's moved; O is to.
  __device__ static Rescale run(const Scales& scales, State& rows, Fragment& s,
                                std::uint32_t (&p)[Config::kTileN / 8]) {
    return scales.kind != kByToken ? UniformTokens<Config>::run(scales, rows, s, p)
                                   : run_by_token(scales, rows, s, p);
  }

 private:
  static constexpr int kEights = Config::kTileN / 8;
  using Base::both_rows, Base::clamp, Base::half_of, Base::lower_bases, Base::of_row;
  using Base::kEight, Base::kInfinity, Base::kMinusInfinities, Base::kMinusOne, Base::kMost;
  using Base::over_quad;

  __device__ static Rescale run_by_token(const Scales& scales, State& rows, Fragment& s,
                                         std::uint32_t (&p)[Config::kTileN / 8]) {
    const bool odd = scales.stage.has_odd != 0;
    std::uint32_t maxima;
    if (__builtin_expect(odd || rows.odd, 0)) {
      if (scales.keeps_top) raise_tops(scales, s, rows);
      maxima = scale_odd(scales, rows, s);
    } else if (scales.keeps_top) {
      maxima = scale<true>(scales, rows, s);
    } else {
      maxima = scale<false>(scales, rows, s);
    }
    const std::uint32_t bases = ptx::half2_fma(maxima, kMinusOne, kEight);
    Rescale rescale = kNoRescale;
    if (__any_sync(~0u, ptx::half2_min(bases, rows.bases) != rows.bases)) {
      rescale = move_bases(scales, maxima, rows);
    }
    if (__builtin_expect(rows.packable && !odd, 1)) {
      run_packed(scales, rows, s, p);
    } else {
      run_odd(scales, rows, s, p);
    }
    return rescale;
  }

  /// Words of columns 32 * four + 8 * i + 2 * quarter and the next, by i.
  __device__ static uint4 words(const std::uint32_t (&of)[Config::kTileN / 2], int four,
                                int quarter) {
    return *reinterpret_cast<const uint4*>(of + token_word(4 * four, quarter));
  }
  __device__ static std::uint32_t part(const uint4& words, int i) {
    return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
  }
  /// `x` in place of half i of the pair, where it replaces it.
  __device__ static std::uint32_t select(bool replaces, int i, float x, std::uint32_t pair) {
    if (!replaces) return pair;
    const std::uint32_t both = ptx::half2_pack(x, x);
    return i == 0 ? (pair & 0xFFFF0000u) | (both & 0xFFFFu)
                  : (pair & 0xFFFFu) | (both & 0xFFFF0000u);
  }
  /// A column pair of the thread in the ways that exponents are needed.
  struct Tokens {
    const StageScales<Config>& stage;
    int first;

    __device__ Tokens(const StageScales<Config>& source, int eight)
        : stage(source), first(8 * eight + 2 * quarter()) {}
    __device__ bool odd(int i) const {
      return (stage.odd_tokens[first / 32] >> (first % 32 + i) & 1) != 0;
    }
    __device__ float value(int i) const {
      return static_cast<float>(stage.value_exponent[first + i] - kTokenAnchor<Config>);
    }
    /// A score in FP32.
    __device__ float score(std::uint32_t pair, int i, float factor) const {
      return half_of(pair, i) * power_of_two(stage.key_exponent[first + i] - kKeyShift) * factor;
    }
  };

  /// Accumulators to z; the maxima of the thread's columns.
  template <bool kTop>
  __device__ static std::uint32_t scale(const Scales& scales, State& rows, Fragment& s) {
    std::uint32_t most[2], top[2];
    const int quarter = forward::quarter();
#pragma unroll
    for (int four = 0; four < kEights / 4; ++four) {
      const uint4 key = words(scales.stage.key, four, quarter);
      const uint4 value = words(scales.stage.value, four, quarter);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          std::uint32_t& z = s[2 * (4 * four + i) + h];
          const std::uint32_t scaled = ptx::half2_mul(z, part(key, i));
          if (kTop) top[h] = four == 0 && i == 0 ? scaled : ptx::half2_max(top[h], scaled);
          z = ptx::half2_fma(scaled, of_row(rows.factors, h), part(value, i));
          most[h] = four == 0 && i == 0 ? z : ptx::half2_max(most[h], z);
        }
      }
    }
    if (kTop) rows.packed_top = ptx::half2_max(rows.packed_top, both_rows(top));
    return both_rows(most);
  }

  /// The same where a token or a row is odd. Odd tokens become s, without V's exponent.
  __device__ static std::uint32_t scale_odd(const Scales& scales, const State& rows, Fragment& s) {
    std::uint32_t most[2] = {kMinusInfinities, kMinusInfinities};
    const float factor[2] = {scales.factor(0), scales.factor(1)};
    each_pair(s, [&](int j, std::uint32_t(&pair)[2]) {
      const Tokens tokens(scales.stage, j);
      const int word = token_word(j, quarter());
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const std::uint32_t scaled = ptx::half2_mul(pair[h], scales.stage.key[word]);
        std::uint32_t z = ptx::half2_fma(scaled, of_row(rows.factors, h), scales.stage.value[word]);
        std::uint32_t out = z;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const bool odd = tokens.odd(i);
          const float score = clamp(tokens.score(pair[h], i, factor[h]));
          const float with_value = clamp(score + tokens.value(i));
          z = select(odd || factor[h] > kMost, i, with_value, z);
          out = select(odd || factor[h] > kMost, i, odd ? score : with_value, out);
        }
        pair[h] = out;
        most[h] = ptx::half2_max(most[h], z);
      }
    });
    return both_rows(most);
  }

  /// Before the scores are scaled.
  __device__ static void raise_tops(const Scales& scales, Fragment& s, State& rows) {
    std::uint32_t most[2] = {kMinusInfinities, kMinusInfinities};
    float top[2] = {-INFINITY, -INFINITY};
    const float factor[2] = {scales.factor(0), scales.factor(1)};
    each_pair(s, [&](int j, std::uint32_t(&pair)[2]) {
      const Tokens tokens(scales.stage, j);
      const std::uint32_t key = scales.stage.key[token_word(j, quarter())];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        std::uint32_t scaled = ptx::half2_mul(pair[h], key);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (tokens.odd(i)) top[h] = fmaxf(top[h], tokens.score(pair[h], i, factor[h]));
          scaled = select(tokens.odd(i), i, -INFINITY, scaled);
        }
        most[h] = ptx::half2_max(most[h], scaled);
      }
    });
    rows.packed_top = ptx::half2_max(rows.packed_top, both_rows(most));
#pragma unroll
    for (int h = 0; h < 2; ++h) scales.raise_top(h, quad_max(top[h]));
  }

  /// `maxima`: of the thread's columns.
  __device__ static Rescale move_bases(const Scales& scales, std::uint32_t maxima, State& rows) {
    maxima = over_quad(maxima);
    const float most[2] = {kOffset - clamp(half_of(maxima, 0)),
                           kOffset - clamp(half_of(maxima, 1))};
    return lower_bases(scales, most, rows);
  }
  __device__ static void run_packed(const Scales& scales, State& rows, Fragment& s,
                                    std::uint32_t (&p)[Config::kTileN / 8]) {
    const std::uint32_t base[2] = {ptx::half2_broadcast_low(rows.bases),
                                   ptx::half2_broadcast_high(rows.bases)};
    std::uint32_t sum[2] = {0, 0};
    const int quarter = forward::quarter();
#pragma unroll
    for (int four = 0; four < kEights / 4; ++four) {
      const uint4 unfold = words(scales.stage.unfold, four, quarter);
      std::uint32_t* const e = s + 8 * four;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        e[i] = ptx::half2_exp2(ptx::half2_add(e[i], base[i & 1]));
        sum[i & 1] = ptx::half2_fma(e[i], part(unfold, i / 2), sum[i & 1]);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        p[4 * four + h] = ptx::e4m3_from_half2<0>(e[h], e[h + 2]);
        p[4 * four + 2 + h] = ptx::e4m3_from_half2<0>(e[h + 4], e[h + 6]);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) rows.sum[h] += ptx::half2_low(sum[h]) + ptx::half2_high(sum[h]);
  }

  /// The same where a token is odd or a row is not packed: these in FP32.
  __device__ static void run_odd(const Scales& scales, State& rows, Fragment& s,
                                 std::uint32_t (&p)[Config::kTileN / 8]) {
    const std::uint32_t base[2] = {ptx::half2_broadcast_low(rows.bases),
                                   ptx::half2_broadcast_high(rows.bases)};
    const bool packed[2] = {(rows.bases & 0xFFFFu) != kInfinity, rows.bases >> 16 != kInfinity};
    std::uint32_t sum[2] = {0, 0};
    float odd_sum[2] = {0.0f, 0.0f};
    each_pair(s, [&](int j, std::uint32_t(&pair)[2]) {
      const Tokens tokens(scales.stage, j);
      const std::uint32_t unfold = scales.stage.unfold[token_word(j, quarter())];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        std::uint32_t e = ptx::half2_exp2(ptx::half2_add(pair[h], base[h]));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const bool odd = tokens.odd(i);
          if (packed[h] && !odd) continue;
          // s of an odd token, z of others. The row sum takes P without V's exponent.
          const float exponent = clamp(half_of(pair[h], i)) + rows.base[h];
          const float value = tokens.value(i);
          const float payload = ptx::exp2_approx(odd ? exponent + value : exponent);
          odd_sum[h] += ptx::exp2_approx(odd ? exponent : exponent - value);
          e = select(true, i, payload, e);
        }
        sum[h] = ptx::half2_fma(e, packed[h] ? unfold : 0u, sum[h]);
        pair[h] = e;
      }
    });
    payload_of_half(s, p);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      rows.sum[h] += ptx::half2_low(sum[h]) + ptx::half2_high(sum[h]);
      rows.sum[h] += odd_sum[h];
    }
  }
};

}  // namespace mxfa::sm90::forward
