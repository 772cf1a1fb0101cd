#include "model/mma_kernels.h"

#include <bit>
#include <cstring>

#include "core/simd_clones.h"

namespace mxfa::emu::model {
namespace {

// Vector extensions rather than loops: GCC then keeps the accumulators in registers in every clone.
using Float8 = float __attribute__((vector_size(32)));
using Float16 = float __attribute__((vector_size(64)));
using Double8 = double __attribute__((vector_size(64)));
using Long8 = std::int64_t __attribute__((vector_size(64)));
using Lane8 = std::int32_t __attribute__((vector_size(32)));
using Lane16 = std::int32_t __attribute__((vector_size(64)));

constexpr std::uint32_t kChunk = 8;  // products of up to 2^27 that an int32 sum holds

}  // namespace

MXFA_SIMD_CLONES
void decode_small_floats(const SmallFloat& format, const std::uint8_t* __restrict codes,
                         std::size_t count, float* __restrict out) {
  const std::int32_t m_bits = format.mantissa_bits;
  const std::int32_t e_bits = format.exponent_bits;
  const std::int32_t m_mask = (1 << m_bits) - 1;
  const std::int32_t magnitude_mask = (1 << (m_bits + e_bits)) - 1;
  const std::int32_t unit = 127 - format.bias - m_bits;  // biased exponent of the last bit
  const std::int32_t special_from = format.special_from;
  const std::uint32_t special_bits = format.special_bits;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t code = codes[i];
    const std::int32_t magnitude = code & magnitude_mask;
    const std::int32_t e = magnitude >> m_bits;
    const std::int32_t significand = (magnitude & m_mask) | (e != 0 ? m_mask + 1 : 0);
    const std::int32_t power = (e != 0 ? e : 1) + unit;
    const float value = static_cast<float>(significand) *
                        std::bit_cast<float>(static_cast<std::uint32_t>(power) << 23);
    const std::uint32_t special =
        special_bits | static_cast<std::uint32_t>(magnitude - special_from) << (23 - m_bits);
    const std::uint32_t bits =
        magnitude >= special_from ? special : std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint32_t>(code >> (m_bits + e_bits)) << 31;
    out[i] = std::bit_cast<float>(bits | sign);
  }
}

MXFA_SIMD_CLONES
bool all_finite(const float* values, std::size_t count) {
  std::uint32_t odd_ones = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(values[i]) & 0x7FFFFFFFu;
    odd_ones |= bits >= 0x7F800000u ? 1u : 0u;
  }
  return odd_ones == 0;
}

MXFA_SIMD_CLONES
void split_floats(std::int32_t least, std::size_t count, float* values, std::int32_t* exponents) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(values[i]);
    const auto field = static_cast<std::int32_t>((bits >> 23) & 0xFFu);
    const std::uint32_t whole = (bits & 0x7FFFFFu) | (field != 0 ? 0x800000u : 0u);
    const std::int32_t own = (field != 0 ? field : 1) - 127;
    const std::int32_t shift = least > own ? least - own : 0;
    const std::uint32_t significand = whole >> (shift > 31 ? 31 : shift);
    const float magnitude = static_cast<float>(static_cast<std::int32_t>(significand)) * 0x1p-23f;
    values[i] =
        std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | (bits & 0x80000000u));
    exponents[i] = significand == 0 ? kZeroExponent : own + shift;
  }
}

