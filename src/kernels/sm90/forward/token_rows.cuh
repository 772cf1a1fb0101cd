#pragma once

#include "kernels/sm90/forward/softmax.cuh"
#include "ptx/lane.cuh"

/// What both leak-free softmaxes know of a block and of a warp's 16 rows.
namespace mxfa::sm90::forward {

/// Which of the four lanes of a row.
__device__ inline int quarter() { return ptx::lane_now() % 4; }
/// Row h of the thread, in the tile.
__device__ inline int row_of(int warp_row, int h) { return warp_row + ptx::lane_now() / 4 + 8 * h; }

template <class Config>
struct TokenBlock {
  const StageScales<Config>& stage;
  RowNumbers<Config>& numbers;
  int warp_row;
  bool keeps_top;

  __device__ TokenBlock(const StageScales<Config>& source, RowNumbers<Config>& rows, int first,
                        BlockUse use)
      : stage(source), numbers(rows), warp_row(first), keeps_top(use.keeps_top) {}

  /// `top`: of all columns of the block. One lane of each row's four keeps it.
  __device__ void raise_top(int h, float top) const {
    if (quarter() != 0) return;
    float& of_row = numbers.top[row_of(warp_row, h)];
    of_row = fmaxf(of_row, top);
  }
};

}  // namespace mxfa::sm90::forward
