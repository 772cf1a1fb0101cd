#include "kernels/sm90/backward/kernel.cuh"

namespace mxfa::sm90::backward {

extern "C" __global__ void __launch_bounds__(640, 1)
    attention_backward_half_d128_f32(const __grid_constant__ BackwardParams params) {
  backward<Config<128, DqSums::kF32, true, Scores::kF16>>(params);
}

extern "C" __global__ void __launch_bounds__(640, 1)
    attention_backward_half_d128_f16(const __grid_constant__ BackwardParams params) {
  backward<Config<128, DqSums::kF16, true, Scores::kF16>>(params);
}

extern "C" __global__ void __launch_bounds__(640, 1)
    attention_backward_half_d64_f32(const __grid_constant__ BackwardParams params) {
  backward<Config<64, DqSums::kF32, true, Scores::kF16>>(params);
}

extern "C" __global__ void __launch_bounds__(640, 1)
    attention_backward_half_d64_f16(const __grid_constant__ BackwardParams params) {
  backward<Config<64, DqSums::kF16, true, Scores::kF16>>(params);
}

}  // namespace mxfa::sm90::backward
