#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/instruction_descriptor.h"
#include "model/mma_unit.h"
#include "model/smem_descriptor.h"
#include "model/tmem.h"

/// tcgen05.mma of one CTA or of a pair, as one step. Sources: PTX ISA 9.0, section 9.7.16.10;
/// layouts of D (A, B, D and F), of A in tensor memory and of the scales from public libraries that
/// agree. Unconfirmed: which of the copies of a scale hardware reads for which lane (copies that
/// differ are an error); the upper halves of an f16 accumulator's words (here 0); scale-input-d of
/// a subnormal result (here rounded to nearest); the order of the eight words of
/// disable-output-lane (here the even CTA's first); the arithmetic itself (mx/tensor_core.h).
/// Not modelled: .ws, .sp, .ashift.
namespace mxfa::emu::model {

struct Tcgen05Mma {
  InstructionDescriptor idesc;
  std::uint32_t d = 0;                ///< tensor memory address of the accumulator
  std::optional<MatrixDescriptor> a;  ///< none: A in tensor memory at `a_tmem`
  std::uint32_t a_tmem = 0;
  MatrixDescriptor b;
  bool enable_input_d = true;  ///< false: D = A*B
  std::uint32_t sfa = 0;       ///< scales, kMxF8F6F4 only; bits 31:30 are ignored
  std::uint32_t sfb = 0;
  std::uint32_t scale_input_d = 0;  ///< D * 2^-scale, kinds f16 and tf32 only, at most 15
  /// Bit = 1 keeps the lane of D; not with scales. The second half is the odd CTA's.
  std::array<std::uint32_t, 8> disable_lanes{};
};

/// How the rows of a CTA lie in the lanes.
enum class DataPath : std::uint8_t {
  kWhole,   ///< 128 rows in 128 lanes (layouts A and D)
  kHalf,    ///< 64 rows in 16 lanes of each quarter (layout F)
  kFolded,  ///< 64 rows; lanes 64 and on hold the second half of N (layout B)
};
DataPath data_path(const InstructionDescriptor& idesc);

/// The operands as each CTA holds them.
OperandShape mma_a_shape(const InstructionDescriptor& idesc);
OperandShape mma_b_shape(const InstructionDescriptor& idesc);
/// Tensor memory that the instruction reads (D where enabled, A, scales) and writes (D), in each
/// CTA.
std::vector<TmemRange> mma_reads(const Tcgen05Mma& mma);
std::vector<TmemRange> mma_writes(const Tcgen05Mma& mma);
/// Shared memory that it reads in each CTA.
std::vector<ByteRange> mma_smem_reads(const Tcgen05Mma& mma);

/// A CTA that takes part.
struct MmaCta {
  SmemView smem;
  TensorMemory* tmem = nullptr;
};
struct MmaReport {
  bool nan_scale = false;  ///< some scale byte is 0xFF: legal, its products are NaN
};
/// Errors that do not depend on memory: bad addresses and layouts, scales or A that overlap D.
void check_mma(const Tcgen05Mma& mma);
/// `ctas`: as many as the CTA group, the even one first. Errors: as check_mma(), columns outside of
/// live allocations, words and bytes never written, copies of a scale that differ.
MmaReport tcgen05_mma(const Tcgen05Mma& mma, std::span<const MmaCta> ctas, MmaUnit& unit);

}  // namespace mxfa::emu::model
