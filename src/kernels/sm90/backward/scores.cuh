#pragma once

#include "device/fp8.cuh"
#include "kernels/sm90/backward/config.h"
#include "kernels/sm90/common/mma.cuh"
#include "mx/e8m0.h"
#include "ptx/half2.cuh"

/// S^T and dP^T of 64 keys x 64 queries to the payloads of P^T and dS^T. A thread holds, of the
/// keys quad + 8 h of its warp's 16, the queries 8 j + 2 pair + c at [4 j + 2 h + c].
namespace mxfa::sm90::backward {

using Fragment = float[kTileM / 2];
using Payload = std::uint32_t[kTileM / 8];
/// A number of each of a thread's queries, those of 8 j + 2 pair + c at [j / 2], in order.
using RowValues = float4[kTileM / 16];

/// By group of queries: what S^T and dP^T are multiplied by.
struct TileFactors {
  float s[kQGroups];
  float dp[kQGroups];
};

/// Columns [begin, end) that see a key, counted from this thread's first one.
struct SeeingColumns {
  int begin;
  int end;
  __device__ bool operator()(int column) const { return column >= begin && column < end; }
};

/// P' = 2^(s * factor + bias) in place of s, and its payload.
template <bool kMasked>
__device__ inline void exponentiate(const RowValues& rows, const float (&factor)[kQGroups],
                                    const SeeingColumns (&seeing)[2], Fragment& s, Payload& p) {
#pragma unroll
  for (int t = 0; t < kTileM / 16; ++t) {
    const float bias[4] = {rows[t].x, rows[t].y, rows[t].z, rows[t].w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int h = (i >> 1) & 1, column = 2 * (i >> 2) + (i & 1);
      float& value = s[8 * t + i];
      value = ptx::exp2_approx(fmaf(value, factor[t / 2], bias[column]));
      if (kMasked && !seeing[h](16 * t + 8 * (i >> 2) + (i & 1))) value = 0.0f;
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float* const e = s + 8 * t + 2 * h;
      p[2 * t + h] = device::encode_e4m3_quad(e[0], e[1], e[4], e[5]);
    }
  }
}

/// y = P' * (dp * factor - delta) in place of dp: dS * 2^(q's exponent - reference). `amax`: of
/// this thread, by group of queries.
template <bool kMasked>
__device__ inline void differentiate(const RowValues& rows, const float (&factor)[kQGroups],
                                     const SeeingColumns (&seeing)[2], const Fragment& p,
                                     Fragment& dp, float (&amax)[kQGroups]) {
#pragma unroll
  for (int t = 0; t < kTileM / 16; ++t) {
    const float delta[4] = {rows[t].x, rows[t].y, rows[t].z, rows[t].w};
    if (t % 2 == 0) amax[t / 2] = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int h = (i >> 1) & 1, column = 2 * (i >> 2) + (i & 1);
      float& value = dp[8 * t + i];
      value = p[8 * t + i] * fmaf(value, factor[t / 2], delta[column]);
      if (kMasked && !seeing[h](16 * t + 8 * (i >> 2) + (i & 1))) value = 0.0f;
      amax[t / 2] = fmaxf(amax[t / 2], fabsf(value));
    }
  }
}

/// The exponent of an E8M0 scale for a finite `amax`, rounded up (mx::scale_from_amax): what is
/// added carries where the mantissa exceeds 1.75.
__device__ inline int amax_exponent(float amax) {
  const int biased = static_cast<int>((__float_as_uint(amax) + 0x1FFFFFu) >> 23);
  return max(biased - mx::E4M3::kMaxExponent, 0) - mx::kE8M0Bias;
}
__device__ inline bool is_usable(float amax) { return __float_as_uint(amax) - 1 < 0x7F800000u - 1; }
/// What an infinite amax makes of all codes.
__device__ inline float poison() { return __uint_as_float(0x7FFFFFFFu); }

/// y * factor as the A operand of dK.
__device__ inline void encode_for_dk(const Fragment& y, float factor, Payload& codes) {
#pragma unroll
  for (int t = 0; t < kTileM / 16; ++t) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float* const e = y + 8 * t + 2 * h;
      codes[2 * t + h] =
          device::encode_e4m3_quad(e[0] * factor, e[1] * factor, e[4] * factor, e[5] * factor);
    }
  }
}

/// y * factor, transposed, into rows of queries: 16 bytes a row are the warp's keys in sigma order.
/// `address`: of ds + lane * kTileN, with the warp's piece of 16 bytes swizzled in.
__device__ inline void store_for_dq(const Fragment& y, const float (&factor)[kQGroups],
                                    std::uint32_t address) {
#pragma unroll
  for (int g = 0; g < kQGroups; ++g) {
    std::uint32_t codes[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* const e = y + 16 * g + 4 * i;
      codes[i] = device::encode_e4m3_quad(e[0] * factor[g], e[2] * factor[g], e[1] * factor[g],
                                          e[3] * factor[g]);
    }
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     address + 32 * g * kTileN),
                 "r"(codes[0]), "r"(codes[1]), "r"(codes[2]), "r"(codes[3])
                 : "memory");
  }
}

}  // namespace mxfa::sm90::backward
