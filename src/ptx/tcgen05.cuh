#pragma once

#include <cstdint>

/// Tensor memory and the block-scaled tensor cores of sm_100a and sm_103a, FP8 (E4M3), one CTA.
/// cuda::ptx of CUDA 13.0 gates its wrappers to sm_100a and has no mxf8f6f4 with A in tensor
/// memory.
///
/// Tensor memory is 128 lanes x 512 columns of 32 bits; an address holds the lane in its upper
/// half, the column in its lower one. Row r of a 128-row tile is lane r. mma, cp and commit are
/// issued by one thread and complete later; ld and st by whole warps, warp w on lanes 32 (w % 4) ..
/// + 31.
namespace mxfa::ptx {

/// By one warp; the base address goes to shared memory.
template <int kColumns>
__device__ inline void tmem_alloc(std::uint32_t to_shared) {
  asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(to_shared),
               "n"(kColumns)
               : "memory");
  asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
}
template <int kColumns>
__device__ inline void tmem_dealloc(std::uint32_t base) {
  asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(base), "n"(kColumns));
}

/// On both sides of what orders threads: before an arrival, after a wait.
__device__ inline void tcgen05_fence_before() {
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}
__device__ inline void tcgen05_fence_after() {
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

/// A 512-byte scale atom in shared memory (mx/scale_layout.h) to 4 columns, in all four quarters.
__device__ inline void tcgen05_copy_scales(std::uint32_t to, std::uint32_t atom) {
  const std::uint64_t descriptor = 0x0000400800000000ull | (atom >> 4);
  asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" ::"r"(to), "l"(descriptor)
               : "memory");
}

/// Where the factors of a block-scaled product lie.
struct ScaleColumns {
  std::uint32_t a;
  std::uint32_t b;
};
/// D (128 x N, FP32) = A B (+ D where `accumulate`), one step of K = 32. Both operands by
/// descriptors of shared memory.
__device__ inline void tcgen05_mma_mxf8(std::uint32_t d, std::uint64_t a, std::uint64_t b,
                                        std::uint32_t instruction, ScaleColumns scales,
                                        bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
      "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X "
      "[%0], %1, %2, %3, [%4], [%5], p;\n}" ::"r"(d),
      "l"(a), "l"(b), "r"(instruction), "r"(scales.a), "r"(scales.b), "r"(int{accumulate})
      : "memory");
}
/// The same with A in tensor memory: 8 columns a step, four K a column.
__device__ inline void tcgen05_mma_mxf8_tmem(std::uint32_t d, std::uint32_t a, std::uint64_t b,
                                             std::uint32_t instruction, ScaleColumns scales,
                                             bool accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
      "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X "
      "[%0], [%1], %2, %3, [%4], [%5], p;\n}" ::"r"(d),
      "r"(a), "l"(b), "r"(instruction), "r"(scales.a), "r"(scales.b), "r"(int{accumulate})
      : "memory");
}
/// The instruction descriptor of both: E4M3 x E4M3, M = 128; scales of step `k` are byte k of a
/// column. `transposed_b`: B's N is contiguous.
__device__ constexpr std::uint32_t mxf8_instruction(int n, bool transposed_b, int k) {
  return 0x08800000u | static_cast<std::uint32_t>(n >> 3) << 17 | (transposed_b ? 0x10000u : 0u) |
         static_cast<std::uint32_t>(k) << 29 | static_cast<std::uint32_t>(k) << 4;
}
/// Descriptor of a tile in shared memory whose rows of 64 or 128 bytes lie one after the other,
/// swizzled by that width: K-major, or N-major where the row is along N. Aligned to 8 rows.
__device__ inline std::uint64_t swizzled_tile(std::uint32_t address, int row_bytes) {
  const std::uint64_t layout = row_bytes == 128 ? 0x4000404000000000ull : 0x8000402000000000ull;
  return layout | (address >> 4);
}

/// One arrival when every earlier mma and cp of this thread is done.
__device__ inline void tcgen05_commit(std::uint32_t barrier) {
  asm volatile(
      "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier)
      : "memory");
}

// clang-format off
#define MXFA_OUT4(i) "=f"(x[i]), "=f"(x[i + 1]), "=f"(x[i + 2]), "=f"(x[i + 3])
#define MXFA_IN4(i) "f"(x[i]), "f"(x[i + 1]), "f"(x[i + 2]), "f"(x[i + 3])
#define MXFA_R16 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define MXFA_R32 MXFA_R16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, " \
                 "%29, %30, %31"
// clang-format on

/// 32 columns of the thread's lane. Whoever reads the registers waits for them; nobody may write
/// them or the columns before tmem_wait_load().
__device__ inline void tmem_load_32(std::uint32_t from, float* x) {
  asm volatile("tcgen05.ld.sync.aligned.32x32b.x32.b32 " MXFA_R32 "}, [%32];"
               : MXFA_OUT4(0), MXFA_OUT4(4), MXFA_OUT4(8), MXFA_OUT4(12), MXFA_OUT4(16),
                 MXFA_OUT4(20), MXFA_OUT4(24), MXFA_OUT4(28)
               : "r"(from)
               : "memory");
}
/// The same and, on sm_103a, the largest of the 32 in `most`, which may be NaN where all are.
__device__ inline void tmem_load_32_max(std::uint32_t from, float* x, float& most) {
  asm volatile("tcgen05.ld.red.sync.aligned.32x32b.x32.max.f32 " MXFA_R32 "}, %32, [%33];"
               : MXFA_OUT4(0), MXFA_OUT4(4), MXFA_OUT4(8), MXFA_OUT4(12), MXFA_OUT4(16),
                 MXFA_OUT4(20), MXFA_OUT4(24), MXFA_OUT4(28), "=f"(most)
               : "r"(from)
               : "memory");
}
__device__ inline void tmem_load_16(std::uint32_t from, float* x) {
  asm volatile("tcgen05.ld.sync.aligned.32x32b.x16.b32 " MXFA_R16 "}, [%16];"
               : MXFA_OUT4(0), MXFA_OUT4(4), MXFA_OUT4(8), MXFA_OUT4(12)
               : "r"(from)
               : "memory");
}
__device__ inline void tmem_store_16(std::uint32_t to, const float* x) {
  asm volatile("tcgen05.st.sync.aligned.32x32b.x16.b32 [%16], " MXFA_R16 "};" ::MXFA_IN4(0),
               MXFA_IN4(4), MXFA_IN4(8), MXFA_IN4(12), "r"(to)
               : "memory");
}
__device__ inline void tmem_store_8(std::uint32_t to, const std::uint32_t (&x)[8]) {
  asm volatile(
      "tcgen05.st.sync.aligned.32x32b.x8.b32 [%8], {%0, %1, %2, %3, %4, %5, %6, %7};" ::"r"(x[0]),
      "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(x[4]), "r"(x[5]), "r"(x[6]), "r"(x[7]), "r"(to)
      : "memory");
}

#undef MXFA_OUT4
#undef MXFA_IN4
#undef MXFA_R16
#undef MXFA_R32

/// Until the warp's loads are done.
__device__ inline void tmem_wait_load() {
  asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
}
/// The same where the compiler is not to touch `x` before.
template <int kCount>
__device__ inline void tmem_wait_load(float (&x)[kCount]) {
  tmem_wait_load();
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(x[i]));
}
__device__ inline void tmem_wait_store() {
  asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
}

}  // namespace mxfa::ptx
