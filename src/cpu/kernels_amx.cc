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
#pragma clang attribute push(                                                                   \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma,prfchw,amx-tile,amx-bf16"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,fma,prfchw,amx-tile,amx-bf16")
#endif
namespace mxfa::cpu::amx {
namespace {

constexpr std::int64_t kDepth = kTileDepth;
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
struct Left {
  const std::uint16_t* data;
  LeftLayout layout;
};

/// `rows` rows from `row` on: where they lie, or, where pairs of k are apart, a copy.
Left left_rows(const PanelProduct& g, std::int64_t row, std::int64_t rows, std::uint16_t* packed) {
  if (g.a_pair == 2) return {g.a + g.a_layout.at(row), g.a_layout};
  avx512_kernels()->transpose_pairs(g.a + row * 2, g.a_pair, packed, g.k, g.k / 2, rows);
  return {packed, LeftLayout::rows(g.k)};
}

/// Rows in whole tiles. Which of them shrink is not known ahead: no branch for each.
void scale_rows(const PanelProduct& g, std::int64_t row, std::int64_t rows) {
  const __m512 one = _mm512_set1_ps(1.0f);
  for (std::int64_t first = row; first < row + rows; first += kTile) {
    unsigned left = _mm512_cmp_ps_mask(_mm512_loadu_ps(g.alpha + first), one, _CMP_NEQ_UQ);
    for (; left != 0; left &= left - 1) {
      const std::int64_t r = first + __builtin_ctz(left);
      const __m512 alpha = _mm512_set1_ps(g.alpha[r]);
      float* c = g.c + g.c_layout.at(r);
      for (std::int64_t col = 0; col < g.n; col += kTile, c += g.c_layout.across) {
        _mm512_storeu_ps(c, _mm512_mul_ps(_mm512_loadu_ps(c), alpha));
      }
    }
  }
}

/// Sums of 32 (Two) or 16 rows x 32 columns in tiles 0 to 3.
template <bool Two>
void store_sums(float* c, const SumLayout& layout) {
  const std::int64_t bytes = layout.row * 4;
  _tile_stored(0, c, bytes);
  _tile_stored(1, c + layout.across, bytes);
  if (Two) _tile_stored(2, c + layout.down, bytes);
  if (Two) _tile_stored(3, c + layout.down + layout.across, bytes);
}
template <bool Two, bool Accumulate>
void begin_sums(const float* c, const SumLayout& layout) {
  const std::int64_t bytes = layout.row * 4;
  if (Accumulate) {
    _tile_loadd(0, c, bytes);
    _tile_loadd(1, c + layout.across, bytes);
    if (Two) _tile_loadd(2, c + layout.down, bytes);
    if (Two) _tile_loadd(3, c + layout.down + layout.across, bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    if (Two) _tile_zero(2);
    if (Two) _tile_zero(3);
  }
}

/// Where 32 values along k of a square's operands lie.
struct Operands {
  const std::uint16_t* a;
  const std::uint16_t* b;
};
void load_operands(Operands from, const LeftLayout& left) {
  _tile_loadd(4, from.a, left.row * 2);
  _tile_loadd(6, from.b, kPairBytes);
  _tile_loadd(7, from.b + kTile * 2, kPairBytes);
  _tile_loadd(5, from.a + left.down, left.row * 2);
}
/// Each operand makes room for the next step's as soon as it was read.
void multiply_and_load(Operands next, const LeftLayout& left) {
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  _tile_loadd(4, next.a, left.row * 2);
  _tile_dpbf16ps(2, 5, 6);
  _tile_loadd(6, next.b, kPairBytes);
  _tile_dpbf16ps(3, 5, 7);
  _tile_loadd(7, next.b + kTile * 2, kPairBytes);
  _tile_loadd(5, next.a + left.down, left.row * 2);
}
/// The same with new sums from `c` on: each tile of the ones before is stored to `done` while the
/// products of the others are under way, so that none waits for all of them.
template <bool Accumulate>
void multiply_anew(float* done, const float* c, const SumLayout& layout, Operands next,
                   const LeftLayout& left) {
  const std::int64_t bytes = layout.row * 4, right = layout.across, below = layout.down;
  _tile_stored(0, done, bytes);
  if (Accumulate) {
    _tile_loadd(0, c, bytes);
  } else {
    _tile_zero(0);
  }
  _tile_dpbf16ps(0, 4, 6);
  _tile_stored(1, done + right, bytes);
  if (Accumulate) {
    _tile_loadd(1, c + right, bytes);
  } else {
    _tile_zero(1);
  }
  _tile_dpbf16ps(1, 4, 7);
  _tile_loadd(4, next.a, left.row * 2);
  _tile_stored(2, done + below, bytes);
  if (Accumulate) {
    _tile_loadd(2, c + below, bytes);
  } else {
    _tile_zero(2);
  }
  _tile_dpbf16ps(2, 5, 6);
  _tile_loadd(6, next.b, kPairBytes);
  _tile_stored(3, done + below + right, bytes);
  if (Accumulate) {
    _tile_loadd(3, c + below + right, bytes);
  } else {
    _tile_zero(3);
  }
  _tile_dpbf16ps(3, 5, 7);
  _tile_loadd(7, next.b + kTile * 2, kPairBytes);
  _tile_loadd(5, next.a + left.down, left.row * 2);
}
/// Rows [row, row + rows) of each tile of a square's sums, which will be loaded and stored.
void prefetch_sums(const float* c, const SumLayout& layout, std::int64_t row, std::int64_t rows) {
  for (std::int64_t r = row; r < row + rows; ++r) {
    const float* const at = c + r * layout.row;
    for (const float* tile : {at, at + layout.across}) {
      __builtin_prefetch(tile, 1);
      __builtin_prefetch(tile + layout.down, 1);
    }
  }
}

/// All squares of 32 x 32 of `down` * 32 rows, whose part of A stays in the first cache while 32
/// columns of B after the other pass by. No step waits for its operands: they were asked for during
/// the step before, also where that was another square's.
template <bool Accumulate>
void multiply_squares(const PanelProduct& g, std::int64_t row, std::int64_t down, Left left) {
  constexpr std::int64_t kStepB = kDepth / 2 * kPanel * 2;
  static_assert(kPanel == 2 * (2 * kTile));  // squares lie two by two in B
  const LeftLayout layout = left.layout;
  const SumLayout sums = g.c_layout;
  const std::int64_t across = g.n / (2 * kTile), steps = g.k / kDepth;
  const std::int64_t rows_ahead = steps > 2 ? (kTile + steps - 3) / (steps - 2) : kTile;
  const auto column = [&](std::int64_t col) {
    return g.b + col / 2 * g.b_panel + col % 2 * (2 * kTile * 2);
  };
  const auto sums_at = [&](std::int64_t col) { return g.c + sums.at(row, col * 2 * kTile); };
  float* done = nullptr;
  load_operands({left.data, g.b}, layout);
  for (std::int64_t col = 0; col < across; ++col) {
    // Behind the last square come the first one's operands, for nobody.
    const std::int64_t next_col = col + 1 < across ? col + 1 : 0;
    for (std::int64_t r = 0; r < down; ++r) {
      Operands at{left.data + r * 2 * layout.down, column(col)};
      float* const c = sums_at(col) + r * 2 * sums.down;
      const bool more = r + 1 < down;
      const Operands next =
          more ? Operands{at.a + 2 * layout.down, at.b} : Operands{left.data, column(next_col)};
      const float* const next_c = more ? c + 2 * sums.down : sums_at(next_col);
      const auto advance = [&](std::int64_t step) {
        at = step < steps ? Operands{at.a + layout.across, at.b + kStepB} : next;
      };
      advance(1);
      if (done == nullptr) {
        begin_sums<true, Accumulate>(c, sums);
        multiply_and_load(at, layout);
      } else {
        multiply_anew<Accumulate>(done, c, sums, at, layout);
      }
      for (std::int64_t step = 2, ahead = 0; step <= steps; ++step, ahead += rows_ahead) {
        if (Accumulate && ahead < kTile) {
          prefetch_sums(next_c, sums, ahead, std::min(rows_ahead, kTile - ahead));
        }
        advance(step);
        multiply_and_load(at, layout);
      }
      done = c;
    }
  }
  store_sums<true>(done, sums);
}

/// The last 16 rows of an odd number of tiles.
template <bool Accumulate>
void multiply_half(const PanelProduct& g, std::int64_t row, Left left) {
  const std::int64_t steps = g.k / kDepth;
  for (std::int64_t col = 0; col < g.n; col += 2 * kTile) {
    float* const c = g.c + g.c_layout.at(row, col);
    const std::uint16_t* a = left.data;
    const std::uint16_t* b = g.b + col / kPanel * g.b_panel + col % kPanel * 2;
    begin_sums<false, Accumulate>(c, g.c_layout);
    for (std::int64_t step = 0; step < steps; ++step) {
      _tile_loadd(4, a, left.layout.row * 2);
      _tile_loadd(6, b, kPairBytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, b + kTile * 2, kPairBytes);
      _tile_dpbf16ps(1, 4, 7);
      a += left.layout.across;
      b += kDepth / 2 * kPanel * 2;
    }
    store_sums<false>(c, g.c_layout);
  }
}

template <bool Accumulate>
void multiply_rows(const PanelProduct& g, std::int64_t row, std::int64_t rows,
                   std::uint16_t* packed) {
  const Left left = left_rows(g, row, rows, packed);
  if (Accumulate && g.alpha != nullptr) scale_rows(g, row, rows);
  const std::int64_t down = rows / (2 * kTile), whole = down * 2 * kTile;
  if (down > 0) multiply_squares<Accumulate>(g, row, down, left);
  if (whole < rows) {
    multiply_half<Accumulate>(g, row + whole, {left.data + left.layout.at(whole), left.layout});
  }
}

thread_local bool tiles_are_set = false;

void begin_products() {
  _tile_loadconfig(&kConfig);
  tiles_are_set = true;
}
void end_products() {
  _tile_release();
  tiles_are_set = false;
}

/// Rows in whole tiles, k in whole tiles.
void multiply(const PanelProduct& g) {
  alignas(64) std::uint16_t packed[kMostRows * kMostDepth];
  for (std::int64_t row = 0; row < g.m; row += kMostRows) {
    const std::int64_t count = std::min(kMostRows, g.m - row);
    if (g.accumulate) {
      multiply_rows<true>(g, row, count, packed);
    } else {
      multiply_rows<false>(g, row, count, packed);
    }
  }
}

/// The last values of k, which fill no tile: zeros follow them, so that sums do not depend on
/// whether a caller's k ends here or in zeros.
void multiply_tail(const PanelProduct& g, std::int64_t first) {
  alignas(64) std::uint16_t a[kMostRows * kDepth], b[kDepth * kPanel];
  const std::int64_t pairs = (g.k - first) / 2;
  const bool alone = first == 0;
  for (std::int64_t panel = 0; panel < g.n / kPanel; ++panel) {
    const std::uint16_t* const from = g.b + panel * g.b_panel + first * kPanel;
    std::fill(std::copy_n(from, pairs * 2 * kPanel, b), b + kDepth * kPanel, std::uint16_t{0});
    for (std::int64_t row = 0; row < g.m; row += kMostRows) {
      const std::int64_t count = std::min(kMostRows, g.m - row);
      std::fill_n(a, count * kDepth, std::uint16_t{0});
      for (std::int64_t r = 0; r < count; ++r) {
        const std::uint16_t* const values = g.a + g.a_layout.at(row + r, first);
        for (std::int64_t p = 0; p < pairs; ++p) {
          std::copy_n(values + p * g.a_pair, 2, a + r * kDepth + 2 * p);
        }
      }
      multiply({.m = count,
                .n = kPanel,
                .k = kDepth,
                .a = a,
                .a_layout = LeftLayout::rows(kDepth),
                .b = b,
                .b_panel = kDepth * kPanel,
                .c = g.c + g.c_layout.at(row, panel * kPanel),
                .c_layout = g.c_layout,
                .accumulate = g.accumulate || !alone,
                .alpha = alone && g.alpha != nullptr ? g.alpha + row : nullptr});
    }
  }
}

void product(const PanelProduct& g) {
  const auto plain = avx512_kernels()->product;
  const std::int64_t rows = g.m / kTile * kTile;
  if (rows == 0 || g.k == 0 || (g.a_pair != 2 && g.k > kMostDepth)) return plain(g);
  const bool sets_tiles = !tiles_are_set;
  if (sets_tiles) begin_products();
  PanelProduct whole = g;
  whole.m = rows;
  whole.k = g.k / kDepth * kDepth;
  if (whole.k > 0) multiply(whole);
  if (whole.k < g.k) {
    const std::int64_t first = whole.k;
    whole.k = g.k;
    multiply_tail(whole, first);
  }
  if (sets_tiles) end_products();
  if (rows == g.m) return;
  PanelProduct rest = g;
  rest.m = g.m - rows;
  rest.a += g.a_layout.at(rows);
  rest.c += g.c_layout.at(rows);
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
    constexpr unsigned kBf16 = 1u << 22, kAmxTile = 1u << 24;
    if ((d & kBf16) == 0 || (d & kAmxTile) == 0) return false;
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
    kernels.begin_products = amx::begin_products;
    kernels.end_products = amx::end_products;
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
