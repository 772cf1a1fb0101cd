#include "mx/tensor_core_gemm.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/check.h"
#include "core/simd_clones.h"

namespace mxfa::mx {
namespace {

constexpr std::int64_t kStep = 32;  // depth of one instruction
constexpr std::int64_t kRows = 4;   // of the exact kernel
constexpr std::int64_t kCols = 16;  // of every kernel
constexpr int kZeroExponent = -60;  // two of them fit int8, one with 8 stays below every product
constexpr int kNoProduct = -20;     // E4M3 products have exponents -12..16

// Vector extensions, not loops: GCC keeps these accumulators in registers under every clone.
using Float8 = float __attribute__((vector_size(32)));
using Double8 = double __attribute__((vector_size(64)));
using Float16 = float __attribute__((vector_size(64)));
using Lane8 = std::int32_t __attribute__((vector_size(32)));
using Lane16 = std::int32_t __attribute__((vector_size(64)));
using Byte16 = std::int8_t __attribute__((vector_size(16)));

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

int exponent_of(float value) {
  const int exponent = static_cast<int>((float_bits(value) >> 23) & 0xFFu) - 127;
  return std::max(exponent, -126);
}

/// out[r][c] = sum over depth, 4 rows x 16 columns.
MXFA_SIMD_CLONES
void exact_block(const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
                 std::int64_t depth, double* out) {
  Double8 sum[kRows][2] = {};
  for (std::int64_t k = 0; k < depth; ++k) {
    for (int half = 0; half < 2; ++half) {
      Float8 narrow;
      std::memcpy(&narrow, b + k * ldb + 8 * half, sizeof narrow);
      const Double8 wide = __builtin_convertvector(narrow, Double8);
      for (int r = 0; r < kRows; ++r) {
        sum[r][half] += wide * static_cast<double>(a[r * lda + k]);
      }
    }
  }
  std::memcpy(out, sum, sizeof sum);
}

/// top[c] = largest exponent of the products of one row and 16 columns over one step.
MXFA_SIMD_CLONES
void product_tops(const std::int8_t* a, const std::int8_t* b, std::int8_t* top) {
  Byte16 best = {};
  best -= 120;
  for (int k = 0; k < kStep; ++k) {
    Byte16 exponent;
    std::memcpy(&exponent, b + k * kCols, sizeof exponent);
    exponent += a[k];
    best = exponent > best ? exponent : best;
  }
  std::memcpy(top, &best, sizeof best);
}

/// One step of one row and 16 columns with 13 fraction bits. Every scaling is by a power of two
/// and every product of two E4M3 values has 8 significant bits: only the two truncations round.
/// `kept` masks what a result keeps. Masks are signs, `x >> 31`: what compares vectors, GCC 12
/// compiles lane by lane in clones.
MXFA_SIMD_CLONES
void step_13(const float* a, const float* b, const std::int8_t* top, std::int32_t kept, float* c) {
  Lane16 old;
  std::memcpy(&old, c, sizeof old);
  const Lane16 magnitude = old & 0x7FFFFFFF;
  const Lane16 finite = (magnitude - 0x7F800000) >> 31;
  alignas(64) std::int32_t tops[kCols];
  for (int j = 0; j < kCols; ++j) tops[j] = top[j];
  Lane16 exponent;
  std::memcpy(&exponent, tops, sizeof exponent);
  const Lane16 products = (kNoProduct - exponent) >> 31;
  const Lane16 adds = finite & -magnitude >> 31;
  const Lane16 own = (((magnitude >> 23) - 127) & adds) | ((kNoProduct - 1000) & ~adds);
  const Lane16 over = exponent - own;
  exponent = (exponent - (over & over >> 31)) & products;  // the larger of both
  const Float16 unit = (Float16)((13 + 127 - exponent) << 23);
  Lane16 sum = __builtin_convertvector((Float16)(old & finite & products) * unit, Lane16);
  for (int k = 0; k < kStep; ++k) {
    Float16 value;
    std::memcpy(&value, b + k * kCols, sizeof value);
    sum += __builtin_convertvector(value * a[k] * unit, Lane16);
  }
  const Float16 back = (Float16)((exponent - 13 + 127) << 23);
  const Lane16 total = (Lane16)(__builtin_convertvector(sum, Float16) * back);
  // Without products only C's own low bits go; a zero result is +0.
  Lane16 result = ((total & products) | (old & ~products)) & kept;
  result &= -(result & 0x7FFFFFFF) >> 31;
  result = (result & finite) | (old & ~finite);
  std::memcpy(c, &result, sizeof result);
}

/// 16 columns to the nearest half, ties to even.
MXFA_SIMD_CLONES
void round_half(float* c) {
  Lane16 bits;
  std::memcpy(&bits, c, sizeof bits);
  const Lane16 magnitude = bits & 0x7FFFFFFF;
  // Adding it leaves a subnormal half's last bit, 2^-24, as the sum's last bit.
  const Float16 magic = (Float16)(magnitude * 0 + 0x3F400000);  // 0.75
  const Lane16 small = (Lane16)(((Float16)magnitude + magic) - magic);
  const Lane16 normal = (magnitude + 0xFFF + ((magnitude >> 13) & 1)) & ~0x1FFF;
  Lane16 result = magnitude < 0x38800000 ? small : normal;
  result = result >= 0x47800000 ? result * 0 + 0x7F800000 : result;
  result = magnitude < 0x7F800000 ? result : magnitude;
  result |= bits & ~0x7FFFFFFF;
  std::memcpy(c, &result, sizeof result);
}

/// 2^exponent, -1022..1023.
double double_power(int exponent) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(1023 + exponent) << 52);
}

