#pragma once

#include <cstdint>
#include <vector>

#include "model/smem_descriptor.h"
#include "model/tmem.h"

/// tcgen05.cp of one CTA, as one step. Sources: PTX ISA 9.0, section 9.7.16.9; the lanes of every
/// shape, and where the bits of narrow elements go, from a public library (the ISA's figures are
/// missing from the text at hand). Not modelled: .4x256b, whose map nobody documents.
namespace mxfa::emu::model {

enum class CpShape : std::uint8_t {
  k128x256b,
  k128x128b,
  k64x128bWarpx2_02_13,
  k64x128bWarpx2_01_23,
  k32x128bWarpx4,
};
/// What becomes of the 16-byte pieces of the source: 16 elements of 4 or 6 bits, and padding.
enum class CpFormat : std::uint8_t { kPlain, kB4x16P64, kB6x16P32 };

struct TensorCopy {
  CpShape shape = CpShape::k32x128bWarpx4;
  CpFormat format = CpFormat::kPlain;
  std::uint32_t address = 0;
  MatrixDescriptor source;
};

std::uint32_t cp_rows(CpShape shape);
std::uint32_t cp_row_bytes(CpShape shape);
/// The lanes that receive source row `row`.
std::vector<std::uint32_t> cp_lanes(CpShape shape, std::uint32_t row);
/// The source as an operand of its descriptor (K-major bytes).
OperandShape cp_operand(CpShape shape);
TmemRange cp_writes(const TensorCopy& copy);
/// Errors that do not depend on memory: an address other than lane 0 and a column that is a
/// multiple of 4, a source that is not laid out as its descriptor says.
void check_copy(const TensorCopy& copy);
void tcgen05_cp(const TensorCopy& copy, const SmemView& smem, TensorMemory& tmem);

}  // namespace mxfa::emu::model
