#include "device/quantize_kernel.cuh"

MXFA_QUANTIZE_ALL(f16, mxfa::DType::kF16)
