#include "kernels/sm90/common/operand_maps.h"

#include <algorithm>

#include "core/check.h"

namespace mxfa::sm90 {
namespace {

CUtensorMapSwizzle swizzle_of(std::uint64_t bytes) {
  return bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;
}

}  // namespace

void check_bf16_rows(const Bf16Rows& x, std::string_view name) {
  core::expect(x.data != nullptr && reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0, name,
               "an address on 16 bytes", x.data == nullptr ? "none" : "another");
  device::expect_map_strides(2 * x.token_stride, 2 * x.head_stride, name);
}

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

CUtensorMap bf16_rows_map(const driver::Device& device, const Bf16Rows& x,
                          const device::AttentionOperand& shape, std::int32_t columns,
                          std::uint32_t tokens) {
  const std::uint64_t dims[] = {static_cast<std::uint64_t>(columns),
                                static_cast<std::uint64_t>(shape.num_heads),
                                static_cast<std::uint64_t>(std::max<std::int64_t>(shape.total, 1))};
  const std::uint64_t strides[] = {static_cast<std::uint64_t>(2 * x.head_stride),
                                   static_cast<std::uint64_t>(2 * x.token_stride)};
  const std::uint32_t box[] = {64, 1, tokens};
  return device::make_tensor_map(device, {.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                          .address = reinterpret_cast<std::uint64_t>(x.data),
                                          .dims = dims,
                                          .stride_bytes = strides,
                                          .box = box,
                                          .swizzle = CU_TENSOR_MAP_SWIZZLE_128B});
}

CUtensorMap value_map(const driver::Device& device, const device::AttentionOperand& x) {
  constexpr std::uint64_t kRow = mx::kAtomRows;
  const std::int64_t parts = x.tiles * x.num_heads * x.head_dim / 32;
  const std::uint64_t dims[] = {kRow, 2, 4, 4,
                                static_cast<std::uint64_t>(std::max<std::int64_t>(parts, 1))};
  const std::uint64_t strides[] = {kRow, 8 * kRow, 2 * kRow, 32 * kRow};
  const std::uint32_t box[] = {kRow, 2, 4, 4, static_cast<std::uint32_t>(x.head_dim / 32)};
  return device::make_tensor_map(device, {.address = reinterpret_cast<std::uint64_t>(x.transposed),
                                          .dims = dims,
                                          .stride_bytes = strides,
                                          .box = box,
                                          .swizzle = CU_TENSOR_MAP_SWIZZLE_128B});
}

CUtensorMap transposed_map(const driver::Device& device, const device::AttentionOperand& x,
                           std::uint32_t tokens) {
  return device::make_transposed_map(device, x.transposed, {x.num_heads, x.head_dim}, x.tiles,
                                     tokens);
}

}  // namespace mxfa::sm90
