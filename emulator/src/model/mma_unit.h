#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "model/mma_operand.h"
#include "model/mma_pack.h"
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

/// Where an accumulator lies: element (row, col) is data[row * row_stride + col / 16 * block_stride
/// + col % 16].
template <class Word>
struct AccumulatorView {
  Word* data = nullptr;
  std::size_t row_stride = 0;
  std::size_t block_stride = 16;
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
  /// The same on 32-bit words, as tensor memory holds them: FP32, or FP16 in the low half (the high
  /// one becomes 0).
  void words(const Multiplicand& a, const Multiplicand& b, bool accumulate, AccumulatorType type,
             const AccumulatorView<std::uint32_t>& d, const BlockScales& scales);

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
