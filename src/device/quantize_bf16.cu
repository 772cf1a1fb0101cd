#include "device/quantize_kernel.cuh"

MXFA_QUANTIZE_ALL(bf16, mxfa::DType::kBF16)
