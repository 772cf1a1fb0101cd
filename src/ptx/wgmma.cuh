#pragma once

#include <cstdint>

/// Warpgroup MMA of sm_90a: cuda::ptx has none of it. A: 64 rows; B: kN columns; K: 32 bytes.
/// Descriptors as smem_descriptor.cuh makes them. Register fragments, for a thread of the
/// warpgroup with quad = lane / 4, pair = lane % 4, warp w:
///   F32 accumulator d[4 j + 2 h + c]: row 16 w + 8 h + quad, column 8 j + 2 pair + c
///   F16 accumulator d[2 j + h]: the same with columns 2 pair, 2 pair + 1 in its halves
///   FP8 A operand a[2 s + h]: row 16 w + 8 h + quad, K bytes 16 s + 4 pair .. + 3
namespace mxfa::ptx {

// clang-format off
#define MXFA_D8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define MXFA_D16 MXFA_D8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define MXFA_D24 MXFA_D16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define MXFA_D32 MXFA_D24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define MXFA_D36 MXFA_D32 ", %32, %33, %34, %35"
#define MXFA_D40 MXFA_D32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define MXFA_D48 MXFA_D40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define MXFA_D56 MXFA_D48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define MXFA_D64 MXFA_D56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define MXFA_D68 MXFA_D64 ", %64, %65, %66, %67"
#define MXFA_D72 MXFA_D64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define MXFA_D80 MXFA_D72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define MXFA_D88 MXFA_D80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define MXFA_D96 MXFA_D88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define MXFA_REG4(c, d, i) c((d)[i]), c((d)[i + 1]), c((d)[i + 2]), c((d)[i + 3])
#define MXFA_REG8(c, d, i) MXFA_REG4(c, d, i), MXFA_REG4(c, d, i + 4)
#define MXFA_REG16(c, d, i) MXFA_REG8(c, d, i), MXFA_REG8(c, d, i + 8)
#define MXFA_REG24(c, d, i) MXFA_REG16(c, d, i), MXFA_REG8(c, d, i + 16)
#define MXFA_REG32(c, d, i) MXFA_REG16(c, d, i), MXFA_REG16(c, d, i + 16)
#define MXFA_REG36(c, d, i) MXFA_REG32(c, d, i), MXFA_REG4(c, d, i + 32)
#define MXFA_REG48(c, d, i) MXFA_REG32(c, d, i), MXFA_REG16(c, d, i + 32)
#define MXFA_REG64(c, d, i) MXFA_REG32(c, d, i), MXFA_REG32(c, d, i + 32)
#define MXFA_REG68(c, d, i) MXFA_REG64(c, d, i), MXFA_REG4(c, d, i + 64)
#define MXFA_REG96(c, d, i) MXFA_REG64(c, d, i), MXFA_REG32(c, d, i + 64)
// clang-format on

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// d = A B^T (+ d where `accumulate`), A and B in shared memory; kN columns.
template <int kN>
struct WgmmaSs;
/// The same with A in registers.
template <int kN>
struct WgmmaRs;

#define MXFA_WGMMA_SS(kN, type, ctype, constraint, suffix, count, a, b, s)                        \
  __device__ static void run(type(&d)[count], std::uint64_t desc_a, std::uint64_t desc_b,         \
                             bool accumulate) {                                                   \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " s ", 0;\n"                                   \
                 "wgmma.mma_async.sync.aligned.m64n" #kN "k32." ctype ".e4m3.e4m3 {" suffix "}, " \
                 a ", " b ", p, 1, 1;\n}"                                                         \
                 : constraint                                                                     \
                 : "l"(desc_a), "l"(desc_b), "r"(int(accumulate)));                               \
  }
#define MXFA_F32_REG(x) "+f"(x)
#define MXFA_F16_REG(x) "+r"(x)

template <>
struct WgmmaSs<64> {
  MXFA_WGMMA_SS(64, float, "f32", MXFA_REG32(MXFA_F32_REG, d, 0), MXFA_D32, 32, "%32", "%33",
                "%34")
  MXFA_WGMMA_SS(64, std::uint32_t, "f16", MXFA_REG16(MXFA_F16_REG, d, 0), MXFA_D16, 16, "%16",
                "%17", "%18")
};
template <>
struct WgmmaSs<96> {
  MXFA_WGMMA_SS(96, float, "f32", MXFA_REG48(MXFA_F32_REG, d, 0), MXFA_D48, 48, "%48", "%49",
                "%50")
  MXFA_WGMMA_SS(96, std::uint32_t, "f16", MXFA_REG24(MXFA_F16_REG, d, 0), MXFA_D24, 24, "%24",
                "%25", "%26")
};
template <>
struct WgmmaSs<128> {
  MXFA_WGMMA_SS(128, float, "f32", MXFA_REG64(MXFA_F32_REG, d, 0), MXFA_D64, 64, "%64", "%65",
                "%66")
  MXFA_WGMMA_SS(128, std::uint32_t, "f16", MXFA_REG32(MXFA_F16_REG, d, 0), MXFA_D32, 32, "%32",
                "%33", "%34")
};
template <>
struct WgmmaSs<192> {
  MXFA_WGMMA_SS(192, std::uint32_t, "f16", MXFA_REG48(MXFA_F16_REG, d, 0), MXFA_D48, 48, "%48",
                "%49", "%50")
};

#define MXFA_WGMMA_RS(kN, count, constraint, suffix, a, b, s)                                    \
  template <>                                                                                    \
  struct WgmmaRs<kN> {                                                                           \
    __device__ static void run(float (&d)[count], const std::uint32_t* x, std::uint64_t desc_b,  \
                               bool accumulate) {                                                \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " s ", 0;\n"                                \
                   "wgmma.mma_async.sync.aligned.m64n" #kN "k32.f32.e4m3.e4m3 {" suffix "}, {" a \
                   "}, " b ", p, 1, 1;\n}"                                                       \
                   : constraint                                                                  \
                   : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "l"(desc_b),                    \
                     "r"(int(accumulate)));                                                      \
    }                                                                                            \
  };
MXFA_WGMMA_RS(64, 32, MXFA_REG32(MXFA_F32_REG, d, 0), MXFA_D32, "%32, %33, %34, %35", "%36", "%37")
MXFA_WGMMA_RS(72, 36, MXFA_REG36(MXFA_F32_REG, d, 0), MXFA_D36, "%36, %37, %38, %39", "%40", "%41")
MXFA_WGMMA_RS(128, 64, MXFA_REG64(MXFA_F32_REG, d, 0), MXFA_D64, "%64, %65, %66, %67", "%68",
              "%69")
MXFA_WGMMA_RS(136, 68, MXFA_REG68(MXFA_F32_REG, d, 0), MXFA_D68, "%68, %69, %70, %71", "%72",
              "%73")

}  // namespace mxfa::ptx
