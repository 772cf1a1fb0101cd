#include "kernels/sm90/backward/kernel.cuh"

namespace mxfa::sm90::backward {

extern "C" __global__ void __launch_bounds__(384, 1)
    attention_backward_d128(const __grid_constant__ BackwardParams params) {
  backward<Config<128>>(params);
}
extern "C" __global__ void __launch_bounds__(384, 1)
    attention_backward_d64(const __grid_constant__ BackwardParams params) {
  backward<Config<64>>(params);
}

}  // namespace mxfa::sm90::backward
