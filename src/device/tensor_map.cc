#include "device/tensor_map.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/check.h"

namespace mxfa::device {

void expect_map_strides(std::int64_t token, std::int64_t head, std::string_view name,
                        std::int64_t token_end) {
  core::expect(
      is_map_stride(token) && token < token_end && is_map_stride(head),
      core::later("{}.token_stride, head_stride", name),
      core::later("multiples of 16 bytes, at least 0, below {} and {}", token_end, kMapStrideEnd),
      core::later("{}, {} bytes", token, head));
}

CUtensorMap make_tensor_map(const driver::Device& device, const TensorMapDesc& desc) {
  constexpr std::size_t kMaxRank = 5;
  // Not the returned object itself: a caller's temporary need not be aligned as the driver wants it
  // (g++ 12 puts one on 16 bytes).
  struct Aligned {
    CUtensorMap map = {};
  } aligned;
  constexpr cuuint32_t kElementStrides[kMaxRank] = {1, 1, 1, 1, 1};
  cuuint64_t dims[kMaxRank], strides[kMaxRank];  // of another type than the description's
  const std::size_t rank = std::min(desc.dims.size(), kMaxRank);
  for (std::size_t i = 0; i < rank; ++i) dims[i] = desc.dims[i];
  for (std::size_t i = 0; i + 1 < rank; ++i) strides[i] = desc.stride_bytes[i];
  const driver::CurrentDevice current(device);
  const CUresult result = device.calls().cuTensorMapEncodeTiled(
      &aligned.map, desc.type, static_cast<cuuint32_t>(rank), reinterpret_cast<void*>(desc.address),
      dims, strides, desc.box.data(), kElementStrides, CU_TENSOR_MAP_INTERLEAVE_NONE, desc.swizzle,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) [[likely]]
    return aligned.map;
  device.driver().check(
      result, fmt::format("cuTensorMapEncodeTiled(type {}, address {:#x}, dims [{}], stride "
                          "bytes [{}], box [{}], swizzle {})",
                          int(desc.type), desc.address, fmt::join(desc.dims, ", "),
                          fmt::join(desc.stride_bytes, ", "), fmt::join(desc.box, ", "),
                          int(desc.swizzle)));
  return {};  // not reached
}

}  // namespace mxfa::device
