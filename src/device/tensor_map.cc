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
  std::array<cuuint64_t, kMaxRank> dims{}, strides{};
  std::array<cuuint32_t, kMaxRank> box{}, element_strides{};
  std::copy(desc.dims.begin(), desc.dims.end(), dims.begin());
  std::copy(desc.stride_bytes.begin(), desc.stride_bytes.end(), strides.begin());
  std::copy(desc.box.begin(), desc.box.end(), box.begin());
  element_strides.fill(1);
  const driver::CurrentDevice current(device);
  const CUresult result = device.calls().cuTensorMapEncodeTiled(
      &aligned.map, desc.type, static_cast<cuuint32_t>(desc.dims.size()),
      reinterpret_cast<void*>(desc.address), dims.data(), strides.data(), box.data(),
      element_strides.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, desc.swizzle,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  device.driver().check(
      result, result == CUDA_SUCCESS
                  ? "cuTensorMapEncodeTiled"
                  : fmt::format("cuTensorMapEncodeTiled(type {}, address {:#x}, dims [{}], stride "
                                "bytes [{}], box [{}], swizzle {})",
                                int(desc.type), desc.address, fmt::join(desc.dims, ", "),
                                fmt::join(desc.stride_bytes, ", "), fmt::join(desc.box, ", "),
                                int(desc.swizzle)));
  return aligned.map;
}

}  // namespace mxfa::device
