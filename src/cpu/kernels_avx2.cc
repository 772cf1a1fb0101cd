#include <cstdint>

#include "cpu/kernels.h"
#include "mx/row_sum.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define MXFA_CPU_AVX2 1
#define MXFA_CPU_INLINE inline __attribute__((always_inline))

// Everything included above keeps the project's baseline: only these loops may use AVX2.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
namespace mxfa::cpu::avx2 {
namespace {
#include "cpu/vector_inl.h"
// The loops follow.
#include "cpu/kernels_inl.h"
}  // namespace
}  // namespace mxfa::cpu::avx2
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace mxfa::cpu {
const Kernels* avx2_kernels() {
  static constexpr Kernels table = avx2::make_table(Isa::kAvx2, "AVX2");
  return &table;
}
}  // namespace mxfa::cpu
#else
namespace mxfa::cpu {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace mxfa::cpu
#endif
