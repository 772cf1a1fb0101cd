#include "kernels/sm100/forward/kernel.cuh"

namespace mxfa::sm100::forward {

#define MXFA_FORWARD(name, head_dim, scale)                                    \
  extern "C" __global__ void __launch_bounds__(kThreads, 1)                    \
      attention_forward_##name(const __grid_constant__ ForwardParams params) { \
    forward<Config<head_dim, PScale::scale>>(params);                          \
  }

MXFA_FORWARD(d128_constant, 128, kConstant)
MXFA_FORWARD(d128_amax, 128, kBlockAmax)
MXFA_FORWARD(d128_row_max, 128, kBlockRowMax)
MXFA_FORWARD(d64_constant, 64, kConstant)
MXFA_FORWARD(d64_amax, 64, kBlockAmax)
MXFA_FORWARD(d64_row_max, 64, kBlockRowMax)

}  // namespace mxfa::sm100::forward
