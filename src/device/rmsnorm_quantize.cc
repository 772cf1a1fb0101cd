#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"
#include "device/ops.h"
#include "mx/scale_layout.h"

namespace mxfa::device {
namespace {

struct Variant {
  int steps;  ///< passes of 128 columns that the entry covers
  const char* entry;
};
constexpr Variant kVariants[] = {
    {1, "rmsnorm_quantize_1"}, {2, "rmsnorm_quantize_2"}, {3, "rmsnorm_quantize_3"},
    {4, "rmsnorm_quantize_4"}, {8, "rmsnorm_quantize_8"},
};

const char* entry_for(std::int64_t dim) {
  if (rmsnorm_cluster_size(dim) > 1) return "rmsnorm_quantize_wide";
  const std::int64_t steps = (dim + mx::row_sum::kStep - 1) / mx::row_sum::kStep;
  return std::find_if(std::begin(kVariants), std::end(kVariants),
                      [&](const Variant& variant) { return variant.steps >= steps; })
      ->entry;
}

}  // namespace

void rmsnorm_quantize(const Queue& queue, const RmsNormQuantizeParams& params) {
  core::expect(
      params.dim > 0 && params.dim % kScaleBlock == 0 && params.dim <= mx::row_sum::kMaxColumns,
      "dim", fmt::format("a multiple of 32 up to {}", mx::row_sum::kMaxColumns),
      core::text(params.dim));
  core::expect(params.rows >= 0, "rows", "at least 0", core::text(params.rows));
  if (params.rows == 0) return;
  const int cluster = rmsnorm_cluster_size(params.dim);
  const std::int64_t tiles = (params.rows + mx::kAtomRows - 1) / mx::kAtomRows;
  const std::int64_t resident =
      queue.device.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) / cluster;
  driver::LaunchShape shape;
  shape.grid[0] =
      static_cast<unsigned>(std::min(tiles, std::max<std::int64_t>(1, resident)) * cluster);
  shape.block[0] = kRmsNormThreads;
  shape.cluster[0] = static_cast<unsigned>(cluster);
  shape.dynamic_smem_bytes = kRmsNormSmemBytes;
  const driver::KernelNeeds needs{.dynamic_smem_bytes = kRmsNormSmemBytes,
                                  .nonportable_cluster = cluster > 8};
  queue.kernels.get("rmsnorm_quantize", entry_for(params.dim), needs)
      .launch(queue.stream, shape, params);
}

}  // namespace mxfa::device
