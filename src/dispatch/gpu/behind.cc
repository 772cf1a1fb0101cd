#include "dispatch/gpu/behind.h"

namespace mxfa::dispatch {

void Behind::add(const device::RowsBehind& rows) {
  if (rows.cu_seqlens == nullptr || rows.rows == 0) return;
  params_.tensors[params_.count++] = rows;
}

void Behind::add_rows(const DeviceRows& rows, Side side) {
  if (!rows.given()) return;
  const device::Sequences& sequences = sequences_of(problem_, side);
  const auto size = static_cast<std::int64_t>(dtype_size(rows.dtype()));
  const auto heads =
      static_cast<std::int32_t>(rows.tensor->values.shape[rows.tensor->values.rank - 2]);
  const std::int32_t dim = problem_.operands.head_dim;
  add({.data = static_cast<std::uint8_t*>(rows.data()),
       .row_stride_bytes = rows.token_stride * size,
       .head_stride_bytes = rows.head_stride * size,
       .row_bytes = static_cast<std::int32_t>(dim * size),
       .rows = sequences.total,
       .num_heads = heads,
       .cu_seqlens = sequences.cu_seqlens,
       .batch = sequences.batch});
  const TensorView& scales = rows.tensor->scales;
  if (scales.rank == 0) return;
  add({.data = static_cast<std::uint8_t*>(scales.data),
       .row_stride_bytes = scales.strides[0],
       .head_stride_bytes = scales.strides[1],
       .row_bytes = (dim + kScaleBlock - 1) / kScaleBlock,
       .rows = scales.shape[0],
       .num_heads = heads,
       .cu_seqlens = sequences.cu_seqlens,
       .batch = sequences.batch,
       .groups = mx::block_rows(problem_.options.output_shape) > 1});
}

void Behind::add_row_values(const TensorView& x) {
  constexpr std::int64_t kFloatBytes = sizeof(float);
  add({.data = static_cast<std::uint8_t*>(x.data),
       .row_stride_bytes = kFloatBytes,
       .head_stride_bytes = x.strides[0] * kFloatBytes,
       .row_bytes = kFloatBytes,
       .rows = problem_.rows_o(),
       .num_heads = problem_.operands.num_heads,
       .cu_seqlens = problem_.o_sequences.cu_seqlens,
       .batch = problem_.o_sequences.batch,
       .minus_infinity = true});
}

}  // namespace mxfa::dispatch
