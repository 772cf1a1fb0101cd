#pragma once

#include "kernels/sm90/backward/scores.cuh"

/// FP32 scores where every token of Q, K and V has a scale: factors of each query, 16 bytes for 16
/// of a thread's in shared memory, and one for the warp's keys. Where keys differ, what belongs to
/// a thread's two is multiplied before. y has no exponents of Q: dK's payload takes them, dQ's does
/// not. Products of powers of two are exact in any order.
namespace mxfa::sm90::backward {

/// What S^T is multiplied by.
struct TokenFactors {
  std::uint32_t queries;  ///< shared address of this thread's
  float keys;
};

/// x *= what each of a thread's two keys has less than its warp.
__device__ inline void scale_keys(const float2& within, Fragment& x) {
#pragma unroll
  for (int i = 0; i < kTileM / 2; ++i) x[i] *= i & 2 ? within.y : within.x;
}

/// x = s * factor + bias. Not in place: S^T leaves its registers to dP^T.
__device__ inline void add_biases(const RowValues& biases, const TokenFactors& factors,
                                  const Fragment& s, Fragment& x) {
#pragma unroll
  for (int t = 0; t < kTileM / 16; ++t) {
    const float bias[4] = {biases[t].x, biases[t].y, biases[t].z, biases[t].w};
    const float4 four = ptx::load_shared_f32x4(factors.queries + 16 * t);
    const float factor[4] = {four.x * factors.keys, four.y * factors.keys, four.z * factors.keys,
                             four.w * factors.keys};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int column = 2 * (i >> 2) + (i & 1);
      x[8 * t + i] = fmaf(s[8 * t + i], factor[column], bias[column]);
    }
  }
}

/// What dS is made of besides P' and dP^T.
struct TokenDsTerms {
  std::uint32_t minus_deltas;  ///< of this thread's queries, as the other
  std::uint32_t q_relative;
  float factor[kQGroups];
  float scale;
};

/// Largest magnitudes of what dK and dQ take of a thread's y; of dQ where keys do not differ.
struct TokenAmax {
  float dk, dq;
  __device__ float largest() const { return dk; }
};

/// As that of GroupAmax.
template <int kEarly>
__device__ inline void differentiate(const TokenDsTerms& terms, Fragment& p, Payload& codes,
                                     Fragment& dp, TokenAmax& amax) {
  amax = {};
#pragma unroll
  for (int t = 0; t < kTileM / 16; ++t) {
    const float4 deltas = ptx::load_shared_f32x4(terms.minus_deltas + 16 * t);
    const float4 relative = ptx::load_shared_f32x4(terms.q_relative + 16 * t);
    const float delta[4] = {deltas.x, deltas.y, deltas.z, deltas.w};
    const float q[4] = {relative.x, relative.y, relative.z, relative.w};
    if (t + kEarly < kTileM / 16) exponentiate(t + kEarly, p);
    encode_tokens(p, t, codes);
#pragma unroll
    for (int column = 0; column < 4; ++column) {
      const int i = 8 * t + 4 * (column >> 1) + (column & 1);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float& value = dp[i + 2 * h];
        value = p[i + 2 * h] * fmaf(value, terms.factor[t / 2], delta[column] * terms.scale);
      }
      const float larger = fmaxf(fabsf(dp[i]), fabsf(dp[i + 2]));
      amax.dk = fmaxf(amax.dk, larger * q[column]);
      amax.dq = fmaxf(amax.dq, larger);
    }
  }
}

/// amax.dq where keys differ.
__device__ inline float dq_amax_of_keys(const float2& within, const Fragment& y) {
  float amax = 0.0f;
#pragma unroll
  for (int i = 0; i < kTileM / 2; ++i) {
    amax = fmaxf(amax, fabsf(y[i]) * (i & 2 ? within.y : within.x));
  }
  return amax;
}

/// Of a thread, of dS for dQ.
__device__ inline float dq_amax(const TokenAmax& amax, const GroupFactors& factors) {
  return amax.dq * factors.of[0];
}

/// dK's payload of y, of 16 queries from 16 t on.
__device__ inline void encode_for_dk(const Fragment& y, std::uint32_t q_relative, int t,
                                     Payload& codes) {
  const float4 q = ptx::load_shared_f32x4(q_relative + 16 * t);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float* const e = y + 8 * t + 2 * h;
    codes[2 * t + h] = device::encode_e4m3_quad(e[0] * q.x, e[1] * q.y, e[4] * q.z, e[5] * q.w);
  }
}

}  // namespace mxfa::sm90::backward
