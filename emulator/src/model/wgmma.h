#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/mma_unit.h"
#include "model/smem_descriptor.h"

/// wgmma.mma_async of one warpgroup: D[64][n] += A[64][k] * B[k][n]. Sources: PTX ISA 9.0, sections
/// 9.7.15.2 (shapes), 9.7.15.5.1.1 (register fragments; the figures are missing from the text at
/// hand) and 9.7.15.5.2. Fragments and arithmetic are compared with an H200, bit for bit.
/// The functions compute at once; when operands are read and results appear is the scheduler's
/// business. Sparse forms and b1 are not modelled.
namespace mxfa::emu::model {

enum class WgmmaType : std::uint8_t { kF16, kBF16, kTF32, kE4M3, kE5M2, kS8, kU8 };

struct WgmmaOp {
  WgmmaType a = WgmmaType::kBF16;
  WgmmaType b = WgmmaType::kBF16;
  AccumulatorType d = AccumulatorType::kF32;
  std::uint32_t n = 8;
  bool scale_d = true;    ///< false: D = A*B
  bool negate_a = false;  ///< imm-scale-a of -1
  bool negate_b = false;
  Major major_a = Major::kK;  ///< imm-trans-a; A in registers has none
  Major major_b = Major::kK;
  bool saturate = false;  ///< .satfinite of the s32 forms
};
std::uint32_t wgmma_elem_bytes(WgmmaType type);
/// 32 bytes of K: 8, 16 or 32 elements.
std::uint32_t wgmma_k(const WgmmaOp& op);
/// 32-bit registers of D in each thread: n/2, or n/4 for an f16 accumulator.
std::uint32_t wgmma_d_regs(const WgmmaOp& op);
/// Errors name what the ISA does not list: type combinations, n, transposes of other than 16-bit
/// types, signs and saturation.
void check_wgmma(const WgmmaOp& op);

struct FragmentCoord {
  std::uint32_t row = 0;
  std::uint32_t col = 0;  ///< of D, or K of A
  friend constexpr bool operator==(const FragmentCoord&, const FragmentCoord&) = default;
};
/// Element `index` of D in thread `thread` (0..127): the register of 32-bit accumulators; of f16
/// ones register index/2, low half first.
constexpr FragmentCoord wgmma_d_coord(std::uint32_t thread, std::uint32_t index) {
  const std::uint32_t lane = thread % 32;
  return {thread / 32 * 16 + lane / 4 + 8 * (index / 2 % 2),
          index / 4 * 8 + lane % 4 * 2 + index % 2};
}
/// Element `element` of A's register `reg` (0..3) for elements of `elem_bytes`, lowest bits first.
constexpr FragmentCoord wgmma_a_coord(std::uint32_t thread, std::uint32_t reg,
                                      std::uint32_t element, std::uint32_t elem_bytes) {
  const std::uint32_t lane = thread % 32;
  const std::uint32_t each = 4 / elem_bytes;  // elements in a register
  return {thread / 32 * 16 + lane / 4 + 8 * (reg % 2),
          reg / 2 * 4 * each + lane % 4 * each + element};
}

/// The registers of one operand of the warpgroup: entry warp * count + register points at the 32
/// lanes' values.
using RegisterRows = std::span<std::uint32_t* const>;
using ConstRegisterRows = std::span<const std::uint32_t* const>;

/// 32-bit accumulators to and from [64][n].
void gather_d(ConstRegisterRows regs, std::uint32_t n, std::span<std::uint32_t> d);
void scatter_d(std::span<const std::uint32_t> d, std::uint32_t n, RegisterRows regs);
/// f16 accumulators.
void gather_d16(ConstRegisterRows regs, std::uint32_t n, std::span<std::uint16_t> d);
void scatter_d16(std::span<const std::uint16_t> d, std::uint32_t n, RegisterRows regs);
/// A from registers, [64][k] elements of `elem_bytes` with k * elem_bytes = 32.
void gather_a(ConstRegisterRows regs, std::uint32_t elem_bytes, std::span<std::byte> out);

struct WgmmaOperands {
  std::optional<MatrixDescriptor> a;  ///< none: `a_regs`
  ConstRegisterRows a_regs;           ///< 4 registers a warp
  MatrixDescriptor b;
  std::span<const std::byte> smem;  ///< the CTA's shared memory
};
OperandShape wgmma_a_shape(const WgmmaOp& op);
OperandShape wgmma_b_shape(const WgmmaOp& op);
/// Shared bytes that the instruction reads.
std::vector<ByteRange> wgmma_smem_ranges(const WgmmaOp& op, const WgmmaOperands& operands);
/// Reads D (where scale_d) from `d_in`, writes it to `d_out`; both may be the same registers.
void wgmma(const WgmmaOp& op, const WgmmaOperands& operands, MmaUnit& unit, ConstRegisterRows d_in,
           RegisterRows d_out);

}  // namespace mxfa::emu::model
