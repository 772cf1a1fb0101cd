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
constexpr std::int64_t kMostRows = 96;           ///< that share a pass over B
constexpr std::int64_t kMostDepth = 512;         ///< of what is packed on the stack
constexpr std::int64_t kPairBytes = kPanel * 4;  ///< from one pair of k to the next in a panel

struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t column_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileConfig kConfig;

/// Rows of A whose values along k lie together.
struct LeftRows {
  const std::uint16_t* data;
  std::int64_t ld;
};

/// `rows` rows from `row` on: where they lie, or, where pairs of k are apart, a copy.
LeftRows left_rows(const PanelProduct& g, std::int64_t row, std::int64_t rows,
                   std::uint16_t* packed) {
  if (g.a_pair == 2) return {g.a + row * g.a_row, g.a_row};
  avx512_kernels()->transpose_pairs(g.a + row * 2, g.a_pair, packed, g.k / 2, rows);
  return {packed, g.k};
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
  const std::uint16_t* a = left.data;
  for (std::int64_t k = 0; k < g.k; k += kDepth, a += kDepth, b += kDepth / 2 * kPanel * 2) {
    _tile_loadd(4, a, left.ld * 2);
    _tile_loadd(6, b, kPairBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + kTile * 2, kPairBytes);
    _tile_dpbf16ps(1, 4, 7);
    if (!Two) continue;
    _tile_loadd(5, a + kTile * left.ld, left.ld * 2);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, c_bytes);
  _tile_stored(1, c + kTile, c_bytes);
  if (Two) _tile_stored(2, c + kTile * g.ldc, c_bytes);
  if (Two) _tile_stored(3, c + kTile * g.ldc + kTile, c_bytes);
}

/// Rows whose part of A stays in the first cache while 32 columns of B after the other pass by.
void multiply_rows(const PanelProduct& g, std::int64_t row, std::int64_t rows,
                   std::uint16_t* packed) {
  const LeftRows left = left_rows(g, row, rows, packed);
  if (g.accumulate && g.alpha != nullptr) scale_rows(g, row, rows);
  for (std::int64_t col = 0; col < g.n; col += 2 * kTile) {
    std::int64_t r = 0;
    for (; r + 2 * kTile <= rows; r += 2 * kTile) {
      multiply<true>(g, row + r, col, {left.data + r * left.ld, left.ld});
    }
    if (r < rows) multiply<false>(g, row + r, col, {left.data + r * left.ld, left.ld});
  }
}

void product(const PanelProduct& g) {
  const auto plain = avx512_kernels()->product;
  const std::int64_t rows = g.m / kTile * kTile;
  if (rows == 0 || g.k == 0 || g.k % kDepth != 0 || (g.a_pair != 2 && g.k > kMostDepth)) {
    return plain(g);
  }
  alignas(64) std::uint16_t packed[kMostRows * kMostDepth];
  _tile_loadconfig(&kConfig);
  for (std::int64_t row = 0; row < rows; row += kMostRows) {
    multiply_rows(g, row, std::min(kMostRows, rows - row), packed);
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
