#include <cstdint>

#include "cpu/kernels.h"
#include "mx/row_sum.h"

#if defined(__x86_64__)
#include <immintrin.h>

// GCC 12's intrinsics start from vectors that are undefined on purpose.
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#define MXFA_CPU_AVX512 1
#define MXFA_CPU_INLINE inline __attribute__((always_inline))

// Everything included above keeps the project's baseline: only these loops may use AVX-512.
#if defined(__clang__)
#pragma clang attribute push(                                                     \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")
#endif
namespace mxfa::cpu::avx512 {
namespace {
#include "cpu/vector_inl.h"

/// R rows of one panel: 4 R sums, 4 vectors of B and one of A live in registers.
template <int R>
MXFA_CPU_INLINE void micro_product(const PanelProduct& g, std::int64_t row, std::int64_t panel) {
  const std::uint16_t* a[R];
  const std::uint16_t* b = g.b + panel * g.b_panel;
  __m512 sums[R][4];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    a[r] = g.a + g.a_layout.at(row + r);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sums[r][i] = _mm512_setzero_ps();
  }
  for (std::int64_t first = 0; first < g.k; first += kTileDepth) {
    const std::int64_t end = g.k - first < kTileDepth ? g.k - first : kTileDepth;
    std::int64_t at = first / kTileDepth * g.a_layout.across;
    for (std::int64_t k = 0; k < end; k += 2, at += g.a_pair, b += kPanel * 2) {
      __m512bh columns[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) columns[i] = (__m512bh)_mm512_loadu_si512(b + i * kV * 2);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        std::int32_t both;
        __builtin_memcpy(&both, a[r] + at, 4);
        const __m512bh value = (__m512bh)_mm512_set1_epi32(both);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) sums[r][i] = _mm512_dpbf16_ps(sums[r][i], value, columns[i]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const __m512 alpha = _mm512_set1_ps(g.alpha != nullptr ? g.alpha[row + r] : 1.0f);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      float* c = g.c + g.c_layout.at(row + r, panel * kPanel + i * kV);
      const __m512 old = g.accumulate ? _mm512_loadu_ps(c) : _mm512_setzero_ps();
      _mm512_storeu_ps(c, g.accumulate ? _mm512_fmadd_ps(old, alpha, sums[r][i]) : sums[r][i]);
    }
  }
}

void product(const PanelProduct& g) {
  constexpr int kRows = 6;
  for (std::int64_t panel = 0; panel < g.n / kPanel; ++panel) {
    std::int64_t row = 0;
    for (; row + kRows <= g.m; row += kRows) micro_product<kRows>(g, row, panel);
    if (row + 4 <= g.m) {
      micro_product<4>(g, row, panel);
      row += 4;
    }
    if (row + 2 <= g.m) {
      micro_product<2>(g, row, panel);
      row += 2;
    }
    if (row < g.m) micro_product<1>(g, row, panel);
  }
}

/// Transposes 16 x 16 elements of 32 bits; rows lie so many elements of 16 bits apart.
MXFA_CPU_INLINE void transpose_square(const std::uint16_t* in, std::int64_t in_ld,
                                      std::uint16_t* out, std::int64_t out_ld) {
  __m512i a[16], b[16];
  for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(in + i * in_ld);
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    for (int half = 0; half < 2; ++half) {
      a[i + 2 * half] = _mm512_unpacklo_epi64(b[i + half], b[i + half + 2]);
      a[i + 2 * half + 1] = _mm512_unpackhi_epi64(b[i + half], b[i + half + 2]);
    }
  }
  for (int i = 0; i < 4; ++i) {
    b[i] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88);
    b[i + 4] = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xDD);
    b[i + 8] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
    b[i + 12] = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xDD);
  }
  for (int i = 0; i < 4; ++i) {
    _mm512_storeu_si512(out + i * out_ld, _mm512_shuffle_i32x4(b[i], b[i + 8], 0x88));
    _mm512_storeu_si512(out + (i + 4) * out_ld, _mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0x88));
    _mm512_storeu_si512(out + (i + 8) * out_ld, _mm512_shuffle_i32x4(b[i], b[i + 8], 0xDD));
    _mm512_storeu_si512(out + (i + 12) * out_ld, _mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0xDD));
  }
}

void transpose_pairs(const std::uint16_t* in, std::int64_t ld, std::uint16_t* out,
                     std::int64_t out_ld, std::int64_t rows, std::int64_t pairs) {
  std::int64_t p = 0;
  for (; p + 16 <= pairs; p += 16) {
    for (std::int64_t r = 0; r < rows; r += 16) {
      transpose_square(in + r * ld + p * 2, ld, out + p * out_ld + r * 2, out_ld);
    }
  }
  for (; p < pairs; ++p) {
    for (std::int64_t r = 0; r < rows; ++r) {
      __builtin_memcpy(out + p * out_ld + r * 2, in + r * ld + p * 2, 4);
    }
  }
}

#include "cpu/kernels_inl.h"
}  // namespace
}  // namespace mxfa::cpu::avx512
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace mxfa::cpu {
const Kernels* avx512_kernels() {
  static constexpr Kernels table = avx512::make_table(Isa::kAvx512Bf16, "AVX-512 BF16");
  return &table;
}
}  // namespace mxfa::cpu
#else
namespace mxfa::cpu {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace mxfa::cpu
#endif
