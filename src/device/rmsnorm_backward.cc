#include <algorithm>

#include "device/checks.h"

namespace mxfa::device {
namespace {

void check_matrix(const NormTensor& tensor, std::string_view name) {
  core::expect(tensor.dtype == DType::kBF16 || tensor.dtype == DType::kF32, name, "bf16 or f32",
               dtype_name(tensor.dtype));
  internal::expect_aligned(tensor.data, name, 16);
  internal::expect_multiple(tensor.row_stride * static_cast<std::int64_t>(dtype_size(tensor.dtype)),
                            name, 16);
}

void check(const RmsNormBackwardParams& params) {
  core::expect(
      params.dim > 0 && params.dim % kScaleBlock == 0 && params.dim <= mx::row_sum::kMaxColumns,
      "dim", core::later("a multiple of 32 up to {}", mx::row_sum::kMaxColumns), params.dim);
  core::expect(params.rows >= 0, "rows", "at least 0", params.rows);
  check_matrix(params.dy, "dy");
  check_matrix(params.x, "x");
  check_matrix(params.dx, "dx");
  core::expect(params.dweight.data == nullptr || params.partial != nullptr, "partial",
               "scratch where dweight is asked for", "none");
}

}  // namespace

void rmsnorm_backward(const Queue& queue, const RmsNormBackwardParams& params) {
  check(params);
  RmsNormBackwardParams launched = params;
  if (params.dweight.data == nullptr) launched.partial = nullptr;
  driver::LaunchShape shape;
  if (params.rows > 0 && (params.dx.data != nullptr || launched.partial != nullptr)) {
    const std::int64_t steps =
        std::min<std::int64_t>(8, mx::ceil_div(params.dim, mx::row_sum::kStep));
    shape.grid[0] = internal::grid_for(queue, mx::row_sum::weight_chunks(params.rows), 1, 1);
    shape.block[0] = kBackwardThreads;
    shape.dynamic_smem_bytes = kBackwardSmemBytes;
    queue.kernels
        .get("rmsnorm_backward", fmt::format("rmsnorm_backward_{}", steps > 4 ? 8 : steps),
             {.dynamic_smem_bytes = kBackwardSmemBytes})
        .launch(queue.stream, shape, launched);
  }
  if (launched.partial == nullptr) return;
  shape = {};
  shape.grid[0] = static_cast<unsigned>(params.dim / 8);
  shape.block[0] = mx::row_sum::kChunkStrands * 8;
  queue.kernels.get("rmsnorm_backward", "rmsnorm_backward_weight")
      .launch(queue.stream, shape, launched);
}

}  // namespace mxfa::device
