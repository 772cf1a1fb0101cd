#include <deep_gemm/impls/sm90_fp8_gemm_1d1d.cuh>

/// Instances of DeepGEMM's FP8 GEMM for Hopper that run_sm90.cc runs, in the order of its table:
/// groups along K, block M, stages, CTAs that share loads (and whether of A), kind. Block N and K
/// are 128; FP32 out, four SMs.
#define MXFA_GEMM(GROUPS, BM, STAGES, CTAS, OF_A, KIND)                                         \
  reinterpret_cast<void*>(                                                                      \
      &deep_gemm::sm90_fp8_gemm_1d1d_impl<0, 0, 0, GROUPS, BM, 128, 128, 128, 128, STAGES, 128, \
                                          (BM)*2, CTAS, OF_A, 4, deep_gemm::GemmType::KIND,     \
                                          float>)

void instantiate(void** out) {
  *out++ = MXFA_GEMM(1, 128, 4, 1, false, Normal);
  *out++ = MXFA_GEMM(1, 64, 5, 1, false, Normal);
  *out++ = MXFA_GEMM(1, 128, 4, 2, true, Normal);
  *out++ = MXFA_GEMM(1, 128, 4, 2, false, Normal);
  *out++ = MXFA_GEMM(3, 128, 4, 1, false, KGroupedContiguous);
}
