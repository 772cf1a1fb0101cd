#include "device/quantize_kernel.cuh"

MXFA_QUANTIZE_ALL(f32, mxfa::DType::kF32)
