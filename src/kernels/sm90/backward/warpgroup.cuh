#pragma once

#include <cstddef>

#include "kernels/sm90/backward/config.h"
#include "kernels/sm90/common/mma.cuh"
#include "ptx/half2.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared.cuh"

/// What the warpgroups that multiply share.
namespace mxfa::sm90::backward {

__device__ inline float scaled(float value, int exponent) {
  const int clamped = exponent < -126 ? -126 : exponent > 126 ? 126 : exponent;
  return value * power_of_two(clamped);
}

/// What all lanes have, in a uniform register: branches by it then need no convergence, and
/// addresses made of it no vector arithmetic.
__device__ inline std::uint32_t uniform(std::uint32_t value) {
  return __reduce_or_sync(~0u, value);
}
__device__ inline int uniform(int value) {
  return static_cast<int>(uniform(static_cast<std::uint32_t>(value)));
}

/// An accumulator, by its place among FP32 ones.
__device__ inline float sum_at(const float* sums, int i) { return sums[i]; }
__device__ inline float sum_at(const std::uint32_t* sums, int i) {
  return i % 2 == 0 ? ptx::half2_low(sums[i / 2]) : ptx::half2_high(sums[i / 2]);
}
/// Accumulators times 2^exponent.
template <int kCount>
__device__ inline void scale_sums(int exponent, float (&sums)[kCount]) {
  const float factor = power_of_two(exponent);
#pragma unroll
  for (float& value : sums) value *= factor;
}
template <int kCount>
__device__ inline void scale_sums(int exponent, std::uint32_t (&sums)[kCount]) {
  const float power = power_of_two(exponent);
  const std::uint32_t factor = ptx::half2_pack(power, power);
#pragma unroll
  for (std::uint32_t& pair : sums) pair = ptx::half2_mul(pair, factor);
}

template <class Config>
class Warpgroup {
 public:
  using Plan = SmemPlan<Config>;

  __device__ explicit Warpgroup(Plan& smem)
      : smem_(smem),
        base_(uniform(shared_address(&smem))),
        word_(tile_word(base_)),
        warp_(uniform(static_cast<int>(threadIdx.x / 32 % 4))) {}

 protected:
  /// Addresses by a member's offset: of arrays' elements.
  __device__ std::uint32_t at(std::size_t member, int index, std::size_t size) const {
    return base_ + static_cast<std::uint32_t>(member) + index * static_cast<std::uint32_t>(size);
  }
  /// Of the descriptor of a tile there.
  __device__ std::uint32_t word_at(std::size_t member, int index, std::size_t size) const {
    return word_ + static_cast<std::uint32_t>(member / 16) +
           index * static_cast<std::uint32_t>(size / 16);
  }
  __device__ std::uint32_t barrier(std::size_t member, int index) const {
    return at(member, index, 8);
  }
  __device__ const StageRecord& stage_record(unsigned tile) const {
    return smem_.stage[tile % Config::kTileRecords];
  }
  /// Of the four warps of a consumer's dS, as bits; infinity wins, NaN is none.
  __device__ std::uint32_t largest_amax(unsigned tile, int part) const {
    const uint4 warps = ptx::load_shared_u32x4(
        at(offsetof(Plan, amax), Config::kConsumers * (tile % Config::kAmaxBuffers) + part,
           sizeof(smem_.amax[0][0])));
    return max(max(warps.x, warps.y), max(warps.z, warps.w));
  }
  /// One thread of the warpgroup; by whole warps.
  __device__ bool leads() const { return warp_ == 0 && ptx::elect_one(); }
  /// By each thread, of what it has done with: one lane's arrivals are 1% slower, and
  /// racecheck does not follow them.
  __device__ void arrive(std::size_t member, int index) const {
    ptx::mbarrier_arrive(barrier(member, index));
  }

  Plan& smem_;
  std::uint32_t base_;
  std::uint32_t word_;  ///< of a descriptor of what lies at base_
  int warp_;
};

}  // namespace mxfa::sm90::backward
