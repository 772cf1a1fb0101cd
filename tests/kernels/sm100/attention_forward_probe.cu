#include "kernels/sm100/forward/kernel.cuh"

/// The kernels of the library with one difference: P goes to memory as well.
namespace mxfa::sm100::forward {

#define MXFA_FORWARD(name, head_dim, scale, leak_free)                               \
  extern "C" __global__ void __launch_bounds__(kThreads, 1)                          \
      attention_forward_probe_##name(const __grid_constant__ ForwardParams params) { \
    forward<Config<head_dim, PScale::scale, leak_free, true>>(params);               \
  }

MXFA_FORWARD(d128_constant, 128, kConstant, false)
MXFA_FORWARD(d128_amax, 128, kBlockAmax, false)
MXFA_FORWARD(d128_row_max, 128, kBlockRowMax, false)
MXFA_FORWARD(d128_leak_free, 128, kConstant, true)
MXFA_FORWARD(d64_constant, 64, kConstant, false)
MXFA_FORWARD(d64_amax, 64, kBlockAmax, false)
MXFA_FORWARD(d64_row_max, 64, kBlockRowMax, false)
MXFA_FORWARD(d64_leak_free, 64, kConstant, true)

}  // namespace mxfa::sm100::forward
