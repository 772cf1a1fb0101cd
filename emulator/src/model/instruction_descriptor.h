#pragma once

#include <cstdint>
#include <string_view>

#include "model/mma_unit.h"
#include "model/smem_descriptor.h"
#include "mx/tensor_core.h"

/// The 32-bit instruction descriptor of tcgen05.mma. Source: PTX ISA 9.0, section 9.7.16.4.2
/// (tables 42 and 43), shapes from Table 39, transposes from Tables 49 and 50.
/// Stricter than the ISA's table where libraries are: f16, tf32 and f8f6f4 with M of 128 take N in
/// steps of 16. Not modelled: sparsity, kinds i8, mxf4, mxf4nvf4, the .ws forms.
namespace mxfa::emu::model {

enum class MmaKind : std::uint8_t { kF16, kTF32, kF8F6F4, kMxF8F6F4 };
std::string_view mma_kind_name(MmaKind kind);

struct InstructionDescriptor {
  MmaKind kind = MmaKind::kF16;
  std::uint32_t cta_group = 1;
  mx::MmaType a = mx::MmaType::kBF16;
  mx::MmaType b = mx::MmaType::kBF16;
  AccumulatorType d = AccumulatorType::kF32;
  bool negate_a = false;
  bool negate_b = false;
  Major major_a = Major::kK;
  Major major_b = Major::kK;
  std::uint32_t m = 0;
  std::uint32_t n = 0;
  std::uint32_t sf_id_a = 0;  ///< byte of the scale word, kMxF8F6F4 only
  std::uint32_t sf_id_b = 0;
  /// 32 bytes.
  std::uint32_t k() const { return kind == MmaKind::kTF32 ? 8 : kind == MmaKind::kF16 ? 16 : 32; }
  /// Rows of A, and of D, in one CTA.
  std::uint32_t cta_m() const { return m / cta_group; }
  std::uint32_t cta_n() const { return n / cta_group; }  ///< rows of B in one CTA
};

/// `cta_group` is 1 or 2. Errors name the field: reserved bits, formats that the kind lacks, shapes
/// that are not in the table, a scale type other than UE8M0.
InstructionDescriptor decode_instruction_descriptor(MmaKind kind, std::uint32_t bits,
                                                    int cta_group);

}  // namespace mxfa::emu::model
