#include "kernels/sm90/backward/kernel.cuh"

namespace mxfa::sm90::backward {

extern "C" __global__ void __launch_bounds__(512, 1)
    attention_backward_tokens_d128(const __grid_constant__ BackwardParams params) {
  backward<DialConfig<128, Product::kTokenScales>>(params);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    attention_backward_tokens_d64(const __grid_constant__ BackwardParams params) {
  backward<DialConfig<64, Product::kTokenScales>>(params);
}

}  // namespace mxfa::sm90::backward
