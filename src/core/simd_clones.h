#pragma once

/// Compiles a hot loop for several instruction sets and picks one at load time. Contraction is off
/// for the whole project, so every clone gives the same bits. Sanitizers run before the resolver
/// may, hence no clones there.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(__CUDACC__)
#define MXFA_SIMD_CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define MXFA_SIMD_CLONES
#endif
