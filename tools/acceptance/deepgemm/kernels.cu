#include <deep_gemm/impls/sm100_fp8_fp4_gemm_1d1d.cuh>

/// Instances of DeepGEMM's FP8 GEMM that run.cc runs, in the order of its table: majors of A and B,
/// granularity of the scales along K, block M and N, stages, CTAs (and whether they split A's
/// rows), swapped operands, swizzles of A and B. BF16 out, four SMs.
#define MXFA_GEMM(MA, MB, GRAN, BM, BN, STAGES, CTAS, SPLIT_M, SWAP, SWIZZLE_A, SWIZZLE_B)       \
  reinterpret_cast<void*>(                                                                       \
      &deep_gemm::sm100_fp8_fp4_gemm_1d1d_impl<                                                  \
          cute::UMMA::Major::MA, cute::UMMA::Major::MB, GRAN, GRAN, 32, 0, 0, 0, BM, BN, 128, 1, \
          SWIZZLE_A, SWIZZLE_B, 128, STAGES, 128, 128, CTAS, SPLIT_M, 4, SWAP, false,            \
          deep_gemm::GemmType::Normal, false, cutlass::float_e4m3_t, cutlass::float_e4m3_t,      \
          cutlass::bfloat16_t, deep_gemm::epilogue::transform::EpilogueIdentity>)

void instantiate(void** out) {
  *out++ = MXFA_GEMM(K, K, 32, 128, 128, 4, 1, false, false, 128, 128);
  *out++ = MXFA_GEMM(K, MN, 32, 128, 128, 4, 1, false, false, 128, 128);
  *out++ = MXFA_GEMM(K, K, 128, 128, 128, 4, 1, false, false, 128, 128);
  *out++ = MXFA_GEMM(K, K, 32, 128, 128, 4, 2, false, false, 128, 128);
  *out++ = MXFA_GEMM(MN, MN, 32, 128, 128, 3, 2, false, false, 128, 64);
  *out++ = MXFA_GEMM(K, K, 32, 128, 192, 3, 2, false, false, 128, 128);
  *out++ = MXFA_GEMM(K, K, 32, 64, 128, 4, 1, false, true, 128, 128);
  *out++ = MXFA_GEMM(K, K, 32, 128, 128, 4, 2, true, true, 128, 128);
}
