#pragma once

#include "kernels/sm90/backward/scores.cuh"

/// S^T and dP^T in half to the payloads of P^T and dS^T. A thread holds, of the keys quad + 8 h of
/// its warp's 16, pairs of queries 8 j + 2 pair and the next at [2 j + h].
namespace mxfa::sm90::backward {

using HalfFragment = std::uint32_t[kTileM / 4];
inline constexpr std::uint32_t kHalfNans = 0x7FFF7FFF;

/// 2^exponent in both halves; 0 and infinity beyond their range.
__device__ inline std::uint32_t half2_power_of_two(int exponent) {
  const float power = power_of_two(exponent);
  return ptx::half2_pack(power, power);
}
/// Of an exponent of at most 15.
__device__ inline std::uint32_t half2_small_power_of_two(int exponent) {
  const float power = __int_as_float((max(exponent, -126) + 127) << 23);
  return ptx::half2_pack(power, power);
}
/// Of a pair at [4 t + i], the halves that are seen.
__device__ inline std::uint32_t seen_halves(Seen seen, int t, int i) {
  const Seen bits = seen >> (16 * (i % 2) + 4 * t + 2 * (i / 2));
  return (bits & 1 ? 0xFFFFu : 0u) | (bits & 2 ? 0xFFFF0000u : 0u);
}
/// Exponent of a power of two.
__device__ inline int exponent_of(float power) {
  return static_cast<int>(__float_as_uint(power) >> 23) - 127;
}

/// Four words of a thread's row of a record.
using Words = std::uint32_t[4];
__device__ inline void load_words(std::uint32_t address, Words& words) {
  const uint4 four = ptx::load_shared_u32x4(address);
  words[0] = four.x;
  words[1] = four.y;
  words[2] = four.z;
  words[3] = four.w;
}

/// What P' is made of besides S^T. All numbers twice.
struct HalfTerms {
  std::uint32_t s_factor[kQGroups];
  Words bias[kQGroups];
};

/// S^T to the exponents of P' in FP32, -infinity where nothing is seen, so that neither factors nor
/// biases remain. `wide`: shared address of this thread's biases in FP32.
__device__ inline void widen(const float (&factor)[kQGroups], std::uint32_t wide, Seen seen,
                             HalfFragment& s, HalfTerms& terms) {
  constexpr std::uint32_t kOnes = 0x3C003C00;
#pragma unroll
  for (int t = 0; t < kTileM / 16; ++t) {
    Words bias;
    load_words(wide + 16 * t, bias);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float f = factor[t / 2];
      std::uint32_t& pair = s[4 * t + i];
      const float low = fmaf(ptx::half2_low(pair), f, __uint_as_float(bias[i / 2 * 2]));
      const float high = fmaf(ptx::half2_high(pair), f, __uint_as_float(bias[i / 2 * 2 + 1]));
      const Seen bits = seen >> (16 * (i % 2) + 4 * t + 2 * (i / 2));
      pair = ptx::half2_pack(bits & 1 ? low : -INFINITY, bits & 2 ? high : -INFINITY);
    }
  }
#pragma unroll
  for (int g = 0; g < kQGroups; ++g) {
    terms.s_factor[g] = kOnes;
#pragma unroll
    for (std::uint32_t& bias : terms.bias[g]) bias = 0;
  }
}
/// Zeros where nothing is seen.
__device__ inline void hide(Seen seen, HalfFragment& dp) {
#pragma unroll
  for (int i = 0; i < kTileM / 4; ++i) dp[i] &= seen_halves(seen, i / 4, i % 4);
}

/// P' = 2^(S^T * factor + bias) in place of S^T, and its payload.
__device__ inline void exponentiate(const HalfTerms& terms, HalfFragment& s, Payload& codes) {
#pragma unroll
  for (int t = 0; t < kTileM / 16; ++t) {
    const int g = t / 2;
    std::uint32_t* const p = s + 4 * t;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      p[i] = ptx::half2_exp2(
          ptx::half2_fma(p[i], terms.s_factor[g], terms.bias[g][t % 2 * 2 + i / 2]));
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) codes[2 * t + h] = ptx::e4m3_from_half2<0>(p[h], p[2 + h]);
  }
}

/// What y is made of besides P' and dP^T. All numbers twice.
struct HalfDsTerms {
  std::uint32_t dp_factor;
  std::uint32_t delta_factor;
  std::uint32_t minus_deltas;  ///< shared address of this thread's
};
/// y = P' * (dP^T * factor - delta) in place of dP^T. Returns the largest magnitudes of y, under
/// some sign.
__device__ inline std::uint32_t differentiate(const HalfDsTerms& terms, const HalfFragment& p,
                                              HalfFragment& dp) {
  std::uint32_t most = 0;
#pragma unroll
  for (int g = 0; g < kQGroups; ++g) {
    Words delta;
    load_words(terms.minus_deltas + 16 * g, delta);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t minus_delta = ptx::half2_mul(delta[i / 2], terms.delta_factor);
      std::uint32_t& value = dp[8 * g + i];
      value = ptx::half2_mul(p[8 * g + i], ptx::half2_fma(value, terms.dp_factor, minus_delta));
      most = ptx::half2_max_magnitude(most, value);
    }
  }
  return most;
}

/// The larger magnitude of two halves.
__device__ inline float larger_magnitude(std::uint32_t halves) {
  return fmaxf(fabsf(ptx::half2_low(halves)), fabsf(ptx::half2_high(halves)));
}

/// dK's payload: y, times a factor of each group of queries.
__device__ inline void encode_tokens(const HalfFragment& y, Payload& codes) {
#pragma unroll
  for (int i = 0; i < kTileM / 8; ++i) {
    const std::uint32_t* const e = y + 4 * (i / 2) + i % 2;
    codes[i] = ptx::e4m3_from_half2<1>(e[0], e[2]);
  }
}
__device__ inline void encode_tokens(const HalfFragment& y, const std::uint32_t (&factor)[kQGroups],
                                     Payload& codes) {
#pragma unroll
  for (int i = 0; i < kTileM / 8; ++i) {
    const std::uint32_t* const e = y + 4 * (i / 2) + i % 2;
    const std::uint32_t f = factor[i / 4];
    codes[i] = ptx::e4m3_from_half2<2>(ptx::half2_mul(e[0], f), ptx::half2_mul(e[2], f));
  }
}

/// y * factor as 16-bit elements of keys r and r + 8, which stmatrix transposes.
__device__ inline void encode_for_dq(const HalfFragment& y, std::uint32_t factor, Payload& codes) {
#pragma unroll
  for (int i = 0; i < kTileM / 8; ++i) {
    const std::uint32_t quad = ptx::e4m3_from_half2<3>(ptx::half2_mul(y[2 * i], factor),
                                                       ptx::half2_mul(y[2 * i + 1], factor));
    codes[i] = __byte_perm(quad, quad, 0x3120);
  }
}

}  // namespace mxfa::sm90::backward
