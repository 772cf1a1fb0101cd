#include "kernels/sm100/forward/entries.h"
#include "kernels/sm100/forward/kernel.cuh"

/// The kernels of the library with one difference: what ForwardParams::probe
/// asks for goes to memory as well.
namespace mxfa::sm100::forward {

#define MXFA_FORWARD(name, head_dim, scale, leak_free)                               \
  extern "C" __global__ void __launch_bounds__(kThreads, 1)                          \
      attention_forward_probe_##name(const __grid_constant__ ForwardParams params) { \
    forward<Config<head_dim, PScale::scale, leak_free, true>>(params);               \
  }

MXFA_SM100_FORWARD_ENTRIES(MXFA_FORWARD)

}  // namespace mxfa::sm100::forward
