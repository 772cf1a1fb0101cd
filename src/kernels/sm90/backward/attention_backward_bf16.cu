#include "kernels/sm90/backward/kernel.cuh"

namespace mxfa::sm90::backward {

extern "C" __global__ void __launch_bounds__(512, 1)
    attention_backward_bf16_s_d128(const __grid_constant__ BackwardParams params) {
  backward<DialConfig<128, Product::kBf16S>>(params);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    attention_backward_bf16_dp_d128(const __grid_constant__ BackwardParams params) {
  backward<DialConfig<128, Product::kBf16Dp>>(params);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    attention_backward_bf16_d128(const __grid_constant__ BackwardParams params) {
  backward<DialConfig<128, Product::kBf16>>(params);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    attention_backward_bf16_s_d64(const __grid_constant__ BackwardParams params) {
  backward<DialConfig<64, Product::kBf16S>>(params);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    attention_backward_bf16_dp_d64(const __grid_constant__ BackwardParams params) {
  backward<DialConfig<64, Product::kBf16Dp>>(params);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    attention_backward_bf16_d64(const __grid_constant__ BackwardParams params) {
  backward<DialConfig<64, Product::kBf16>>(params);
}

}  // namespace mxfa::sm90::backward
