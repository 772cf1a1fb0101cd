#pragma once

#include "kernels/sm90/forward/config.h"
#include "ptx/wgmma.cuh"

/// The two GEMMs of a consumer warpgroup.
namespace mxfa::sm90::forward {

/// K-major tile whose rows of kRowBytes (64 or 128) are swizzled by as many bytes.
template <int kRowBytes>
__device__ inline std::uint64_t tile_descriptor(std::uint32_t address) {
  static_assert(kRowBytes == 64 || kRowBytes == 128);
  constexpr std::uint64_t kSwizzle = kRowBytes == 128 ? 1 : 2;
  constexpr std::uint64_t kEightRows = kRowBytes * 8 / 16;
  return kSwizzle << 62 | kEightRows << 32 | 1ull << 16 | address >> 4;
}

/// Keeps the compiler from reading registers of an MMA in flight before the wait above this.
template <int kCount>
__device__ inline void fence_registers(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}
template <int kCount>
__device__ inline void fence_registers(std::uint32_t (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

/// scores = Q K^T of 64 rows and kTileN keys.
template <class Config, class Fragment>
__device__ inline void issue_scores(Fragment& scores, std::uint32_t q, std::uint32_t k) {
  const std::uint64_t a = tile_descriptor<Config::kHeadDim>(q);
  const std::uint64_t b = tile_descriptor<Config::kHeadDim>(k);
#pragma unroll
  for (int step = 0; step < Config::kHeadDim / 32; ++step) {
    ptx::WgmmaSs<Config::kTileN>::run(scores, a + 2 * step, b + 2 * step, step != 0);
  }
  ptx::wgmma_commit();
}

/// out = P V of kValueColumns columns, V^T's rows from `v` on.
template <class Config>
__device__ inline void issue_values(float (&out)[Config::kValueColumns / 2],
                                    const std::uint32_t (&p)[Config::kTileN / 8], std::uint32_t v) {
  const std::uint64_t b = tile_descriptor<Config::kTileN>(v);
#pragma unroll
  for (int step = 0; step < Config::kTileN / 32; ++step) {
    ptx::WgmmaRs<Config::kValueColumns>::run(out, p + 4 * step, b + 2 * step, step != 0);
  }
  ptx::wgmma_commit();
}

}  // namespace mxfa::sm90::forward
