#pragma once

#include "device/fp8.cuh"
#include "kernels/sm90/backward/config.h"
#include "kernels/sm90/common/mma.cuh"
#include "mx/e8m0.h"
#include "ptx/half2.cuh"
#include "ptx/shared.cuh"

/// S^T and dP^T of 64 keys x 64 queries to the payloads of P^T and dS^T. A thread holds, of the
/// keys quad + 8 h of its warp's 16, the queries 8 j + 2 pair + c at [4 j + 2 h + c].
namespace mxfa::sm90::backward {

using Fragment = float[kTileM / 2];
using Payload = std::uint32_t[kTileM / 8];
/// Which of a thread's entries are seen: bit 16 h + 4 t + k of the k-th of keys h and queries 16 t
/// on.
using Seen = std::uint32_t;
/// What is not seen becomes 0, from step kEarly on the logarithm of 0.
template <int kEarly>
__device__ inline void hide(Seen seen, Fragment& x) {
#pragma unroll
  for (int i = 0; i < kTileM / 2; ++i) {
    const int h = (i >> 1) & 1, k = 2 * (i >> 2) + (i & 1);
    if ((seen >> (16 * h + k) & 1) == 0) x[i] = i / 8 < kEarly ? 0.0f : -INFINITY;
  }
}
/// Of 16 queries, 8 j and 8 j + 1 each, those before `end`: as bits.
__device__ inline Seen queries_before(int end) {
  const int clamped = max(0, min(end, kTileM));
  return (1u << (2 * (clamped / 8) + min(clamped % 8, 2))) - 1;
}

/// A number of each of a thread's queries, those of 8 j + 2 pair + c in order.
using RowValues = float4[kTileM / 16];
__device__ inline void load_rows(std::uint32_t address, RowValues& values) {
#pragma unroll
  for (int t = 0; t < kTileM / 16; ++t) values[t] = ptx::load_shared_f32x4(address + 16 * t);
}

/// A factor for each group of queries.
struct GroupFactors {
  float of[kQGroups];
};

/// x = s * factor + bias. Not in place: S^T leaves its registers to dP^T.
__device__ inline void add_biases(const RowValues& biases, const GroupFactors& factors,
                                  const Fragment& s, Fragment& x) {
#pragma unroll
  for (int t = 0; t < kTileM / 16; ++t) {
    const float bias[4] = {biases[t].x, biases[t].y, biases[t].z, biases[t].w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      x[8 * t + i] = fmaf(s[8 * t + i], factors.of[t / 2], bias[2 * (i >> 2) + (i & 1)]);
    }
  }
}

/// P' = 2^x in place of x, of 16 queries from 16 t on.
__device__ inline void exponentiate(int t, Fragment& x) {
#pragma unroll
  for (int i = 0; i < 8; ++i) x[8 * t + i] = ptx::exp2_approx(x[8 * t + i]);
}
/// Of 16 queries from 16 t on, a thread's part of the payload of x.
__device__ inline void encode_tokens(const Fragment& x, int t, Payload& codes) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float* const e = x + 8 * t + 2 * h;
    codes[2 * t + h] = device::encode_e4m3_quad(e[0], e[1], e[4], e[5]);
  }
}

/// What dS is made of besides P' and dP^T.
struct DsTerms {
  std::uint32_t minus_deltas;  ///< shared address of this thread's, 16 bytes for 16 queries
  float4 first;                ///< the first of them
  float factor[kQGroups];
  float scale;
};

/// Largest magnitudes of a thread's y by group of queries.
struct GroupAmax {
  float of[kQGroups];
  __device__ float largest() const { return fmaxf(of[0], of[1]); }
};

/// y = P' * (dp * factor - delta * scale) in place of dp, and the payload of P'. The payload comes
/// here, where registers of P' become free. `p`: from step kEarly on its logarithm.
template <int kEarly>
__device__ inline void differentiate(const DsTerms& terms, Fragment& p, Payload& codes,
                                     Fragment& dp, GroupAmax& amax) {
  float4 next = terms.first;
#pragma unroll
  for (int t = 0; t < kTileM / 16; ++t) {
    const float delta[4] = {next.x * terms.scale, next.y * terms.scale, next.z * terms.scale,
                            next.w * terms.scale};
    if (t + 1 < kTileM / 16) next = ptx::load_shared_f32x4(terms.minus_deltas + 16 * (t + 1));
    if (t % 2 == 0) amax.of[t / 2] = 0.0f;
    if (t + kEarly < kTileM / 16) exponentiate(t + kEarly, p);
    encode_tokens(p, t, codes);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int column = 2 * (i >> 2) + (i & 1);
      float& value = dp[8 * t + i];
      value = p[8 * t + i] * fmaf(value, terms.factor[t / 2], delta[column]);
      amax.of[t / 2] = fmaxf(amax.of[t / 2], fabsf(value));
    }
  }
}

/// Of a thread, of dS for dQ.
__device__ inline float dq_amax(const GroupAmax& amax, const GroupFactors& factors) {
  return fmaxf(amax.of[0] * factors.of[0], amax.of[1] * factors.of[1]);
}

/// The exponent of an E8M0 scale for a finite amax * 2^-shift, rounded up (mx::scale_from_amax):
/// what is added carries where the mantissa exceeds 1.75.
__device__ inline int amax_exponent(float amax, int shift = 0) {
  const int biased = static_cast<int>((__float_as_uint(amax) + 0x1FFFFFu) >> 23);
  return max(biased - mx::E4M3::kMaxExponent - shift, 0) - mx::kE8M0Bias;
}
__device__ inline bool is_usable(float amax) { return __float_as_uint(amax) - 1 < 0x7F800000u - 1; }
/// What an infinite amax makes of all codes.
__device__ inline float poison() { return __uint_as_float(0x7FFFFFFFu); }

/// y * factor as 16-bit elements of keys r and r + 8, which stmatrix transposes.
__device__ inline void encode_for_dq(const Fragment& y, const GroupFactors& factors,
                                     Payload& codes) {
#pragma unroll
  for (int i = 0; i < kTileM / 8; ++i) {
    const float* const e = y + 4 * i;
    const float f = factors.of[i / 4];
    codes[i] = device::encode_e4m3_quad(e[0] * f, e[2] * f, e[1] * f, e[3] * f);
  }
}
/// Into rows of queries: 16 bytes a row are the warp's keys in sigma order. `address`: of ds +
/// lane * kRowBytes, with the warp's piece of 16 bytes swizzled in.
template <int kRowBytes>
__device__ inline void store_for_dq(const Payload& codes, std::uint32_t address) {
#pragma unroll
  for (int g = 0; g < kQGroups; ++g) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     address + 32 * g * kRowBytes),
                 "r"(codes[4 * g]), "r"(codes[4 * g + 1]), "r"(codes[4 * g + 2]),
                 "r"(codes[4 * g + 3])
                 : "memory");
  }
}

}  // namespace mxfa::sm90::backward
