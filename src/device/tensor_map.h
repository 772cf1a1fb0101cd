#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "driver/device.h"

/// Descriptors of the copy engine, through one checked call.
namespace mxfa::device {

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
