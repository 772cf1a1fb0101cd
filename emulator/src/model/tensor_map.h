#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "model/swizzle.h"

/// Tensor maps: the emulator's own 128-byte record in place of the driver's opaque one, written by
/// encode_tiled() and read by the copies. Sources: cuda.h (CUDA 13.0), cuTensorMapEncodeTiled;
/// PTX ISA 9.0, sections 5.5 (tensors) and 9.7.9.26 (tensormap.replace).
/// As the driver does on an H200: strides below the data of a dimension, zero included, are
/// accepted; every step must be 1..8, the ignored first one too; a box must fit in shared memory.
/// Unconfirmed: the exact limit of the box, between 224 KiB (accepted) and 232 KiB (refused).
namespace mxfa::emu::model {

inline constexpr std::size_t kTensorMapBytes = 128;
inline constexpr int kMaxTensorRank = 5;

/// In the order of CUtensorMapDataType.
enum class TensorType : std::uint8_t {
  kU8,
  kU16,
  kU32,
  kS32,
  kU64,
  kS64,
  kF16,
  kF32,
  kF64,
  kBF16,
  kF32Ftz,
  kTF32,
  kTF32Ftz,
  kB4x16,     ///< 16U4_ALIGN8B
  kB4x16P64,  ///< 16U4_ALIGN16B
  kB6x16P32,  ///< 16U6_ALIGN16B
};
/// Size of an element in global memory; packed types are 4 or 6 bits wide.
int tensor_type_bits(TensorType type);
std::string_view tensor_type_name(TensorType type);

struct TensorMap {
  TensorType type = TensorType::kU8;
  int rank = 1;
  std::uint64_t address = 0;                            ///< of the first element
  std::array<std::uint64_t, kMaxTensorRank> dims{};     ///< elements, innermost first
  std::array<std::uint64_t, kMaxTensorRank> strides{};  ///< bytes between neighbours along a
                                                        ///< dimension; [0] is the element size
  std::array<std::uint32_t, kMaxTensorRank> box{};      ///< boxDim
  std::array<std::uint32_t, kMaxTensorRank> steps{};    ///< elementStrides; [0] is 1
  Swizzle swizzle = Swizzle::kNone;
  std::uint8_t l2_promotion = 0;
  bool fill_nan = false;  ///< OOB-NaN instead of zero

  /// Elements of the box in shared memory: ceil(box / step) along each dimension.
  std::uint32_t box_elems(int dimension) const;
  /// Bytes of the box in shared memory, which is also what complete_tx counts.
  std::uint64_t box_bytes() const;
};

/// The arguments of cuTensorMapEncodeTiled, enums as their numbers.
struct TiledArguments {
  std::uint32_t data_type = 0;
  std::uint32_t rank = 0;
  std::uint64_t global_address = 0;
  std::span<const std::uint64_t> global_dim;       ///< [rank]
  std::span<const std::uint64_t> global_strides;   ///< [rank - 1], bytes, of dimensions 1..
  std::span<const std::uint32_t> box_dim;          ///< [rank]
  std::span<const std::uint32_t> element_strides;  ///< [rank]
  std::uint32_t interleave = 0;
  std::uint32_t swizzle = 0;
  std::uint32_t l2_promotion = 0;
  std::uint32_t oob_fill = 0;
  /// Swizzles of other than 16-byte atoms and packed types are refused before sm_100.
  bool sm_100 = true;
};

using TensorMapRecord = std::array<std::byte, kTensorMapBytes>;

/// Checks every documented constraint; errors name the driver's argument. Interleaved layouts and
/// the 8-byte flip are valid but not modelled (ErrorKind::kUnsupported).
TensorMapRecord encode_tiled(const TiledArguments& arguments);

/// Reads a record and checks it again, since tensormap.replace may have changed single fields.
TensorMap decode_tensor_map(std::span<const std::byte, kTensorMapBytes> record);

/// The fields of tensormap.replace.
enum class TensorMapField : std::uint8_t {
  kGlobalAddress,
  kRank,
  kBoxDim,
  kGlobalDim,
  kGlobalStride,
  kElementStride,
  kElemtype,
  kInterleaveLayout,
  kSwizzleMode,
  kSwizzleAtomicity,
  kFillMode,
};

/// tensormap.replace.tile.FIELD. `ordinal` counts dimensions from 0 (for strides too, where 0 is
/// the stride of dimension 1); fields without ordinal ignore it. Values follow Table 33 of the ISA:
/// rank is one less, and element types are numbered otherwise than by the driver.
void replace_field(std::span<std::byte, kTensorMapBytes> record, TensorMapField field,
                   std::uint32_t ordinal, std::uint64_t value);

}  // namespace mxfa::emu::model
