#pragma once

#include <cstdint>

#include "device/fp8.cuh"
#include "kernels/sm90/backward/warpgroup.cuh"
#include "ptx/half2.cuh"
#include "ptx/shared.cuh"

/// dV of half sums between times when it leaves the tensor cores' accumulators for FP32: most of it
/// lies in shared memory as E4M3 of 2^-kFoldExponent times it, what this misses stays. A thread has
/// 16 bytes of every 512 of its warp's, as codes of eight words of halves.
namespace mxfa::sm90::backward {

inline constexpr int kFoldExponent = 10;
inline constexpr std::uint32_t kFoldFactor = 0x14001400;        ///< 2^-10, twice
inline constexpr std::uint32_t kMinusOne = 0xBC00BC00;          ///< twice
inline constexpr std::uint32_t kMinusFoldInverse = 0xE400E400;  ///< -2^10, twice

/// Pairs of codes of a word: what of sum + folded E4M3 can hold goes there, and leaves `sum`.
__device__ inline void fold_pair(std::uint32_t folded, std::uint32_t next, std::uint32_t& sum) {
  const std::uint32_t moved =
      ptx::half2_fma(folded, kMinusOne, device::decode_half_pair<mx::E4M3>(next));
  sum = ptx::half2_fma(moved, kMinusFoldInverse, sum);
}

template <int kCount>
__device__ inline void fold_sums(std::uint32_t address, bool has_folded,
                                 std::uint32_t (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount / 8; ++i) {
    const std::uint32_t piece = address + 512 * i;
    uint4 codes = has_folded ? ptx::load_shared_u32x4(piece) : uint4{};
    std::uint32_t* const words[] = {&codes.x, &codes.y, &codes.z, &codes.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      std::uint32_t& low = sums[8 * i + 2 * k];
      std::uint32_t& high = sums[8 * i + 2 * k + 1];
      const std::uint32_t low_folded = device::decode_half_pair<mx::E4M3>(*words[k]);
      const std::uint32_t high_folded = device::decode_half_pair<mx::E4M3>(*words[k] >> 16);
      *words[k] = ptx::e4m3_from_half2<4>(ptx::half2_fma(low, kFoldFactor, low_folded),
                                          ptx::half2_fma(high, kFoldFactor, high_folded));
      fold_pair(low_folded, *words[k], low);
      fold_pair(high_folded, *words[k] >> 16, high);
    }
    ptx::store_shared_u32x4(piece, codes);
  }
}

/// Words 2 i and 2 i + 1 of sums in half.
__device__ inline float4 four_halves(std::uint32_t low, std::uint32_t high) {
  return make_float4(ptx::half2_low(low), ptx::half2_high(low), ptx::half2_low(high),
                     ptx::half2_high(high));
}
__device__ inline float4 four_sums(const std::uint32_t* sums, int i) {
  return four_halves(sums[2 * i], sums[2 * i + 1]);
}
__device__ inline float4 add(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/// What is folded of a thread's sums, all read at once, as gradients are then staged there.
template <int kCount>
class FoldedSums {
 public:
  __device__ FoldedSums(std::uint32_t address, bool any) {
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i) {
      const uint4 piece = any ? ptx::load_shared_u32x4(address + 512 * i) : uint4{};
      codes_[4 * i] = piece.x;
      codes_[4 * i + 1] = piece.y;
      codes_[4 * i + 2] = piece.z;
      codes_[4 * i + 3] = piece.w;
    }
  }
  __device__ float4 four(int i) const {
    const float4 x = four_halves(device::decode_half_pair<mx::E4M3>(codes_[i]),
                                 device::decode_half_pair<mx::E4M3>(codes_[i] >> 16));
    constexpr float kScale = 1 << kFoldExponent;
    return make_float4(x.x * kScale, x.y * kScale, x.z * kScale, x.w * kScale);
  }

 private:
  std::uint32_t codes_[kCount];
};

}  // namespace mxfa::sm90::backward
