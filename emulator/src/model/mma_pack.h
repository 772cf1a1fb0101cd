#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/mma_operand.h"

/// Operands of one instruction as the inner loops want them.
namespace mxfa::emu::model {

/// E8M0 scales, one for each row of A and of B (a block is the whole K); empty = none.
struct BlockScales {
  std::span<const std::uint8_t> a;
  std::span<const std::uint8_t> b;
};

struct PackedOperands {
  static constexpr std::uint8_t kNan = 1;  ///< a value, or the scale
  static constexpr std::uint8_t kInfinite = 2;

  std::uint32_t cols = 0;                ///< rows of B, padded to 16
  std::vector<float> a;                  ///< [m padded to 4][k]: values, or significands
  std::vector<float> b;                  ///< [k][cols]
  std::vector<std::int32_t> a_exponent;  ///< beside them, for the rules that align
  std::vector<std::int32_t> b_exponent;
  std::vector<std::uint8_t> a_special;  ///< by row: kNan, kInfinite, or both
  std::vector<std::uint8_t> b_special;  ///< padded to 16
  std::vector<std::int32_t> a_scale;    ///< exponents of the block scales
  std::vector<std::int32_t> b_scale;
  std::vector<double> a64;      ///< as a
  std::vector<double> b64;      ///< [cols / 16][k][16]
  std::vector<double> a_power;  ///< 2^a_scale
  std::vector<double> b_power;

  /// Errors: operands, accumulator (of `d` elements) and scales that do not fit each other.
  void check(const Multiplicand& a, const Multiplicand& b, std::size_t d,
             const BlockScales& scales) const;
  /// `aligned`: significands and exponents instead of values.
  void pack(const Multiplicand& a, const Multiplicand& b, const BlockScales& scales, bool aligned);
  /// After pack(): fills what is double.
  void widen(std::uint32_t k);

 private:
  std::vector<float> values_;  ///< scratch of one operand
  std::vector<std::int32_t> exponents_;
};

}  // namespace mxfa::emu::model
