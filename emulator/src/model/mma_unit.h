#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "mx/tensor_core.h"

/// The matrix unit: D[m][n] = A*B + D for decoded multiplicands, one instruction at a time, with
/// the arithmetic of mx/tensor_core.h bit for bit (sources and unconfirmed points are there) and
/// vectorized over columns.
namespace mxfa::emu::model {

enum class ArithmeticMode : std::uint8_t {
  kExact,      ///< the exact sum, rounded once: independent of order and of the machine
  kHopper,     ///< FP8 13 bits below the largest exponent, other types 25
  kBlackwell,  ///< 25 bits
};
std::string_view arithmetic_mode_name(ArithmeticMode mode);
/// The rule that a mode applies to operands of type `a`.
mx::AccumulatorRule accumulator_rule(ArithmeticMode mode, mx::MmaType a);

enum class AccumulatorType : std::uint8_t { kF16, kF32, kS32 };

/// Bytes of an element in shared memory and registers; packed 4 and 6-bit types are not modelled.
std::uint32_t mma_type_bytes(mx::MmaType type);
std::string_view mma_type_name(mx::MmaType type);

/// One multiplicand, decoded: `values` is [rows][k], rows counting M or N.
struct Multiplicand {
  mx::MmaType type = mx::MmaType::kE4M3;
  std::uint32_t rows = 0;
  std::uint32_t k = 0;
  std::vector<float> values;
};
/// Decodes [rows][k] elements into out.values; type, rows and k are set. TF32 drops its low 13
/// bits. `negate` turns every sign.
void decode_multiplicand(std::span<const std::byte> raw, bool negate, Multiplicand& out);

/// E8M0 scales, one for each row of A and of B (a block is the whole K); empty = none.
struct BlockScales {
  std::span<const std::uint8_t> a;
  std::span<const std::uint8_t> b;
};

/// Both multiplicands as the kernels want them (scratch of a MmaUnit).
struct PackedOperands {
  std::uint32_t cols = 0;                ///< rows of B, padded to 16
  std::vector<float> a;                  ///< [m padded to 4][k]: values, or significands
  std::vector<float> b;                  ///< [k][cols]
  std::vector<std::int32_t> a_exponent;  ///< beside them, for the rules that align
  std::vector<std::int32_t> b_exponent;
  std::vector<std::uint8_t> a_special;  ///< rows with a NaN, an infinity or a NaN scale
  std::vector<std::uint8_t> b_special;  ///< padded to 16
  std::vector<std::int32_t> a_scale;    ///< exponents of the block scales
  std::vector<std::int32_t> b_scale;
};

/// Keeps scratch buffers: one unit for each host thread.
class MmaUnit {
 public:
  explicit MmaUnit(ArithmeticMode mode) : mode_(mode) {}
  ArithmeticMode mode() const { return mode_; }
  void set_mode(ArithmeticMode mode) { mode_ = mode; }

  /// d is [a.rows][b.rows]; old values count where `accumulate`. NaN results are canonical. K is a
  /// multiple of 8, at most 256.
  void f32(const Multiplicand& a, const Multiplicand& b, bool accumulate, std::span<float> d,
           const BlockScales& scales = {});
  void f16(const Multiplicand& a, const Multiplicand& b, bool accumulate,
           std::span<std::uint16_t> d);

 private:
  ArithmeticMode mode_;
  PackedOperands packed_;
};

/// Integer multiplicands of one byte, [rows][k].
struct IntMultiplicand {
  std::span<const std::byte> bytes;
  bool is_signed = true;
  std::uint32_t rows = 0;
  std::uint32_t k = 0;
};
/// d[m][n] = A*B + (accumulate ? d : 0) in s32, wrapping around, or clamped with `saturate`.
void mma_s32(const IntMultiplicand& a, const IntMultiplicand& b, bool accumulate, bool saturate,
             std::span<std::int32_t> d);

}  // namespace mxfa::emu::model
