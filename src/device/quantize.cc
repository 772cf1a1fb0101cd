#include <algorithm>
#include <limits>

#include "device/checks.h"
#include "device/transposed_map.h"
#include "mx/jagged_scale.h"

namespace mxfa::device {
namespace {

using internal::expect_aligned;
using internal::expect_multiple;

void check_input(const QuantizeParams& params) {
  const QuantizeInput& input = params.input;
  core::expect(
      input.dtype == DType::kBF16 || input.dtype == DType::kF32 || input.dtype == DType::kF16,
      "input.dtype", "bf16, f32 or f16", dtype_name(input.dtype));
  core::expect(input.head_dim > 0 && input.head_dim % 8 == 0 && input.head_dim <= params.head_dim,
               "input.head_dim", core::later("a multiple of 8 up to {}", params.head_dim),
               input.head_dim);
  core::expect(input.rows >= 0 && input.rows <= std::numeric_limits<std::int32_t>::max(),
               "input.rows", "0 to 2^31 - 1", input.rows);
  core::expect(input.shift == nullptr || input.dtype != DType::kF16, "input.shift",
               "none for f16 sums", "one");
  core::expect(std::abs(input.sums.exponent) <= 64, "input.sums.exponent", "-64 to 64",
               input.sums.exponent);
}

void check_outputs(const QuantizeParams& params) {
  core::expect(
      params.head_dim > 0 && params.head_dim <= mx::kAtomRows && params.head_dim % kScaleBlock == 0,
      "head_dim", "32, 64, 96 or 128", params.head_dim);
  internal::expect_heads(params.num_heads);
  expect_aligned(params.codes, "codes", 8);
  expect_multiple(params.codes_row_stride, "codes_row_stride", 8);
  expect_multiple(params.codes_head_stride, "codes_head_stride", 8);
  if (params.tiled_dim != nullptr) mx::check_scale_axis(params.block_shape, ScaleAxis::kHeadDim);
  if (params.tiled_tokens != nullptr) mx::check_scale_axis(params.block_shape, ScaleAxis::kTokens);
  expect_aligned(params.tiled_dim, "tiled_dim", 16);
  expect_aligned(params.tiled_tokens, "tiled_tokens", 16);
  expect_aligned(params.transposed, "transposed", 16);
}

/// The input as the copy engine may see it: head_dim, heads, rows, sequences.
struct InputTensor {
  CUtensorMapDataType type;
  std::uint64_t dims[4];
  std::uint64_t strides[3];
  bool copyable;

  explicit InputTensor(const QuantizeParams& params) {
    const QuantizeInput& input = params.input;
    const std::uint64_t element = dtype_size(input.dtype);
    type = input.dtype == DType::kF32   ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
           : input.dtype == DType::kF16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                        : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    const bool sequences = params.offsets.dense() && !input.padded_rows;
    const std::int64_t extents[] = {input.head_dim, params.num_heads, input.rows,
                                    sequences ? params.offsets.batch : 1};
    std::copy_n(extents, 4, dims);
    const std::int64_t steps[] = {input.head_stride, input.row_stride,
                                  sequences ? input.batch_stride : 0};
    copyable = reinterpret_cast<std::uintptr_t>(input.data) % 16 == 0;
    constexpr std::uint64_t kStrideLimit = std::uint64_t{1} << 40;
    for (int d = 0; d < 3; ++d) {
      // The stride of a dimension of one element is never used, but checked.
      strides[d] = extents[d + 1] > 1 ? static_cast<std::uint64_t>(steps[d]) * element : 16;
      copyable = copyable && strides[d] > 0 && strides[d] % 16 == 0 && strides[d] < kStrideLimit;
    }
  }
};

CUtensorMap input_map(const Queue& queue, const QuantizeParams& params, const InputTensor& tensor) {
  const std::uint32_t box[] = {static_cast<std::uint32_t>(params.head_dim), 1, mx::kAtomRows, 1};
  return make_tensor_map(queue.device,
                         {.type = tensor.type,
                          .address = reinterpret_cast<std::uint64_t>(params.input.data),
                          .dims = tensor.dims,
                          .stride_bytes = tensor.strides,
                          .box = box});
}

}  // namespace

void quantize(const Queue& queue, const QuantizeParams& params, std::int64_t max_tiles) {
  check_outputs(params);
  check_input(params);
  const std::int64_t works = max_tiles * params.num_heads;
  if (works <= 0 || params.input.rows <= 0) return;
  const InputTensor tensor(params);
  QuantizeParams launched = params;
  launched.bulk = tensor.copyable;
  const CUtensorMap map = tensor.copyable ? input_map(queue, params, tensor) : CUtensorMap{};
  const CUtensorMap transposed =
      params.transposed != nullptr
          ? make_transposed_map(queue.device, params.transposed,
                                {params.num_heads, params.head_dim}, max_tiles, mx::kAtomRows)
          : CUtensorMap{};
  driver::LaunchShape shape;
  shape.grid[0] = internal::grid_for(queue, works, 1, 1);
  shape.block[0] = static_cast<unsigned>(quantize_threads(params.input.dtype));
  shape.dynamic_smem_bytes = kQuantizeSmemBytes;
  shape.programmatic_launch = params.overlap;
  const std::string_view input = dtype_name(params.input.dtype);
  queue.kernels
      .get(fmt::format("quantize_{}", input),
           fmt::format("quantize_{}_{}", input, block_shape_name(params.block_shape)),
           {.dynamic_smem_bytes = kQuantizeSmemBytes})
      .launch(queue.stream, shape, launched, map, transposed);
}

}  // namespace mxfa::device
