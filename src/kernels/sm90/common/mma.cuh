#pragma once

#include <cstdint>

#include "mx/scale_exponent.h"

/// What kernels with wgmma share.
namespace mxfa::sm90 {

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Of the descriptor of a tile at `address`, the word that depends on it. Shared memory has 2^18
/// bytes at most, so that `bytes / 16` more is the word of a tile so many bytes behind.
__device__ inline std::uint32_t tile_word(std::uint32_t address) { return 1u << 16 | address >> 4; }

/// K-major tile whose rows of kRowBytes (64 or 128) are swizzled by as many bytes.
template <int kRowBytes>
__device__ inline std::uint64_t tile_descriptor_of(std::uint32_t word) {
  static_assert(kRowBytes == 64 || kRowBytes == 128);
  constexpr std::uint64_t kSwizzle = kRowBytes == 128 ? 1 : 2;
  constexpr std::uint64_t kEightRows = kRowBytes * 8 / 16;
  return kSwizzle << 62 | kEightRows << 32 | word;
}
template <int kRowBytes>
__device__ inline std::uint64_t tile_descriptor(std::uint32_t address) {
  return tile_descriptor_of<kRowBytes>(tile_word(address));
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

/// 2^exponent, clamped to normal numbers.
__device__ inline float power_of_two(int exponent) {
  const int clamped = exponent < -126 ? -126 : exponent > 127 ? 127 : exponent;
  return __int_as_float((clamped + 127) << 23);
}

using mx::scale_exponent;

/// Barrier `id` of `threads` threads.
__device__ inline void sync_threads(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace mxfa::sm90
