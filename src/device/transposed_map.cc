#include "device/transposed_map.h"

#include <algorithm>

namespace mxfa::device {

CUtensorMap make_transposed_map(const driver::Device& device, const std::uint8_t* codes,
                                const TransposedTiles& layout, std::int64_t tiles,
                                std::uint32_t tokens) {
  const std::uint64_t tile = static_cast<std::uint64_t>(layout.tile_bytes());
  const std::uint64_t dims[] = {mx::kAtomRows, tile / mx::kAtomRows,
                                static_cast<std::uint64_t>(std::max<std::int64_t>(tiles, 1))};
  const std::uint64_t strides[] = {mx::kAtomRows, tile};
  const std::uint32_t box[] = {tokens, static_cast<std::uint32_t>(layout.head_dim), 1};
  return make_tensor_map(
      device, {.address = reinterpret_cast<std::uint64_t>(codes),
               .dims = dims,
               .stride_bytes = strides,
               .box = box,
               .swizzle = tokens == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B});
}

}  // namespace mxfa::device
