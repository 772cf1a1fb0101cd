#pragma once

#include <cstdint>

/// Device memory that blocks of one launch pass on to each other.
namespace mxfa::ptx {

__device__ inline std::int32_t load_acquire(const std::int32_t* address) {
  std::int32_t value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}
__device__ inline void add_release(std::int32_t* address, std::int32_t value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}
/// A byte that no one writes meanwhile where `some`, else `none`. It is no branch, in which what is
/// made of the byte would wait for it.
__device__ inline std::uint32_t load_byte_if(bool some, const std::uint8_t* address,
                                             std::uint32_t none) {
  std::uint32_t byte = none;
  asm("{\n"
      " .reg .pred some;\n"
      " setp.ne.u32 some, %1, 0;\n"
      " @some ld.global.nc.u8 %0, [%2];\n"
      "}"
      : "+r"(byte)
      : "r"(static_cast<std::uint32_t>(some)), "l"(address));
  return byte;
}
/// A sum that nobody waits for. `address`: on 16 bytes.
__device__ inline void add_float4(float4* address, float4 value) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address), "f"(value.x),
               "f"(value.y), "f"(value.z), "f"(value.w)
               : "memory");
}

/// What the counter held, which becomes one more, or 0 behind `last`. Acquires and releases.
__device__ inline unsigned fetch_inc(unsigned* address, unsigned last) {
  unsigned held;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(held)
               : "l"(address), "r"(last)
               : "memory");
  return held;
}

}  // namespace mxfa::ptx
