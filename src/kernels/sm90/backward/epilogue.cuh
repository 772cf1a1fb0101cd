#pragma once

#include "device/fp8.cuh"
#include "kernels/sm90/backward/params.h"
#include "kernels/sm90/common/mma.cuh"

/// dV and dK of a warpgroup's 64 keys.
namespace mxfa::sm90::backward {

__device__ inline float scaled(float value, int exponent) {
  const int clamped = exponent < -126 ? -126 : exponent > 126 ? 126 : exponent;
  return value * power_of_two(clamped);
}

/// `part` 0: dV, 1: dK. A thread's floats of the CTA's scratch lie 256 float4 apart.
template <class Config>
__device__ inline float4* scratch_of(const BackwardParams& params, int part) {
  return reinterpret_cast<float4*>(params.scratch + blockIdx.x * kScratchFloats<Config>) +
         part * (Config::kHeadDim / 8) * Config::kConsumerThreads + threadIdx.x - 128;
}

/// Adds acc * 2^exponent to the scratch.
template <class Config>
__device__ inline void promote(const BackwardParams& params, int part, bool fresh, int exponent,
                               const float (&acc)[Config::kHeadDim / 2]) {
  float4* const scratch = scratch_of<Config>(params, part);
#pragma unroll
  for (int i = 0; i < Config::kHeadDim / 8; ++i) {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (!fresh) sum = scratch[i * Config::kConsumerThreads];
    sum.x += scaled(acc[4 * i], exponent);
    sum.y += scaled(acc[4 * i + 1], exponent);
    sum.z += scaled(acc[4 * i + 2], exponent);
    sum.w += scaled(acc[4 * i + 3], exponent);
    scratch[i * Config::kConsumerThreads] = sum;
  }
}

/// What a gradient is besides its accumulators: (acc * 2^exponent, and the scratch where it has a
/// sum) * factor.
struct GradientTerms {
  int part;
  bool scratch_has;
  int exponent;
  float factor;
};

/// Stores a warp's 16 rows from `first_row` of the key tile on.
template <class Config>
__device__ inline void store_gradient(const BackwardParams& params, const GradientOut& out,
                                      const KeyRecord& keys, const GradientTerms& terms,
                                      int first_row, const float (&acc)[Config::kHeadDim / 2]) {
  const int lane = threadIdx.x % 32, quad = lane / 4, pair = lane % 4;
  const float4* const scratch = scratch_of<Config>(params, terms.part);
  std::uint16_t* const target = out.data + (keys.out_row + first_row + quad) * out.token_stride +
                                keys.head * out.head_stride + 2 * pair;
  const int row = keys.key0 + first_row + quad;
#pragma unroll
  for (int i = 0; i < Config::kHeadDim / 8; ++i) {
    if (8 * i >= params.columns) break;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (terms.scratch_has) sum = scratch[i * Config::kConsumerThreads];
    const float a = (sum.x + scaled(acc[4 * i], terms.exponent)) * terms.factor;
    const float b = (sum.y + scaled(acc[4 * i + 1], terms.exponent)) * terms.factor;
    const float c = (sum.z + scaled(acc[4 * i + 2], terms.exponent)) * terms.factor;
    const float d = (sum.w + scaled(acc[4 * i + 3], terms.exponent)) * terms.factor;
    if (row < keys.seqlen_k) {
      *reinterpret_cast<std::uint32_t*>(target + 8 * i) = device::encode_bf16_pair(a, b);
    }
    if (row + 8 < keys.seqlen_k) {
      *reinterpret_cast<std::uint32_t*>(target + 8 * out.token_stride + 8 * i) =
          device::encode_bf16_pair(c, d);
    }
  }
}

}  // namespace mxfa::sm90::backward
