#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "driver/device.h"

/// Descriptors of the copy engine, through one checked call.
namespace mxfa::device {

/// Strides in bytes that tensor maps take end before it.
inline constexpr std::int64_t kMapStrideEnd = std::int64_t{1} << 40;

/// Whether a tensor map takes a stride.
constexpr bool is_map_stride(std::int64_t bytes) {
  return bytes % 16 == 0 && bytes >= 0 && bytes < kMapStrideEnd;
}
/// Throws Error naming a tensor that has others, in bytes from token to token (below `token_end`)
/// and head to head.
void expect_map_strides(std::int64_t token, std::int64_t head, std::string_view name,
                        std::int64_t token_end = kMapStrideEnd);

/// A tensor in device memory as tiles are cut from it; dimension 0 is contiguous.
struct TensorMapDesc {
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  std::uint64_t address = 0;                    ///< 16-byte aligned
  std::span<const std::uint64_t> dims;          ///< elements
  std::span<const std::uint64_t> stride_bytes;  ///< of dimensions 1.., multiples of 16
  std::span<const std::uint32_t> box;           ///< elements of a tile, at most 256 each
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
};

/// Elements outside the tensor read as zero. Throws Error that prints every field where the driver
/// refuses the descriptor.
CUtensorMap make_tensor_map(const driver::Device& device, const TensorMapDesc& desc);

}  // namespace mxfa::device
