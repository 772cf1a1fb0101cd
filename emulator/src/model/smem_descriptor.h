#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/fault.h"
#include "model/swizzle.h"

/// The 64-bit descriptors of matrices in shared memory. Sources: PTX ISA 9.0, sections
/// 9.7.15.5.1.2 (wgmma) and 9.7.16.3 / 9.7.16.4.1 (tcgen05): fields, strides, canonical layouts.
/// The exchange of chunks goes by the absolute shared address, also where the start address was
/// advanced along K inside a row; a base offset is taken from the line number before the exchange.
/// Compared with an H200 (wgmma): all swizzles, K-major and MN-major, A and B, every start line
/// with every base offset. Unconfirmed: a base offset other than 0 on tcgen05, where it is an
/// error.
namespace mxfa::emu::model {

struct MatrixDescriptor {
  std::uint32_t start = 0;  ///< bytes, multiple of 16, below 256 KiB
  std::uint32_t lbo = 0;    ///< leading dimension byte offset
  std::uint32_t sbo = 0;    ///< stride dimension byte offset
  Swizzle swizzle = Swizzle::kNone;
  std::uint32_t base_offset = 0;  ///< 0..7 lines of 128 bytes
  /// A start inside of the swizzle's pattern is no error though the base offset is 0. The ISA wants
  /// the offset there; on an H200 the swizzle follows the address bits as they are.
  bool inner_start = false;

  bool starts_inside_pattern() const {
    return swizzle != Swizzle::kNone && base_offset == 0 &&
           start % (8 * swizzle_width(swizzle)) >= swizzle_width(swizzle);
  }
};

/// Errors: reserved bits that are set.
MatrixDescriptor decode_wgmma_descriptor(std::uint64_t bits);
/// Errors: version bits other than 0b001, reserved bits, swizzle codes 3, 5 and 7, a base offset.
/// The absolute leading dimension (sm_103a, K of 96) is not modelled.
MatrixDescriptor decode_tcgen05_descriptor(std::uint64_t bits);

enum class Major : std::uint8_t {
  kK,   ///< neighbours along K are neighbours in memory
  kMN,  ///< neighbours along M or N are ("transposed")
};

/// One multiplicand of one instruction: mn rows (M or N) by k.
struct OperandShape {
  Major major = Major::kK;
  std::uint32_t mn = 0;
  std::uint32_t k = 0;
  std::uint32_t elem_bytes = 1;
};

/// Shared address of the first byte of element (mn, k).
constexpr std::uint32_t element_address(const MatrixDescriptor& desc, const OperandShape& shape,
                                        std::uint32_t mn, std::uint32_t k) {
  const std::uint32_t width = swizzle_width(desc.swizzle);
  std::uint32_t linear = desc.start;
  if (shape.major == Major::kK) {
    const std::uint32_t bytes = k * shape.elem_bytes;
    linear += (mn % 8) * width + mn / 8 * desc.sbo;
    linear += desc.swizzle == Swizzle::kNone ? bytes % 16 + bytes / 16 * desc.lbo : bytes;
  } else {
    const std::uint32_t bytes = mn * shape.elem_bytes;
    // Without swizzle the two strides change roles.
    const bool plain = desc.swizzle == Swizzle::kNone;
    linear += bytes % width + bytes / width * (plain ? desc.sbo : desc.lbo);
    linear += (k % 8) * width + k / 8 * (plain ? desc.lbo : desc.sbo);
  }
  return swizzled(desc.swizzle, linear, desc.base_offset);
}

/// Errors: the 32-byte-atom swizzle with anything but MN-major 32-bit elements; a start that is not
/// on the first line of the swizzle's pattern although the base offset is 0, unless `inner_start`;
/// a row that crosses the swizzle width.
void check_layout(const MatrixDescriptor& desc, const OperandShape& shape);
/// The same, and bytes at or beyond `smem_bytes`.
void check_operand(const MatrixDescriptor& desc, const OperandShape& shape,
                   std::uint64_t smem_bytes);

/// The bytes that the operand covers, ascending, neighbours joined.
std::vector<ByteRange> operand_ranges(const MatrixDescriptor& desc, const OperandShape& shape);

/// The shared memory of a CTA, and which of its bytes were written (one bit each; null: all).
struct SmemView {
  std::span<const std::byte> bytes;
  const std::uint64_t* written = nullptr;
};

/// Copies the elements to `out`, [mn][k] without gaps. Errors: bytes beyond the shared memory, or
/// never written; check_layout() finds the rest.
void fetch_operand(const MatrixDescriptor& desc, const OperandShape& shape, const SmemView& smem,
                   std::span<std::byte> out);

}  // namespace mxfa::emu::model
