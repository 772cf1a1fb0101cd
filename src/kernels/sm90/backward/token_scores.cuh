#pragma once

#include "kernels/sm90/backward/scores.cuh"

/// FP32 scores where every token of Q, K and V has a scale: factors of each query, 16 bytes for 16
/// of a thread's in shared memory, and of each of its two keys. Products of powers of two are exact
/// in any order.
namespace mxfa::sm90::backward {

struct TokenFactors {
  std::uint32_t queries;  ///< shared address of this thread's
  float of[2];            ///< of its keys
};

/// x = s * factor + bias. Not in place: S^T leaves its registers to dP^T.
__device__ inline void add_biases(const RowValues& biases, const TokenFactors& factors,
                                  const Fragment& s, Fragment& x) {
#pragma unroll
  for (int t = 0; t < kTileM / 16; ++t) {
    const float bias[4] = {biases[t].x, biases[t].y, biases[t].z, biases[t].w};
    const float4 four = ptx::load_shared_f32x4(factors.queries + 16 * t);
    const float factor[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int column = 2 * (i >> 2) + (i & 1);
      x[8 * t + i] = fmaf(s[8 * t + i] * factors.of[(i >> 1) & 1], factor[column], bias[column]);
    }
  }
}

/// What dS is made of besides P' and dP^T.
struct TokenDsTerms {
  std::uint32_t minus_deltas;  ///< of this thread's queries, as the others
  std::uint32_t dp_factors;
  std::uint32_t dq_factors;
  float key[2];  ///< of dP^T, with the scale
  float scale;
};

/// Largest magnitudes of a thread's y by key, and of what dQ takes of it.
struct TokenAmax {
  float of[2];
  float dq[2];
};

/// As that of GroupAmax, all exponentials made before.
template <bool kMasked, int kEarly>
__device__ inline void differentiate(const TokenDsTerms& terms, Seen seen, const Fragment& p,
                                     Payload& codes, Fragment& dp, TokenAmax& amax) {
  static_assert(kEarly == kTileM / 16);
  amax = {};
#pragma unroll
  for (int t = 0; t < kTileM / 16; ++t) {
    const float4 deltas = ptx::load_shared_f32x4(terms.minus_deltas + 16 * t);
    const float4 factors = ptx::load_shared_f32x4(terms.dp_factors + 16 * t);
    const float4 dq_factors = ptx::load_shared_f32x4(terms.dq_factors + 16 * t);
    const float delta[4] = {deltas.x * terms.scale, deltas.y * terms.scale, deltas.z * terms.scale,
                            deltas.w * terms.scale};
    const float factor[4] = {factors.x, factors.y, factors.z, factors.w};
    const float dq_factor[4] = {dq_factors.x, dq_factors.y, dq_factors.z, dq_factors.w};
    encode_tokens(p, t, codes);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int h = (i >> 1) & 1, column = 2 * (i >> 2) + (i & 1);
      float& value = dp[8 * t + i];
      value = p[8 * t + i] * fmaf(value * terms.key[h], factor[column], delta[column]);
      hide<kMasked>(seen, t, i, value);
      amax.of[h] = fmaxf(amax.of[h], fabsf(value));
      amax.dq[h] = fmaxf(amax.dq[h], fabsf(value) * dq_factor[column]);
    }
  }
}

/// Of a thread, of dS for dQ.
__device__ inline float dq_amax(const TokenAmax& amax, const TokenFactors& factors) {
  return fmaxf(amax.dq[0] * factors.of[0], amax.dq[1] * factors.of[1]);
}

/// y * factor as 16-bit elements of keys r and r + 8, which stmatrix transposes.
__device__ inline void encode_for_dq(const Fragment& y, const TokenFactors& factors,
                                     Payload& codes) {
#pragma unroll
  for (int t = 0; t < kTileM / 16; ++t) {
    const float4 four = ptx::load_shared_f32x4(factors.queries + 16 * t);
    const float factor[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float* const e = y + 8 * t + 4 * k;
      const float* const f = factor + 2 * k;
      // Queries first: what a small one has is far below the others', and keys' are 1 at most.
      codes[2 * t + k] =
          device::encode_e4m3_quad(e[0] * f[0] * factors.of[0], e[2] * f[0] * factors.of[1],
                                   e[1] * f[1] * factors.of[0], e[3] * f[1] * factors.of[1]);
    }
  }
}

}  // namespace mxfa::sm90::backward
