#pragma once

#include <cstdint>

/// Warpgroup MMA of sm_90a, FP8 (E4M3), of which cuda::ptx has nothing. A: 64 rows; B: kN columns;
/// K: 32 bytes. Register fragments, for a thread with quad = lane / 4, pair = lane % 4 in warp w of
/// the warpgroup:
///   F32 accumulator d[4 j + 2 h + c]: row 16 w + 8 h + quad, column 8 j + 2 pair + c
///   F16 accumulator d[2 j + h]: the same, columns 2 pair and 2 pair + 1 in its halves
///   FP8 A operand a[2 s + h]: row 16 w + 8 h + quad, K bytes 16 s + 4 pair .. + 3
namespace mxfa::ptx {

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// d = A B^T (+ d where `accumulate`), A and B in shared memory (descriptors). start(): d = A B^T,
/// for which d need not live before; restart(): the same in the registers that d has.
template <int kN>
struct WgmmaSs;
/// The same with A in registers.
template <int kN>
struct WgmmaRs;

// clang-format off
#define MXFA_D16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define MXFA_D24 MXFA_D16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define MXFA_D32 MXFA_D24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define MXFA_D40 MXFA_D32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define MXFA_D48 MXFA_D40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define MXFA_D56 MXFA_D48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define MXFA_D64 MXFA_D56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define MXFA_4(c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define MXFA_16(c, i) MXFA_4(c, i), MXFA_4(c, i + 4), MXFA_4(c, i + 8), MXFA_4(c, i + 12)
#define MXFA_32(c) MXFA_16(c, 0), MXFA_16(c, 16)
#define MXFA_64(c) MXFA_32(c), MXFA_16(c, 32), MXFA_16(c, 48)
#define MXFA_F(x) "+f"(x)
#define MXFA_R(x) "+r"(x)
#define MXFA_NEW_F(x) "=f"(x)
#define MXFA_NEW_R(x) "=r"(x)
#define MXFA_START "{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\nwgmma.mma_async.sync.aligned."
#define MXFA_BEGIN(flag) \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " flag ", 0;\nwgmma.mma_async.sync.aligned."
// clang-format on

template <>
struct WgmmaSs<128> {
  __device__ static void run(float (&d)[64], std::uint64_t a, std::uint64_t b, bool accumulate) {
    asm volatile(MXFA_BEGIN("%66") "m64n128k32.f32.e4m3.e4m3 {" MXFA_D64 "}, %64, %65, p, 1, 1;\n}"
                 : MXFA_64(MXFA_F)
                 : "l"(a), "l"(b), "r"(int{accumulate}));
  }
  __device__ static void start(float (&d)[64], std::uint64_t a, std::uint64_t b) {
    asm volatile(MXFA_START "m64n128k32.f32.e4m3.e4m3 {" MXFA_D64 "}, %64, %65, p, 1, 1;\n}"
                 : MXFA_64(MXFA_NEW_F)
                 : "l"(a), "l"(b));
  }
  __device__ static void run(std::uint32_t (&d)[32], std::uint64_t a, std::uint64_t b,
                             bool accumulate) {
    asm volatile(MXFA_BEGIN("%34") "m64n128k32.f16.e4m3.e4m3 {" MXFA_D32 "}, %32, %33, p, 1, 1;\n}"
                 : MXFA_32(MXFA_R)
                 : "l"(a), "l"(b), "r"(int{accumulate}));
  }
  __device__ static void start(std::uint32_t (&d)[32], std::uint64_t a, std::uint64_t b) {
    asm volatile(MXFA_START "m64n128k32.f16.e4m3.e4m3 {" MXFA_D32 "}, %32, %33, p, 1, 1;\n}"
                 : MXFA_32(MXFA_NEW_R)
                 : "l"(a), "l"(b));
  }
};

template <>
struct WgmmaSs<64> {
  __device__ static void run(float (&d)[32], std::uint64_t a, std::uint64_t b, bool accumulate) {
    asm volatile(MXFA_BEGIN("%34") "m64n64k32.f32.e4m3.e4m3 {" MXFA_D32 "}, %32, %33, p, 1, 1;\n}"
                 : MXFA_32(MXFA_F)
                 : "l"(a), "l"(b), "r"(int{accumulate}));
  }
  __device__ static void start(float (&d)[32], std::uint64_t a, std::uint64_t b) {
    asm volatile(MXFA_START "m64n64k32.f32.e4m3.e4m3 {" MXFA_D32 "}, %32, %33, p, 1, 1;\n}"
                 : MXFA_32(MXFA_NEW_F)
                 : "l"(a), "l"(b));
  }
  __device__ static void restart(float (&d)[32], std::uint64_t a, std::uint64_t b) {
    run(d, a, b, false);
  }
  __device__ static void run(std::uint32_t (&d)[16], std::uint64_t a, std::uint64_t b,
                             bool accumulate) {
    asm volatile(MXFA_BEGIN("%18") "m64n64k32.f16.e4m3.e4m3 {" MXFA_D16 "}, %16, %17, p, 1, 1;\n}"
                 : MXFA_16(MXFA_R, 0)
                 : "l"(a), "l"(b), "r"(int{accumulate}));
  }
  __device__ static void start(std::uint32_t (&d)[16], std::uint64_t a, std::uint64_t b) {
    asm volatile(MXFA_START "m64n64k32.f16.e4m3.e4m3 {" MXFA_D16 "}, %16, %17, p, 1, 1;\n}"
                 : MXFA_16(MXFA_NEW_R, 0)
                 : "l"(a), "l"(b));
  }
};

template <>
struct WgmmaSs<32> {
  __device__ static void run(float (&d)[16], std::uint64_t a, std::uint64_t b, bool accumulate) {
    asm volatile(MXFA_BEGIN("%18") "m64n32k32.f32.e4m3.e4m3 {" MXFA_D16 "}, %16, %17, p, 1, 1;\n}"
                 : MXFA_16(MXFA_F, 0)
                 : "l"(a), "l"(b), "r"(int{accumulate}));
  }
};

/// BF16, K: 16 elements: d = A B^T (+ d), 64 x kN, both in shared memory.
template <int kN>
struct WgmmaBf16Ss;
/// The same with A in registers, four for a thread, each of two neighbours: row 8 (i % 2) + quad,
/// elements 8 (i / 2) + 2 pair and the next.
template <int kN>
struct WgmmaBf16Rs;

template <>
struct WgmmaBf16Ss<128> {
  __device__ static void run(float (&d)[64], std::uint64_t a, std::uint64_t b) {
    asm volatile(MXFA_BEGIN("1") "m64n128k16.f32.bf16.bf16 {" MXFA_D64
                                 "}, %64, %65, p, 1, 1, 0, 0;\n}"
                 : MXFA_64(MXFA_F)
                 : "l"(a), "l"(b));
  }
  __device__ static void start(float (&d)[64], std::uint64_t a, std::uint64_t b) {
    asm volatile(MXFA_START "m64n128k16.f32.bf16.bf16 {" MXFA_D64 "}, %64, %65, p, 1, 1, 0, 0;\n}"
                 : MXFA_64(MXFA_NEW_F)
                 : "l"(a), "l"(b));
  }
};

template <>
struct WgmmaBf16Ss<64> {
  __device__ static void run(float (&d)[32], std::uint64_t a, std::uint64_t b) {
    asm volatile(MXFA_BEGIN("1") "m64n64k16.f32.bf16.bf16 {" MXFA_D32
                                 "}, %32, %33, p, 1, 1, 0, 0;\n}"
                 : MXFA_32(MXFA_F)
                 : "l"(a), "l"(b));
  }
  __device__ static void start(float (&d)[32], std::uint64_t a, std::uint64_t b) {
    asm volatile(MXFA_START "m64n64k16.f32.bf16.bf16 {" MXFA_D32 "}, %32, %33, p, 1, 1, 0, 0;\n}"
                 : MXFA_32(MXFA_NEW_F)
                 : "l"(a), "l"(b));
  }
  __device__ static void restart(float (&d)[32], std::uint64_t a, std::uint64_t b) {
    asm volatile(MXFA_START "m64n64k16.f32.bf16.bf16 {" MXFA_D32 "}, %32, %33, p, 1, 1, 0, 0;\n}"
                 : MXFA_32(MXFA_F)
                 : "l"(a), "l"(b));
  }
};

template <>
struct WgmmaBf16Rs<128> {
  __device__ static void run(float (&d)[64], const std::uint32_t* a, std::uint64_t b) {
    asm volatile(MXFA_BEGIN("1") "m64n128k16.f32.bf16.bf16 {" MXFA_D64
                                 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}"
                 : MXFA_64(MXFA_F)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
  __device__ static void start(float (&d)[64], const std::uint32_t* a, std::uint64_t b) {
    asm volatile(MXFA_START "m64n128k16.f32.bf16.bf16 {" MXFA_D64
                            "}, {%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}"
                 : MXFA_64(MXFA_NEW_F)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};

template <>
struct WgmmaRs<128> {
  __device__ static void run(float (&d)[64], const std::uint32_t* a, std::uint64_t b,
                             bool accumulate) {
    asm volatile(MXFA_BEGIN("%69") "m64n128k32.f32.e4m3.e4m3 {" MXFA_D64
                                   "}, {%64, %65, %66, %67}, %68, p, 1, 1;\n}"
                 : MXFA_64(MXFA_F)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int{accumulate}));
  }
  __device__ static void start(float (&d)[64], const std::uint32_t* a, std::uint64_t b) {
    asm volatile(MXFA_START "m64n128k32.f32.e4m3.e4m3 {" MXFA_D64
                            "}, {%64, %65, %66, %67}, %68, p, 1, 1;\n}"
                 : MXFA_64(MXFA_NEW_F)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
  __device__ static void run(std::uint32_t (&d)[32], const std::uint32_t* a, std::uint64_t b,
                             bool accumulate) {
    asm volatile(MXFA_BEGIN("%37") "m64n128k32.f16.e4m3.e4m3 {" MXFA_D32
                                   "}, {%32, %33, %34, %35}, %36, p, 1, 1;\n}"
                 : MXFA_32(MXFA_R)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int{accumulate}));
  }
  __device__ static void start(std::uint32_t (&d)[32], const std::uint32_t* a, std::uint64_t b) {
    asm volatile(MXFA_START "m64n128k32.f16.e4m3.e4m3 {" MXFA_D32
                            "}, {%32, %33, %34, %35}, %36, p, 1, 1;\n}"
                 : MXFA_32(MXFA_NEW_R)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};

template <>
struct WgmmaRs<64> {
  __device__ static void run(float (&d)[32], const std::uint32_t* a, std::uint64_t b,
                             bool accumulate) {
    asm volatile(MXFA_BEGIN("%37") "m64n64k32.f32.e4m3.e4m3 {" MXFA_D32
                                   "}, {%32, %33, %34, %35}, %36, p, 1, 1;\n}"
                 : MXFA_32(MXFA_F)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int{accumulate}));
  }
  __device__ static void start(float (&d)[32], const std::uint32_t* a, std::uint64_t b) {
    asm volatile(MXFA_START "m64n64k32.f32.e4m3.e4m3 {" MXFA_D32
                            "}, {%32, %33, %34, %35}, %36, p, 1, 1;\n}"
                 : MXFA_32(MXFA_NEW_F)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
  __device__ static void run(std::uint32_t (&d)[16], const std::uint32_t* a, std::uint64_t b,
                             bool accumulate) {
    asm volatile(MXFA_BEGIN("%21") "m64n64k32.f16.e4m3.e4m3 {" MXFA_D16
                                   "}, {%16, %17, %18, %19}, %20, p, 1, 1;\n}"
                 : MXFA_16(MXFA_R, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int{accumulate}));
  }
  __device__ static void start(std::uint32_t (&d)[16], const std::uint32_t* a, std::uint64_t b) {
    asm volatile(MXFA_START "m64n64k32.f16.e4m3.e4m3 {" MXFA_D16
                            "}, {%16, %17, %18, %19}, %20, p, 1, 1;\n}"
                 : MXFA_16(MXFA_NEW_R, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
};

#undef MXFA_D16
#undef MXFA_D24
#undef MXFA_D32
#undef MXFA_D40
#undef MXFA_D48
#undef MXFA_D56
#undef MXFA_D64
#undef MXFA_4
#undef MXFA_16
#undef MXFA_32
#undef MXFA_64
#undef MXFA_NEW_F
#undef MXFA_NEW_R
#undef MXFA_START
#undef MXFA_F
#undef MXFA_R
#undef MXFA_BEGIN

}  // namespace mxfa::ptx
