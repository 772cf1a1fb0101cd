#pragma once

#include <cstdint>
#include <vector>

#include "mx/tensor_core.h"

/// C += A * B for whole tiles with the arithmetic of tensor_core.h, vectorized over columns. One
/// MMA instruction covers 32 of the depth, as FP8 instructions do.
namespace mxfa::mx {

/// Multiplicands decoded once: A is [rows, depth], B is [depth, cols]. Storage is padded with zeros
/// to multiples of 32 in both directions, so that kernels need no tails.
struct MmaPanel {
  std::int64_t rows = 0;      ///< padded
  std::int64_t cols = 0;      ///< padded
  std::vector<float> values;  ///< an aligned rule needs E4M3 values; NaN: see `nan`
  /// Block exponents, added to both operands' products: A [rows, depth / 32], B [depth / 32, cols];
  /// empty = none.
  std::vector<std::int16_t> scales;
  /// For the aligned rules, from prepare_aligned(): the exponents of E4M3 values, and where NaNs
  /// were (`values` hold 0 there); empty where there are none.
  std::vector<std::int8_t> exponents;
  std::vector<std::uint8_t> nan;

  MmaPanel() = default;
  /// All zero.
  MmaPanel(std::int64_t row_count, std::int64_t col_count);
  float* row(std::int64_t index) { return values.data() + index * cols; }
  const float* row(std::int64_t index) const { return values.data() + index * cols; }
};

/// Fills `exponents` and `nan` from `values`.
void prepare_aligned(MmaPanel& panel);

/// C[m, n] += A[a_row.., a_depth..] * B[b_depth.., b_col..] over `depth` of K. Offsets along the
/// depth are multiples of 32; depths and extents that are not read into the padding, which is zero
/// or, inside a panel, other rows whose results are dropped. b_col is a multiple of 16.
struct MmaTile {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t depth = 0;
  std::int64_t a_row = 0;
  std::int64_t a_depth = 0;
  std::int64_t b_depth = 0;
  std::int64_t b_col = 0;
};

/// kExactAccumulator: the sum over the whole depth and C in double (exact within each 32 of E4M3
/// values), rounded once to FP32. Others: one rounding or truncation for each 32 of the depth, bit
/// for bit MmaElement{kE4M3, kE4M3, rule}.f32, or .f16 of kHopperFp8HalfAccumulator, whose C are
/// halves; rules with 13 or 25 fraction bits are implemented, 13 without block exponents only.
void tensor_core_gemm(const MmaPanel& a, const MmaPanel& b, const MmaTile& tile,
                      AccumulatorRule rule, float* c, std::int64_t ldc);

}  // namespace mxfa::mx
