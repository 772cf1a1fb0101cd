#pragma once

#include <cstddef>
#include <cstdint>

/// Inner loops of the matrix unit: blocks of 16 columns of B, packed as [k][ldb].
namespace mxfa::emu::model {

inline constexpr std::uint32_t kMmaRows = 4;  ///< rows of A in one call of exact_block
inline constexpr std::uint32_t kMmaCols = 16;
inline constexpr std::int32_t kZeroExponent = -10000;  ///< of operands that are 0

/// A format of up to 8 bits: sign, exponent, mantissa, from the top.
struct SmallFloat {
  std::int32_t mantissa_bits;
  std::int32_t exponent_bits;
  std::int32_t bias;
  std::int32_t special_from;   ///< magnitudes from here on are NaN or infinite
  std::uint32_t special_bits;  ///< FP32 bits of the first of them
};
void decode_small_floats(const SmallFloat& format, const std::uint8_t* __restrict codes,
                         std::size_t count, float* __restrict out);
bool all_finite(const float* values, std::size_t count);
/// Finite values in place: to 1 <= |s| < 2, or below 1 where the exponent would be under `least`,
/// and exponents (kZeroExponent for 0).
void split_floats(std::int32_t least, std::size_t count, float* values, std::int32_t* exponents);

/// A tile of FP32 accumulators, all finite, where sums of products are exact in double.
struct ExactTile {
  const double* a;     ///< [rows][depth]
  const double* b;     ///< [blocks][depth][kMmaCols]
  std::uint32_t rows;  ///< multiple of kMmaRows
  std::uint32_t blocks;
  std::uint32_t depth;
  const double* a_power;  ///< the block scales
  const double* b_power;
  std::byte* d;  ///< row r, column c: r * row_bytes + c / kMmaCols * block_bytes + c % kMmaCols * 4
  std::size_t row_bytes;
  std::size_t block_bytes;
  bool accumulate;
};
/// d = the exact sum of products and old accumulator, rounded once.
void exact_tile_f32(const ExactTile& tile);

/// sum[row][col] of the products, in double.
void exact_block(const float* a, const float* b, std::uint32_t ldb, std::uint32_t depth,
                 double* sum);

/// The same for one row with the error of every addition: the sum is `high` + `low` exactly
/// unless `lost` is not 0.
void exact_wide_row(const float* a, const float* b, std::uint32_t ldb, std::uint32_t depth,
                    double* high, double* low, double* lost);

/// c[col] = sum * 2^scale + low * 2^scale + c rounded once to FP32.
void finish_exact_f32(const double* sum, const std::int32_t* scale, float* c);

/// One row under a rule that aligns: significands a, b with exponents ea, eb.
struct AlignedRow {
  const float* a;
  const std::int32_t* ea;
  const float* b;
  const std::int32_t* eb;
  std::uint32_t ldb;
  std::uint32_t depth;         ///< multiple of 8
  std::int32_t fraction_bits;  ///< at most 25
  std::int32_t least_c;        ///< least exponent of the accumulator's type
};
/// total[col] * 2^exponent[col] is the sum of the truncated products and of c[col]. `scale` is
/// added to the products' exponents.
void aligned_row(const AlignedRow& row, const std::int32_t* scale, const float* c, double* total,
                 std::int32_t* exponent);

/// FP32 toward zero with `bits` fraction bits. Returns false where a result is subnormal or
/// overflows: those want mx::truncate_to_f32.
bool finish_aligned_f32(const double* total, const std::int32_t* exponent, std::int32_t bits,
                        float* out);

}  // namespace mxfa::emu::model
