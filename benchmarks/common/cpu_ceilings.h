#pragma once

#include <optional>
#include <string>

#include "common/timing.h"

/// What this machine can do at best, measured like everything else, on core::num_threads() threads.
namespace mxfa::bench {

struct MatrixCeiling {
  std::string name;  ///< "amx_bf16_tflops", "avx512_bf16_tflops"
  double tflops = 0;
};

struct CpuCeilings {
  double fp32_fma_tflops = 0;                ///< independent chains of multiply-adds
  std::optional<MatrixCeiling> bf16_matrix;  ///< of the fastest BF16 product that it has
  double copy_gbps = 0;                      ///< read plus written, far larger than the caches
};

CpuCeilings measure_cpu_ceilings(const RunPlan& plan);

}  // namespace mxfa::bench
