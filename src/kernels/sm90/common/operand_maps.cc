#include "kernels/sm90/common/operand_maps.h"

#include <algorithm>

namespace mxfa::sm90 {
namespace {

CUtensorMapSwizzle swizzle_of(std::uint64_t bytes) {
  return bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;
}

}  // namespace

CUtensorMap rows_map(const driver::Device& device, const device::AttentionOperand& x,
                     std::uint32_t tokens) {
  const std::uint64_t dim = static_cast<std::uint64_t>(x.head_dim);
  const std::uint64_t dims[] = {dim, static_cast<std::uint64_t>(x.num_heads),
                                static_cast<std::uint64_t>(std::max<std::int64_t>(x.total, 1))};
  const std::uint64_t strides[] = {static_cast<std::uint64_t>(x.head_stride),
                                   static_cast<std::uint64_t>(x.token_stride)};
  const std::uint32_t box[] = {static_cast<std::uint32_t>(dim), 1, tokens};
  return device::make_tensor_map(device, {.address = reinterpret_cast<std::uint64_t>(x.rows),
                                          .dims = dims,
                                          .stride_bytes = strides,
                                          .box = box,
                                          .swizzle = swizzle_of(dim)});
}

CUtensorMap transposed_map(const driver::Device& device, const device::AttentionOperand& x,
                           std::uint32_t tokens) {
  const std::uint64_t pitch = static_cast<std::uint64_t>(std::max<std::int64_t>(x.pitch, 128));
  const std::uint64_t dims[] = {
      pitch, static_cast<std::uint64_t>(x.num_heads) * static_cast<std::uint64_t>(x.head_dim)};
  const std::uint64_t strides[] = {pitch};
  const std::uint32_t box[] = {tokens, static_cast<std::uint32_t>(x.head_dim)};
  return device::make_tensor_map(device, {.address = reinterpret_cast<std::uint64_t>(x.transposed),
                                          .dims = dims,
                                          .stride_bytes = strides,
                                          .box = box,
                                          .swizzle = swizzle_of(tokens)});
}

}  // namespace mxfa::sm90
