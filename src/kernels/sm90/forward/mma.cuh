#pragma once

#include "kernels/sm90/common/mma.cuh"
#include "kernels/sm90/forward/config.h"
#include "ptx/wgmma.cuh"

/// The two GEMMs of a consumer warpgroup.
namespace mxfa::sm90::forward {

/// Q as the A operand: fragments of a warp's 16 rows, and where the warpgroup's 64 rows lie for the
/// steps of 32 bytes that have no registers.
template <class Config>
struct QOperand {
  std::uint32_t fragments[Config::kQRegisterSteps == 0 ? 1 : 4 * Config::kQRegisterSteps];
  std::uint32_t word;  ///< of the rows' descriptor

  __device__ QOperand(std::uint32_t rows, int warp, int lane) : word(tile_word(rows)) {
    constexpr int kRowBytes = Config::kQkPartBytes;
    const int row = lane % 16;
    const int turn = kRowBytes == 128 ? row % 8 : row / 2 % 4;  // of the swizzle
#pragma unroll
    for (int step = 0; step < Config::kQRegisterSteps; ++step) {
      const int chunk = (2 * step + lane / 16) ^ turn;
      std::uint32_t* const out = fragments + 4 * step;
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                   : "r"(rows + (16 * warp + row) * kRowBytes + 16 * chunk));
    }
  }

  /// A step of Q K^T; `k` is the word of the keys' descriptor.
  template <class Fragment>
  __device__ void multiply(Fragment& scores, int step, std::uint32_t k) const {
    constexpr int kRowBytes = Config::kQkPartBytes, kSteps = kRowBytes / 32;
    const int part = step / kSteps, in_part = 2 * (step % kSteps);
    const std::uint64_t b =
        tile_descriptor_of<kRowBytes>(k + part * Config::kTileN * kRowBytes / 16) + in_part;
    if (step < Config::kQRegisterSteps) {
      const std::uint32_t* const a = fragments + 4 * step;
      if constexpr (Config::kBf16) {
        if (step == 0) {
          ptx::WgmmaBf16Rs<Config::kTileN>::start(scores, a, b);
        } else {
          ptx::WgmmaBf16Rs<Config::kTileN>::run(scores, a, b);
        }
      } else if (step == 0) {
        ptx::WgmmaRs<Config::kTileN>::start(scores, a, b);
      } else {
        ptx::WgmmaRs<Config::kTileN>::run(scores, a, b, true);
      }
      return;
    }
    const std::uint64_t a =
        tile_descriptor_of<kRowBytes>(word + part * 64 * kRowBytes / 16) + in_part;
    if constexpr (!Config::kBf16) {
      if (step == 0) {
        ptx::WgmmaSs<Config::kTileN>::start(scores, a, b);
      } else {
        ptx::WgmmaSs<Config::kTileN>::run(scores, a, b, true);
      }
    } else if (step == 0) {
      ptx::WgmmaBf16Ss<Config::kTileN>::start(scores, a, b);
    } else {
      ptx::WgmmaBf16Ss<Config::kTileN>::run(scores, a, b);
    }
  }
};

/// scores = Q K^T of 64 rows and kTileN keys.
template <class Config, class Fragment>
__device__ inline void issue_scores(Fragment& scores, const QOperand<Config>& q, std::uint32_t k) {
#pragma unroll
  for (int step = 0; step < Config::kQkBytes / 32; ++step) q.multiply(scores, step, k);
  ptx::wgmma_commit();
}

/// out = P V of kValueColumns columns; `v` is the word of the descriptor of V^T's rows.
template <class Config>
__device__ inline void issue_values(typename Config::Fresh& out,
                                    const std::uint32_t (&p)[Config::kTileN / 8], std::uint32_t v) {
  const std::uint64_t b = tile_descriptor_of<Config::kTileN>(v);
  ptx::WgmmaRs<Config::kValueColumns>::start(out, p, b);
#pragma unroll
  for (int step = 1; step < Config::kTileN / 32; ++step) {
    ptx::WgmmaRs<Config::kValueColumns>::run(out, p + 4 * step, b + 2 * step, true);
  }
  ptx::wgmma_commit();
}

}  // namespace mxfa::sm90::forward
