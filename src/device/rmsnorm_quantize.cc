#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "core/check.h"
#include "device/ops.h"
#include "mx/scale_layout.h"

namespace mxfa::device {
namespace {

/// The entry of the fewest passes of 128 columns that cover a row.
std::string entry_for(const RmsNormQuantizeParams& params) {
  const std::int64_t steps = (params.dim + mx::row_sum::kStep - 1) / mx::row_sum::kStep;
  const std::string covered = rmsnorm_cluster_size(params.dim) > 1 ? "wide"
                              : steps > 4                          ? "8"
                                                                   : std::to_string(steps);
  return fmt::format("rmsnorm_quantize_{}_{}", dtype_name(params.x_dtype), covered);
}

}  // namespace

void rmsnorm_quantize(const Queue& queue, const RmsNormQuantizeParams& params) {
  core::expect(
      params.dim > 0 && params.dim % kScaleBlock == 0 && params.dim <= mx::row_sum::kMaxColumns,
      "dim", core::later("a multiple of 32 up to {}", mx::row_sum::kMaxColumns), params.dim);
  core::expect(params.rows >= 0, "rows", "at least 0", params.rows);
  core::expect(params.x_dtype == DType::kBF16 || params.x_dtype == DType::kF32, "x", "bf16 or f32",
               dtype_name(params.x_dtype));
  if (params.rows == 0) return;
  const int cluster = rmsnorm_cluster_size(params.dim);
  const std::int64_t tiles = (params.rows + mx::kAtomRows - 1) / mx::kAtomRows;
  driver::LaunchShape shape;
  shape.grid[0] = static_cast<unsigned>(cluster);
  shape.block[0] = kRmsNormThreads;
  shape.cluster[0] = static_cast<unsigned>(cluster);
  shape.dynamic_smem_bytes = kRmsNormSmemBytes;
  const driver::KernelNeeds needs{.dynamic_smem_bytes = kRmsNormSmemBytes,
                                  .nonportable_cluster = cluster > 8};
  const std::string entry = entry_for(params);
  // A cluster that found no place would begin when all the others have ended.
  const std::int64_t resident =
      cluster == 1 ? queue.device.multiprocessors()
                   : queue.kernels.resident_clusters("rmsnorm_quantize", entry, needs, shape);
  shape.grid[0] =
      static_cast<unsigned>(std::min(tiles, std::max<std::int64_t>(1, resident)) * cluster);
  queue.kernels.get("rmsnorm_quantize", entry, needs).launch(queue.stream, shape, params);
}

}  // namespace mxfa::device