// Products and sums are exact here, so that fusing them changes nothing but the speed.
#if defined(__GNUC__) && !defined(__clang__)
__attribute__((optimize("fp-contract=fast")))
#endif
MXFA_SIMD_CLONES void
exact_tile_f32(const ExactTile& tile) {
  for (std::uint32_t block = 0; block < tile.blocks; ++block) {
    const double* b = tile.b + std::size_t{block} * tile.depth * kMmaCols;
    for (std::uint32_t row = 0; row < tile.rows; row += kMmaRows) {
      const double* a = tile.a + std::size_t{row} * tile.depth;
      Double8 total[kMmaRows][2] = {};
      for (std::uint32_t k = 0; k < tile.depth; ++k) {
        Double8 wide[2];
        std::memcpy(wide, b + k * kMmaCols, sizeof wide);
        for (std::uint32_t r = 0; r < kMmaRows; ++r) {
          total[r][0] += wide[0] * a[r * tile.depth + k];
          total[r][1] += wide[1] * a[r * tile.depth + k];
        }
      }
      Double8 sums[kMmaRows][2];  // in memory, so that `total` may stay in registers
      std::memcpy(sums, total, sizeof total);
      for (std::uint32_t r = 0; r < kMmaRows; ++r) {
        std::byte* d = tile.d + (row + r) * tile.row_bytes + block * tile.block_bytes;
        for (int half = 0; half < 2; ++half) {
          Double8 power;
          std::memcpy(&power, tile.b_power + block * kMmaCols + 8 * half, sizeof power);
          Float8 old = {};
          if (tile.accumulate) std::memcpy(&old, d + 32 * half, sizeof old);
          const Double8 c = __builtin_convertvector(old, Double8);
          const Double8 value = sums[r][half] * power * tile.a_power[row + r];
          const Double8 sum = value + c;
          const Double8 part = sum - value;
          const Long8 rest = (Long8)((value - (sum - part)) + (c - part));
          // To the odd neighbour where inexact, as finish_exact_f32() does, without comparisons.
          const Long8 bits = (Long8)sum;
          const Long8 step = ((rest ^ bits) >> 63) | 1;
          const Long8 magnitude = rest & 0x7FFFFFFFFFFFFFFF;
          const Long8 inexact = (magnitude | -magnitude) >> 63;
          const Long8 odd = bits + (step & inexact & ((bits & 1) - 1));
          const Float8 result = __builtin_convertvector((Double8)odd, Float8);
          std::memcpy(d + 32 * half, &result, sizeof result);
        }
      }
    }
  }
}

MXFA_SIMD_CLONES
void exact_block(const float* a, const float* b, std::uint32_t ldb, std::uint32_t depth,
                 double* sum) {
  Double8 total[kMmaRows][2] = {};
  for (std::uint32_t k = 0; k < depth; ++k) {
    for (int half = 0; half < 2; ++half) {
      Float8 narrow;
      std::memcpy(&narrow, b + k * ldb + 8 * half, sizeof narrow);
      const Double8 wide = __builtin_convertvector(narrow, Double8);
      for (std::uint32_t r = 0; r < kMmaRows; ++r) {
        total[r][half] += wide * static_cast<double>(a[r * depth + k]);
      }
    }
  }
  std::memcpy(sum, total, sizeof total);
}

MXFA_SIMD_CLONES
void exact_wide_row(const float* a, const float* b, std::uint32_t ldb, std::uint32_t depth,
                    double* high, double* low, double* lost) {
  for (std::uint32_t col = 0; col < kMmaCols; col += 8) {
    Double8 sum = {};
    Double8 error = {};
    Double8 rest = {};
    for (std::uint32_t k = 0; k < depth; ++k) {
      Float8 narrow;
      std::memcpy(&narrow, b + k * ldb + col, sizeof narrow);
      const Double8 term = __builtin_convertvector(narrow, Double8) * static_cast<double>(a[k]);
      const Double8 next = sum + term;
      const Double8 part = next - sum;
      const Double8 missed = (sum - (next - part)) + (term - part);
      sum = next;
      const Double8 errors = error + missed;
      const Double8 again = errors - error;
      const Double8 gone = (error - (errors - again)) + (missed - again);
      error = errors;
      rest += gone * gone;  // squares cannot cancel
    }
    std::memcpy(high + col, &sum, sizeof sum);
    std::memcpy(low + col, &error, sizeof error);
    std::memcpy(lost + col, &rest, sizeof rest);
  }
}

MXFA_SIMD_CLONES
void finish_exact_f32(const double* sum, const std::int32_t* scale, float* c) {
  for (std::uint32_t j = 0; j < kMmaCols; ++j) {
    const double value =
        sum[j] * std::bit_cast<double>(static_cast<std::int64_t>(1023 + scale[j]) << 52);
    const double addend = static_cast<double>(c[j]);
    const double total = value + addend;
    const double part = total - value;
    const double rest = (value - (total - part)) + (addend - part);
    // To the odd neighbour where inexact, so that the second rounding is the only one.
    const std::int64_t bits = std::bit_cast<std::int64_t>(total);
    const std::int64_t step = (rest > 0.0) == (total > 0.0) ? 1 : -1;
    const std::int64_t odd = rest != 0.0 && (bits & 1) == 0 ? bits + step : bits;
    c[j] = static_cast<float>(std::bit_cast<double>(odd));
  }
}

