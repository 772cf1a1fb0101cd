#include "device/tile_plan.h"

namespace mxfa::device {
namespace {

struct Block {
  __device__ std::int32_t rank() const { return static_cast<std::int32_t>(threadIdx.x); }
  __device__ std::int32_t size() const { return kTilePlanThreads; }
  __device__ void sync() const { __syncthreads(); }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(kTilePlanThreads, 1)
    tile_plan(const __grid_constant__ TilePlanParams params) {
  __shared__ std::int32_t scratch[attention::plan_scratch_elems(kTilePlanThreads)];
  if (threadIdx.x == 0 && params.counter != nullptr) *params.counter = 0;
  attention::JaggedPlanBuilder(Block{}, params.shape, params.seqlens, params.batch, scratch)
      .run(params.plan);
}

}  // namespace mxfa::device
