#include "device/checks.h"

namespace mxfa::device {
namespace {

using internal::expect_aligned;
using internal::expect_multiple;

constexpr int kThreads = 256;

/// Of eight elements, in pieces of at most 16 bytes.
int access_bytes(DType dtype) { return dtype_size(dtype) == 1 ? 8 : 16; }

void check_shape(std::int32_t num_heads, std::int32_t head_dim) {
  internal::expect_heads(num_heads);
  core::expect(head_dim > 0 && head_dim % 8 == 0 && head_dim <= mx::kAtomRows, "head_dim",
               "a multiple of 8 up to 128", head_dim);
}

void check_rows(const RowsView& view, std::string_view name) {
  core::expect(view.dtype == DType::kBF16 || view.dtype == DType::kF32 ||
                   (view.dtype == DType::kE4M3 && view.scales != nullptr),
               name, "bf16, f32, or e4m3 with scales", dtype_name(view.dtype));
  expect_aligned(view.data, name, access_bytes(view.dtype));
  expect_multiple(view.row_stride, name, 8);
  expect_multiple(view.head_stride, name, 8);
}

void check_bf16_output(const std::uint16_t* out, std::int64_t row_stride,
                       std::int64_t head_stride) {
  expect_aligned(out, "out", 16);
  expect_multiple(row_stride, "out_row_stride", 8);
  expect_multiple(head_stride, "out_head_stride", 8);
}

template <class Params>
void launch(const Queue& queue, const Params& params, std::int64_t max_tiles,
            std::string_view entry) {
  const std::int64_t works = max_tiles * params.num_heads * (mx::kAtomRows / kScaleBlock);
  if (works <= 0) return;
  driver::LaunchShape shape;
  shape.grid[0] = internal::grid_for(queue, works, kThreads / 32, 8);
  shape.block[0] = kThreads;
  queue.kernels.get("rowwise", entry).launch(queue.stream, shape, params);
}

}  // namespace

void check_delta(const DeltaParams& params) {
  check_shape(params.num_heads, params.head_dim);
  check_rows(params.dout, "dout");
  check_rows(params.o, "o");
}

void delta(const Queue& queue, const DeltaParams& params, std::int64_t max_tiles) {
  check_delta(params);
  launch(queue, params, max_tiles,
         fmt::format("delta_{}_{}", dtype_name(params.dout.dtype), dtype_name(params.o.dtype)));
}

void dequantize_bf16(const Queue& queue, const DequantizeParams& params, std::int64_t max_tiles) {
  check_shape(params.num_heads, params.head_dim);
  core::expect(params.input.dtype == DType::kE4M3, "input", "e4m3", dtype_name(params.input.dtype));
  check_rows(params.input, "input");
  check_bf16_output(params.out, params.out_row_stride, params.out_head_stride);
  launch(queue, params, max_tiles, "dequantize_bf16");
}

void finish_sums_bf16(const Queue& queue, const FinishSumsParams& params, std::int64_t max_tiles) {
  check_shape(params.num_heads, params.head_dim);
  core::expect(params.dtype == DType::kF32 || params.dtype == DType::kF16, "dtype", "f32 or f16",
               dtype_name(params.dtype));
  expect_aligned(params.data, "data", access_bytes(params.dtype));
  expect_multiple(params.row_stride, "row_stride", 8);
  expect_multiple(params.head_stride, "head_stride", 8);
  core::expect(std::abs(params.sums.exponent) <= 64, "sums.exponent", "-64 to 64",
               params.sums.exponent);
  check_bf16_output(params.out, params.out_row_stride, params.out_head_stride);
  launch(queue, params, max_tiles, fmt::format("finish_sums_{}", dtype_name(params.dtype)));
}

}  // namespace mxfa::device
