#include <algorithm>
#include <cstdint>

#include "cpu/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

// GCC 12's intrinsics start from vectors that are undefined on purpose.
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

// Everything included above keeps the project's baseline: only these loops may use AMX.
#if defined(__clang__)
#pragma clang attribute push(                                                            \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma,amx-tile,amx-bf16"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,fma,amx-tile,amx-bf16")
#endif
namespace mxfa::cpu::amx {
namespace {

constexpr std::int64_t kTile = 16;               ///< rows and columns of a tile of sums
constexpr std::int64_t kDepth = 32;              ///< BF16 values along k in a tile of operands
constexpr std::int64_t kMostDepth = 512;         ///< of what is packed on the stack
constexpr std::int64_t kPairBytes = kPanel * 4;  ///< from one pair of k to the next in a panel

struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t column_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileConfig kConfig;

/// Transposes 16 x 16 elements of 32 bits; rows of `from` and `to` are so many bytes apart.
void transpose(const char* from, std::int64_t from_bytes, char* to, std::int64_t to_bytes) {
  __m512i a[16], b[16];
  for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(from + i * from_bytes);
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
    _mm512_storeu_si512(to + i * to_bytes, _mm512_shuffle_i32x4(b[i], b[i + 8], 0x88));
    _mm512_storeu_si512(to + (i + 4) * to_bytes, _mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0x88));
    _mm512_storeu_si512(to + (i + 8) * to_bytes, _mm512_shuffle_i32x4(b[i], b[i + 8], 0xDD));
    _mm512_storeu_si512(to + (i + 12) * to_bytes, _mm512_shuffle_i32x4(b[i + 4], b[i + 12], 0xDD));
  }
}

/// Rows of A whose values along k lie together.
struct LeftRows {
  const char* data;
  std::int64_t row_bytes;
};

/// `rows` rows from `row` on: where they lie, or, where pairs of k are apart, a copy.
LeftRows left_rows(const PanelProduct& g, std::int64_t row, std::int64_t rows, char* packed) {
  if (g.a_pair == 2) return {reinterpret_cast<const char*>(g.a + row * g.a_row), g.a_row * 2};
  for (std::int64_t r = 0; r < rows; r += kTile) {
    for (std::int64_t pair = 0; pair < g.k / 2; pair += kTile) {
      transpose(reinterpret_cast<const char*>(g.a + (row + r) * 2 + pair * g.a_pair), g.a_pair * 2,
                packed + r * g.k * 2 + pair * 4, g.k * 2);
    }
  }
  return {packed, g.k * 2};
}

void scale_rows(const PanelProduct& g, std::int64_t row, std::int64_t rows) {
  for (std::int64_t r = row; r < row + rows; ++r) {
    if (g.alpha[r] == 1.0f) continue;
    const __m512 alpha = _mm512_set1_ps(g.alpha[r]);
    float* const c = g.c + r * g.ldc;
    for (std::int64_t col = 0; col < g.n; col += kTile) {
      _mm512_storeu_ps(c + col, _mm512_mul_ps(_mm512_loadu_ps(c + col), alpha));
    }
  }
}

/// 32 (Two) or 16 rows x 32 columns of sums.
template <bool Two>
void multiply(const PanelProduct& g, std::int64_t row, std::int64_t col, LeftRows left) {
  const std::int64_t c_bytes = g.ldc * 4;
  float* const c = g.c + row * g.ldc + col;
  if (g.accumulate) {
    _tile_loadd(0, c, c_bytes);
    _tile_loadd(1, c + kTile, c_bytes);
    if (Two) _tile_loadd(2, c + kTile * g.ldc, c_bytes);
    if (Two) _tile_loadd(3, c + kTile * g.ldc + kTile, c_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    if (Two) _tile_zero(2);
    if (Two) _tile_zero(3);
  }
  const std::uint16_t* b = g.b + col / kPanel * g.b_panel + col % kPanel * 2;
  for (std::int64_t k = 0; k < g.k; k += kDepth, b += kDepth / 2 * kPanel * 2) {
    _tile_loadd(4, left.data + k * 2, left.row_bytes);
    _tile_loadd(6, b, kPairBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + kTile * 2, kPairBytes);
    _tile_dpbf16ps(1, 4, 7);
    if (!Two) continue;
    _tile_loadd(5, left.data + kTile * left.row_bytes + k * 2, left.row_bytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, c_bytes);
  _tile_stored(1, c + kTile, c_bytes);
  if (Two) _tile_stored(2, c + kTile * g.ldc, c_bytes);
  if (Two) _tile_stored(3, c + kTile * g.ldc + kTile, c_bytes);
}

void product(const PanelProduct& g) {
  const auto plain = avx512_kernels()->product;
  const std::int64_t rows = g.m / kTile * kTile;
  if (rows == 0 || g.k == 0 || g.k % kDepth != 0 || (g.a_pair != 2 && g.k > kMostDepth)) {
    return plain(g);
  }
  alignas(64) char packed[2 * kTile * kMostDepth * 2];
  _tile_loadconfig(&kConfig);
  for (std::int64_t row = 0; row < rows; row += 2 * kTile) {
    const std::int64_t count = std::min(2 * kTile, rows - row);
    const LeftRows left = left_rows(g, row, count, packed);
    if (g.accumulate && g.alpha != nullptr) scale_rows(g, row, count);
    for (std::int64_t col = 0; col < g.n; col += 2 * kTile) {
      if (count == 2 * kTile) {
        multiply<true>(g, row, col, left);
      } else {
        multiply<false>(g, row, col, left);
      }
    }
  }
  _tile_release();
  if (rows == g.m) return;
  PanelProduct rest = g;
  rest.m = g.m - rows;
  rest.a += rows * g.a_row;
  rest.c += rows * g.ldc;
  if (g.alpha != nullptr) rest.alpha += rows;
  plain(rest);
}

}  // namespace
}  // namespace mxfa::cpu::amx
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace mxfa::cpu {

bool amx_usable() {
  static const bool usable = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
    constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
    if ((d & kBf16) == 0 || (d & kTile) == 0) return false;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // of arch_prctl
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return usable;
}

const Kernels* amx_kernels() {
  static const Kernels table = [] {
    Kernels kernels = *avx512_kernels();
    kernels.isa = Isa::kAmxBf16;
    kernels.name = "AMX BF16";
    kernels.product = amx::product;
    return kernels;
  }();
  return &table;
}

}  // namespace mxfa::cpu
#else
namespace mxfa::cpu {
bool amx_usable() { return false; }
const Kernels* amx_kernels() { return nullptr; }
}  // namespace mxfa::cpu
#endif
