#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/fault.h"
#include "model/tma.h"

/// ldmatrix, stmatrix and movmatrix: which byte of which row a register byte is. Source: PTX ISA
/// 9.0, sections 9.7.14.5.15 to .17; the pictures are missing from the text at hand.
/// The 16-bit forms are compared with an H200.
/// Unconfirmed: the byte forms (Blackwell), taken from the layouts that public libraries use. The
/// forms that widen 4 and 6-bit elements are not modelled.
namespace mxfa::emu::model {

enum class MatrixForm : std::uint8_t {
  kM8N8,         ///< .m8n8 .b16
  kM8N8Trans,    ///< .m8n8 .trans .b16
  kM16N16Trans,  ///< ldmatrix .m16n16 .trans .b8: two registers and 16 rows a matrix
  kM16N8Trans,   ///< stmatrix .m16n8 .trans .b8: one register and 8 rows a matrix
};

/// A byte of a 16-byte row; the row starts at the address that lane `lane` gives.
struct MatrixByte {
  std::uint32_t lane = 0;
  std::uint32_t byte = 0;
  friend constexpr bool operator==(const MatrixByte&, const MatrixByte&) = default;
};

/// Byte `byte` (0..3, lowest bits first) of register `reg` of lane `lane`.
constexpr MatrixByte matrix_byte(MatrixForm form, std::uint32_t lane, std::uint32_t reg,
                                 std::uint32_t byte) {
  const std::uint32_t group = lane / 4;
  const std::uint32_t member = lane % 4;
  switch (form) {
    case MatrixForm::kM8N8:
      return {reg * 8 + group, member * 4 + byte};
    case MatrixForm::kM8N8Trans:
      return {reg * 8 + member * 2 + byte / 2, group * 2 + byte % 2};
    case MatrixForm::kM16N16Trans:
      return {reg / 2 * 16 + member * 4 + reg % 2 * 2 + byte % 2, group + 8 * (byte / 2)};
    case MatrixForm::kM16N8Trans:
      return {reg * 8 + member * 2 + byte % 2, group + 8 * (byte / 2)};
  }
  return {};
}

/// Registers of each lane for `num` matrices (.x1, .x2, .x4). Errors: a count that the form lacks.
std::uint32_t matrix_registers(MatrixForm form, std::uint32_t num);
/// Lanes 0 .. n-1 give row addresses.
std::uint32_t matrix_address_lanes(MatrixForm form, std::uint32_t num);

struct MatrixAccess {
  MatrixForm form = MatrixForm::kM8N8;
  std::uint32_t num = 1;
  std::span<const std::uint32_t> addresses;  ///< 32 shared addresses, those of the used lanes are
                                             ///< multiples of 16
};
/// regs[register][lane]. Returns the shared bytes touched, one range a row.
std::vector<ByteRange> ldmatrix(const MatrixAccess& access, ByteMemory& smem,
                                std::span<std::uint32_t* const> regs);
std::vector<ByteRange> stmatrix(const MatrixAccess& access, ByteMemory& smem,
                                std::span<const std::uint32_t* const> regs);
/// movmatrix.m8n8.trans.b16.
std::array<std::uint32_t, 32> movmatrix(std::span<const std::uint32_t, 32> source);

}  // namespace mxfa::emu::model