/// sum[c] += the products, each truncated to a multiple of 1 after `unit` scaled it.
MXFA_SIMD_CLONES
void truncated_sum(const float* a, const float* b, const float* unit, double* sum) {
  for (int half = 0; half < 2; ++half) {
    Float8 scale;
    Double8 total;
    std::memcpy(&scale, unit + 8 * half, sizeof scale);
    std::memcpy(&total, sum + 8 * half, sizeof total);
    for (int k = 0; k < kStep; ++k) {
      Float8 value;
      std::memcpy(&value, b + k * kCols + 8 * half, sizeof value);
      const Lane8 term = __builtin_convertvector(value * a[k] * scale, Lane8);
      total += __builtin_convertvector(term, Double8);
    }
    std::memcpy(sum + 8 * half, &total, sizeof total);
  }
}

/// Double to FP32 toward zero, subnormals kept, 2^128 and more to infinity.
float truncate_double(double value) {
  const float nearest = static_cast<float>(value);
  if (std::fabs(static_cast<double>(nearest)) <= std::fabs(value)) return nearest;
  if (std::fabs(value) >= 0x1p128) return nearest;
  return bits_float(float_bits(nearest) - 1);
}

/// One step of one row and 16 columns with 25 fraction bits and block exponents `scale`. Terms are
/// below 2^27, so they fit int32; their sum needs double.
void step_25(const float* a, const float* b, const std::int8_t* top, const int* scale, float* c) {
  alignas(64) float unit[kCols];
  alignas(64) double sum[kCols];
  int exponent[kCols];
  for (int j = 0; j < kCols; ++j) {
    const bool products = top[j] > kNoProduct;
    const float addend = is_finite(c[j]) ? c[j] : 0.0f;
    exponent[j] = products ? top[j] + scale[j] : 0;
    if (products && addend != 0.0f) exponent[j] = std::max(exponent[j], exponent_of(addend));
    // Far below the accumulator every term truncates to 0.
    const int shift = std::max(25 + scale[j] - exponent[j], -126);
    unit[j] = products ? static_cast<float>(double_power(shift)) : 0.0f;
    const double own = static_cast<double>(addend) * double_power(25 - exponent[j]);
    sum[j] = products ? static_cast<double>(static_cast<std::int32_t>(own)) : 0.0;
  }
  truncated_sum(a, b, unit, sum);
  for (int j = 0; j < kCols; ++j) {
    if (!is_finite(c[j])) continue;
    if (top[j] > kNoProduct) c[j] = truncate_double(sum[j] * double_power(exponent[j] - 25));
    if (c[j] == 0.0f) c[j] = 0.0f;  // a zero sum is +0
  }
}

