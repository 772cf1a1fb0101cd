#include "device/checks.h"

namespace mxfa::device {

void realign(const Queue& queue, const RealignParams& params, DType format,
             std::int64_t max_tiles) {
  constexpr int kThreads = 128;
  constexpr int kGroups = mx::kAtomRows / kScaleBlock;
  core::expect(format == DType::kE4M3 || format == DType::kE5M2, "format", "e4m3 or e5m2",
               dtype_name(format));
  internal::expect_heads(params.num_heads);
  core::expect(params.head_dim > 0 && params.head_dim % 4 == 0 && params.head_dim <= mx::kAtomRows,
               "head_dim", "a multiple of 4 up to 128", params.head_dim);
  internal::expect_aligned(params.codes, "codes", 4);
  internal::expect_multiple(params.row_stride, "row_stride", 4);
  internal::expect_multiple(params.head_stride, "head_stride", 4);
  internal::expect_aligned(params.out, "out", 4);
  internal::expect_multiple(params.out_row_stride, "out_row_stride", 4);
  internal::expect_multiple(params.out_head_stride, "out_head_stride", 4);
  if (params.transposed != nullptr) {
    internal::expect_aligned(params.transposed, "transposed", 16);
    core::expect(params.transposed_head_dim >= params.head_dim &&
                     params.transposed_head_dim <= mx::kAtomRows &&
                     params.transposed_head_dim % 4 == 0,
                 "transposed_head_dim", core::later("{} to 128, a multiple of 4", params.head_dim),
                 params.transposed_head_dim);
  }
  const std::int64_t works = max_tiles * params.num_heads * kGroups;
  if (works <= 0) return;
  driver::LaunchShape shape;
  shape.grid[0] = internal::grid_for(queue, works, kThreads / 32, 4);
  shape.block[0] = kThreads;
  queue.kernels
      .get("realign",
           fmt::format("realign_{}_{}", dtype_name(format), block_shape_name(params.block_shape)))
      .launch(queue.stream, shape, params);
}

}  // namespace mxfa::device
