#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/instruction_descriptor.h"
#include "model/mma_unit.h"
#include "model/smem_descriptor.h"
#include "model/tmem.h"

/// tcgen05.cp and tcgen05.mma of one CTA (cta_group::1), each as one step. Sources: PTX ISA 9.0,
/// sections 9.7.16.9.2 (cp), 9.7.16.10 (mma: layouts D and F, packing, block scaling); layouts of
/// D, of A in tensor memory and of the scales from public libraries that agree. Unconfirmed: which
/// of the four copies of a scale hardware reads for which lane (copies that differ are an error);
/// the upper halves of an f16 accumulator's words (here 0); scale-input-d of a subnormal result
/// (here rounded to nearest); the arithmetic itself (mx/tensor_core.h). Not modelled: cta_group::2,
/// .ws, sparsity, .4x256b copies, 4 and 6-bit operands.
namespace mxfa::emu::model {

enum class CpShape : std::uint8_t {
  k128x256b,
  k128x128b,
  k64x128bWarpx2_02_13,
  k64x128bWarpx2_01_23,
  k32x128bWarpx4,
  k4x256b,
};
std::uint32_t cp_rows(CpShape shape);
std::uint32_t cp_row_bytes(CpShape shape);
/// The lanes that receive source row `row`.
std::vector<std::uint32_t> cp_lanes(CpShape shape, std::uint32_t row);
/// The source as an operand of its descriptor (K-major bytes).
OperandShape cp_operand(CpShape shape);
std::vector<TmemRange> cp_writes(CpShape shape, std::uint32_t address);
/// Copies from shared memory. The address has lane 0 and a column that is a multiple of 4.
void tcgen05_cp(CpShape shape, std::uint32_t address, const MatrixDescriptor& source,
                std::span<const std::byte> smem, TensorMemory& tmem);

struct Tcgen05Mma {
  InstructionDescriptor idesc;
  std::uint32_t d = 0;                ///< tensor memory address of the accumulator
  std::optional<MatrixDescriptor> a;  ///< none: A in tensor memory at `a_tmem`
  std::uint32_t a_tmem = 0;
  MatrixDescriptor b;
  bool enable_input_d = true;  ///< false: D = A*B
  std::uint32_t sfa = 0;       ///< scales, kMxF8F6F4 only; bits 31:30 are ignored
  std::uint32_t sfb = 0;
  std::uint32_t scale_input_d = 0;               ///< D * 2^-scale, kind f16 only, at most 15
  std::array<std::uint32_t, 4> disable_lanes{};  ///< bit = 1 keeps the lane of D; not with scales
};

/// Lane of row m of D (and of A in tensor memory) for M = 128 or 64; `base_lane` is 0, or 0 or 16.
constexpr std::uint32_t mma_lane(std::uint32_t m_extent, std::uint32_t base_lane, std::uint32_t m) {
  return m_extent == 128 ? m : base_lane + m % 16 + 32 * (m / 16);
}
OperandShape mma_a_shape(const InstructionDescriptor& idesc);
OperandShape mma_b_shape(const InstructionDescriptor& idesc);
/// Tensor memory that the instruction reads (D where enabled, A, scales) and writes (D).
std::vector<TmemRange> mma_reads(const Tcgen05Mma& mma);
std::vector<TmemRange> mma_writes(const Tcgen05Mma& mma);
/// Shared memory that it reads.
std::vector<ByteRange> mma_smem_reads(const Tcgen05Mma& mma);

struct MmaReport {
  bool nan_scale = false;  ///< some scale byte is 0xFF: legal, its products are NaN
};
/// Errors: bad addresses and alignments, columns outside of live allocations, words never written,
/// scales or A that overlap D, copies of a scale that differ.
MmaReport tcgen05_mma(const Tcgen05Mma& mma, std::span<const std::byte> smem, TensorMemory& tmem,
                      MmaUnit& unit);

}  // namespace mxfa::emu::model