/// NaN results where a multiplicand of the step is NaN.
void poison(const MmaPanel& a, const MmaPanel& b, std::int64_t row, std::int64_t ka,
            std::int64_t kb, std::int64_t col, float* c) {
  for (int j = 0; j < kCols; ++j) {
    bool nan = false;
    for (std::int64_t k = 0; k < kStep && !nan; ++k) {
      nan = (!a.nan.empty() && a.nan[row * a.cols + ka + k]) ||
            (!b.nan.empty() && b.nan[(kb + k) * b.cols + col + j]);
    }
    if (nan) c[j] = bits_float(0x7FFFFFFFu);
  }
}

/// 16 columns of B side by side in the cache, where rows of a panel have one another's places.
struct Strip {
  std::vector<float> values;
  std::vector<std::int8_t> exponents;

  Strip(const MmaPanel& b, const MmaTile& tile, std::int64_t col) {
    const std::int64_t depth = round_up(tile.depth, kStep);
    values.resize(static_cast<std::size_t>(depth * kCols));
    exponents.resize(values.size());
    for (std::int64_t k = 0; k < depth; ++k) {
      const std::int64_t at = (tile.b_depth + k) * b.cols + col;
      std::memcpy(&values[k * kCols], &b.values[at], kCols * sizeof(float));
      std::memcpy(&exponents[k * kCols], &b.exponents[at], kCols);
    }
  }
};

void aligned_row(const MmaPanel& a, const MmaPanel& b, const Strip& strip, const MmaTile& tile,
                 std::int64_t row, std::int64_t col, AccumulatorRule rule, float* c) {
  const bool half = rule == kHopperFp8HalfAccumulator;
  const bool scaled = !a.scales.empty() || !b.scales.empty();
  for (int j = 0; j < kCols; ++j) {
    if (is_nan(c[j])) c[j] = bits_float(0x7FFFFFFFu);
  }
  for (std::int64_t k = 0; k < tile.depth; k += kStep) {
    const std::int64_t ka = tile.a_depth + k;
    const std::int64_t kb = tile.b_depth + k;
    alignas(16) std::int8_t top[kCols];
    product_tops(&a.exponents[row * a.cols + ka], &strip.exponents[k * kCols], top);
    const float* values = &strip.values[k * kCols];
    if (rule == kBlackwellAccumulator) {
      int scale[kCols] = {};
      for (int j = 0; scaled && j < kCols; ++j) {
        if (!a.scales.empty()) scale[j] += a.scales[(row * a.cols + ka) / kStep];
        if (!b.scales.empty()) scale[j] += b.scales[kb / kStep * b.cols + col + j];
      }
      step_25(a.row(row) + ka, values, top, scale, c);
    } else {
      step_13(a.row(row) + ka, values, top, half ? ~0 : ~0x3FF, c);
      if (half) round_half(c);
    }
    if (!a.nan.empty() || !b.nan.empty()) poison(a, b, row, ka, kb, col, c);
  }
}

/// Adds blocks of 32 of the depth, each times its power of two.
void scaled_blocks(const MmaPanel& a, const MmaPanel& b, const MmaTile& tile, std::int64_t row,
                   std::int64_t col, double* sum) {
  for (std::int64_t k = 0; k < tile.depth; k += kStep) {
    double block[kRows * kCols];
    const std::int64_t ka = tile.a_depth + k;
    const std::int64_t kb = tile.b_depth + k;
    exact_block(a.row(row) + ka, a.cols, b.row(kb) + col, b.cols, kStep, block);
    for (std::int64_t r = 0; r < kRows; ++r) {
      const int sa = a.scales.empty() ? 0 : a.scales[((row + r) * a.cols + ka) / kStep];
      for (std::int64_t j = 0; j < kCols; ++j) {
        const int sb = b.scales.empty() ? 0 : b.scales[kb / kStep * b.cols + col + j];
        sum[r * kCols + j] += block[r * kCols + j] * double_power(sa + sb);
      }
    }
  }
}

