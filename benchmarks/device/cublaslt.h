#pragma once

#include <optional>
#include <string>

#include "driver/device.h"

/// The rate that FP8 kernels are held to: cuBLASLt's FP8 GEMM, the fastest on NVIDIA's GPUs.
namespace mxfa::bench {

/// TFLOP/s of E4M3 x E4M3 -> BF16, 8192^3, one scale a tensor, random payload; median of 20.
/// `library`: libcublasLt to open; empty: the usual names. Nothing where it cannot be opened or has
/// no such product.
std::optional<double> measure_fp8_gemm_tflops(const driver::Device& device,
                                              const std::string& library);

}  // namespace mxfa::bench
