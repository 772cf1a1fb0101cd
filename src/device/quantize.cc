#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"
#include "device/ops.h"
#include "device/tensor_map.h"
#include "mx/jagged_scale.h"

namespace mxfa::device {
namespace {

void check(const QuantizeParams& params) {
  core::expect(
      params.head_dim > 0 && params.head_dim <= mx::kAtomRows && params.head_dim % kScaleBlock == 0,
      "head_dim", "32, 64, 96 or 128", core::text(params.head_dim));
  core::expect(params.num_heads > 0, "num_heads", "at least 1", core::text(params.num_heads));
  // 16-byte loads of BF16.
  core::expect(params.row_stride % 8 == 0, "row_stride", "a multiple of 8 elements",
               core::text(params.row_stride));
  core::expect(params.head_stride % 8 == 0, "head_stride", "a multiple of 8 elements",
               core::text(params.head_stride));
  if (params.tiled_dim != nullptr) mx::check_scale_axis(params.block_shape, ScaleAxis::kHeadDim);
  if (params.tiled_tokens != nullptr) mx::check_scale_axis(params.block_shape, ScaleAxis::kTokens);
  core::expect(params.transposed == nullptr || params.transposed_pitch % mx::kAtomRows == 0,
               "transposed_pitch", "whole tiles of 128 tokens",
               core::text(params.transposed_pitch));
}

CUtensorMap input_map(const driver::Device& device, const QuantizeParams& params) {
  const auto width = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
  const std::uint64_t dims[] = {width(params.head_dim), width(params.num_heads),
                                width(params.total)};
  const std::uint64_t strides[] = {width(params.head_stride) * 2, width(params.row_stride) * 2};
  const std::uint32_t box[] = {static_cast<std::uint32_t>(params.head_dim), 1, mx::kAtomRows};
  return make_tensor_map(device, {.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                  .address = reinterpret_cast<std::uint64_t>(params.x),
                                  .dims = dims,
                                  .stride_bytes = strides,
                                  .box = box});
}

}  // namespace

void jagged_offsets(const Queue& queue, const std::int32_t* tokens, std::int32_t batch,
                    std::int64_t* groups, std::int64_t* tiles) {
  core::expect(batch >= 0, "batch", "at least 0", core::text(batch));
  driver::LaunchShape shape;
  shape.block[0] = 1024;
  queue.kernels.get("quantize", "jagged_offsets")
      .launch(queue.stream, shape, tokens, batch, groups, tiles);
}

void quantize(const Queue& queue, const QuantizeParams& params, std::int64_t max_tiles) {
  check(params);
  const std::int64_t works = max_tiles * params.num_heads;
  if (works <= 0 || params.total <= 0) return;
  driver::LaunchShape shape;
  shape.grid[0] = static_cast<unsigned>(std::min<std::int64_t>(
      works, queue.device.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)));
  shape.block[0] = kQuantizeThreads;
  shape.dynamic_smem_bytes = kQuantizeSmemBytes;
  const std::string entry = fmt::format("quantize_{}", block_shape_name(params.block_shape));
  queue.kernels.get("quantize", entry, {.dynamic_smem_bytes = kQuantizeSmemBytes})
      .launch(queue.stream, shape, params, input_map(queue.device, params));
}

}  // namespace mxfa::device