void exact_rows(const MmaPanel& a, const MmaPanel& b, const MmaTile& tile, std::int64_t i, float* c,
                std::int64_t ldc) {
  const std::int64_t row = tile.a_row + i;
  for (std::int64_t j = 0; j < tile.n; j += kCols) {
    double sum[kRows * kCols] = {};
    const std::int64_t col = tile.b_col + j;
    if (a.scales.empty() && b.scales.empty()) {
      exact_block(a.row(row) + tile.a_depth, a.cols, b.row(tile.b_depth) + col, b.cols,
                  round_up(tile.depth, kStep), sum);
    } else {
      scaled_blocks(a, b, tile, row, col, sum);
    }
    for (std::int64_t r = 0; r < std::min(kRows, tile.m - i); ++r) {
      float* out = c + (i + r) * ldc + j;
      for (std::int64_t q = 0; q < std::min(kCols, tile.n - j); ++q) {
        out[q] = static_cast<float>(sum[r * kCols + q] + static_cast<double>(out[q]));
      }
    }
  }
}

void check_tile(const MmaPanel& a, const MmaPanel& b, const MmaTile& tile, AccumulatorRule rule) {
  const std::int64_t depth = round_up(tile.depth, kStep);
  core::expect(tile.a_row + round_up(tile.m, kRows) <= a.rows && tile.a_depth + depth <= a.cols,
               "a", "a panel that holds the tile", a.rows);
  core::expect(tile.b_col + round_up(tile.n, kCols) <= b.cols && tile.b_depth + depth <= b.rows,
               "b", "a panel that holds the tile", b.cols);
  core::expect(tile.a_depth % kStep == 0 && tile.b_depth % kStep == 0 && tile.b_col % kCols == 0,
               "tile", "offsets in steps of 32 (depth) and 16 (columns)", tile.a_depth);
  if (rule == kExactAccumulator) return;
  const bool narrow = rule == kHopperFp8Accumulator || rule == kHopperFp8HalfAccumulator;
  core::expect(narrow || rule == kBlackwellAccumulator, "rule", "13 or 25 fraction bits",
               std::int64_t{rule.fraction_bits});
  core::expect(!narrow || (a.scales.empty() && b.scales.empty()), "rule",
               "25 fraction bits with block exponents", std::int64_t{13});
  core::expect(a.exponents.size() == a.values.size() && b.exponents.size() == b.values.size(),
               "panel", "prepare_aligned() done", std::int64_t{0});
}

}  // namespace

MmaPanel::MmaPanel(std::int64_t row_count, std::int64_t col_count)
    : rows(round_up(row_count, kStep)),
      cols(round_up(col_count, kStep)),
      values(static_cast<std::size_t>(rows * cols)) {}

void prepare_aligned(MmaPanel& panel) {
  panel.exponents.resize(panel.values.size());
  panel.nan.clear();
  for (std::size_t i = 0; i < panel.values.size(); ++i) {
    float& value = panel.values[i];
    if (is_nan(value)) {
      panel.nan.resize(panel.values.size());
      panel.nan[i] = 1;
      value = 0.0f;
    }
    panel.exponents[i] =
        static_cast<std::int8_t>(value == 0.0f ? kZeroExponent : std::max(exponent_of(value), -6));
  }
}

void tensor_core_gemm(const MmaPanel& a, const MmaPanel& b, const MmaTile& tile,
                      AccumulatorRule rule, float* c, std::int64_t ldc) {
  check_tile(a, b, tile, rule);
  if (rule == kExactAccumulator) {
    for (std::int64_t i = 0; i < tile.m; i += kRows) exact_rows(a, b, tile, i, c, ldc);
    return;
  }
  for (std::int64_t j = 0; j < tile.n; j += kCols) {
    const Strip strip(b, tile, tile.b_col + j);
    const std::size_t bytes = sizeof(float) * std::min(kCols, tile.n - j);
    for (std::int64_t i = 0; i < tile.m; ++i) {
      float out[kCols] = {};
      std::memcpy(out, c + i * ldc + j, bytes);
      aligned_row(a, b, strip, tile, tile.a_row + i, tile.b_col + j, rule, out);
      std::memcpy(c + i * ldc + j, out, bytes);
    }
  }
}

}  // namespace mxfa::mx
