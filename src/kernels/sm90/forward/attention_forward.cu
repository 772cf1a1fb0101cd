#include "kernels/sm90/forward/kernel.cuh"

namespace mxfa::sm90::forward {

extern "C" __global__ void __launch_bounds__(512, 1)
    attention_forward_d128_f32(const __grid_constant__ ForwardParams params) {
  forward<Config<128, Scores::kF32>>(params);
}
extern "C" __global__ void __launch_bounds__(640, 1)
    attention_forward_d128_f16(const __grid_constant__ ForwardParams params) {
  forward<Config<128, Scores::kF16>>(params);
}
extern "C" __global__ void __launch_bounds__(512, 1)
    attention_forward_d64_f32(const __grid_constant__ ForwardParams params) {
  forward<Config<64, Scores::kF32>>(params);
}
extern "C" __global__ void __launch_bounds__(640, 1)
    attention_forward_d64_f16(const __grid_constant__ ForwardParams params) {
  forward<Config<64, Scores::kF16>>(params);
}

extern "C" __global__ void __launch_bounds__(512, 1)
    attention_forward_d128_tokens(const __grid_constant__ ForwardParams params) {
  forward<Config<128, Scores::kF32, Product::kTokenScales>>(params);
}
extern "C" __global__ void __launch_bounds__(512, 1)
    attention_forward_d64_tokens(const __grid_constant__ ForwardParams params) {
  forward<Config<64, Scores::kF32, Product::kTokenScales>>(params);
}
extern "C" __global__ void __launch_bounds__(640, 1)
    attention_forward_d128_tokens_f16(const __grid_constant__ ForwardParams params) {
  forward<Config<128, Scores::kF16, Product::kTokenScales>>(params);
}
extern "C" __global__ void __launch_bounds__(640, 1)
    attention_forward_d64_tokens_f16(const __grid_constant__ ForwardParams params) {
  forward<Config<64, Scores::kF16, Product::kTokenScales>>(params);
}
extern "C" __global__ void __launch_bounds__(512, 1)
    attention_forward_d128_bf16(const __grid_constant__ ForwardParams params) {
  forward<Config<128, Scores::kF32, Product::kBf16>>(params);
}
extern "C" __global__ void __launch_bounds__(512, 1)
    attention_forward_d64_bf16(const __grid_constant__ ForwardParams params) {
  forward<Config<64, Scores::kF32, Product::kBf16>>(params);
}

}  // namespace mxfa::sm90::forward
