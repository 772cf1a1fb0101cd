#include "device/ragged_map.h"

#include "device/tensor_map.h"

namespace mxfa::device {

CUtensorMap make_ragged_map(const driver::Device& device, const RaggedRows& rows) {
  const std::uint64_t limit = static_cast<std::uint64_t>(kRaggedRows);
  const std::uint64_t dims[] = {rows.columns, rows.heads, limit, (1ull << 31) - 1, limit + 1};
  // kRaggedRows of the last stride are 2^64 - kRaggedRows * row_stride.
  const std::uint64_t strides[] = {
      rows.head_stride_bytes, rows.row_stride_bytes, rows.row_stride_bytes,
      static_cast<std::uint64_t>(kRaggedStrideEnd) - rows.row_stride_bytes};
  const std::uint32_t box[] = {rows.box_columns, 1, rows.box_rows, 1, 1};
  return make_tensor_map(device, {.type = rows.type,
                                  .address = rows.address,
                                  .dims = dims,
                                  .stride_bytes = strides,
                                  .box = box,
                                  .swizzle = rows.swizzle});
}

}  // namespace mxfa::device