MXFA_SIMD_CLONES
void aligned_row(const AlignedRow& row, const std::int32_t* scale, const float* c, double* total,
                 std::int32_t* exponent) {
  Lane16 top;
  for (std::uint32_t j = 0; j < kMmaCols; ++j) top[j] = 3 * kZeroExponent;
  for (std::uint32_t k = 0; k < row.depth; ++k) {
    Lane16 e;
    std::memcpy(&e, row.eb + k * row.ldb, sizeof e);
    e += row.ea[k];
    top = e > top ? e : top;
  }
  Lane16 block_scale;
  std::memcpy(&block_scale, scale, sizeof block_scale);
  top += block_scale;
  Lane16 bits;
  std::memcpy(&bits, c, sizeof bits);
  Lane16 own = ((bits >> 23) & 0xFF) - 127;
  own = own < row.least_c ? row.least_c : own;
  own = (bits & 0x7FFFFFFF) == 0 ? 3 * kZeroExponent : own;
  top = own > top ? own : top;
  top = top < kZeroExponent / 2 ? 0 : top;  // nothing but zeros
  // The power of two that brings a product to its place, as the exponent bits of a float. At or
  // below 2^-127 nothing of the product is left.
  const Lane16 offset = row.fraction_bits + 127 + block_scale - top;
  Double8 sum[2] = {};
  for (std::uint32_t first = 0; first < row.depth; first += kChunk) {
    Lane16 chunk = {};
    for (std::uint32_t k = first; k < first + kChunk; ++k) {
      Lane16 e;
      Float16 value;
      std::memcpy(&e, row.eb + k * row.ldb, sizeof e);
      std::memcpy(&value, row.b + k * row.ldb, sizeof value);
      e += row.ea[k] + offset;
      e = e < 0 ? 0 : e;
      const Float16 unit = (Float16)(e << 23);
      chunk += __builtin_convertvector(value * row.a[k] * unit, Lane16);
    }
    Lane8 half[2];
    std::memcpy(half, &chunk, sizeof chunk);
    sum[0] += __builtin_convertvector(half[0], Double8);
    sum[1] += __builtin_convertvector(half[1], Double8);
  }
  std::memcpy(total, sum, sizeof sum);
  const Lane16 place = top - row.fraction_bits;
  std::memcpy(exponent, &place, sizeof place);
  for (std::uint32_t j = 0; j < kMmaCols; ++j) {
    const double unit = std::bit_cast<double>(static_cast<std::int64_t>(1023 - place[j]) << 52);
    total[j] += static_cast<double>(static_cast<std::int32_t>(static_cast<double>(c[j]) * unit));
  }
}

MXFA_SIMD_CLONES
bool finish_aligned_f32(const double* total, const std::int32_t* exponent, std::int32_t bits,
                        float* out) {
  const std::int64_t mask = ~((std::int64_t{1} << (52 - bits)) - 1);
  std::int32_t odd_ones = 0;
  for (std::uint32_t j = 0; j < kMmaCols; ++j) {
    const double unit = std::bit_cast<double>(static_cast<std::int64_t>(1023 + exponent[j]) << 52);
    const std::int64_t value = std::bit_cast<std::int64_t>(total[j] * unit);
    const std::int64_t magnitude = value & 0x7FFFFFFFFFFFFFFF;
    const bool normal = magnitude >= (std::int64_t{1023 - 126} << 52) &&
                        magnitude < (std::int64_t{1023 + 128} << 52);
    odd_ones |= normal || magnitude == 0 ? 0 : 1;
    out[j] = static_cast<float>(std::bit_cast<double>(value & mask)) + 0.0f;  // -0 becomes +0
  }
  return odd_ones == 0;
}

}  // namespace mxfa::emu::model
