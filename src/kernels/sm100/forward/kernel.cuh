#pragma once

#include "kernels/sm100/forward/correction.cuh"
#include "kernels/sm100/forward/epilogue.cuh"
#include "kernels/sm100/forward/load.cuh"
#include "kernels/sm100/forward/mma.cuh"
#include "kernels/sm100/forward/softmax.cuh"

namespace mxfa::sm100::forward {

template <class Config>
__device__ inline void init_barriers(Barriers<Config>& barriers) {
  const auto init = [](std::uint64_t& barrier, unsigned arrivals) {
    cuda::ptx::mbarrier_init(&barrier, arrivals);
  };
  for (int i = 0; i < Config::kRecords; ++i) {
    init(barriers.tile_full[i], 1);
    init(barriers.tile_empty[i], kRecordReaders);
  }
  for (int i = 0; i < Config::kStages; ++i) {
    init(barriers.kv_full[i], 1);
    init(barriers.kv_empty[i], 1);
  }
  for (int i = 0; i < kStreams; ++i) {
    init(barriers.q_full[i], 1);
    init(barriers.q_empty[i], 1);
    init(barriers.s_full[i], 1);
    init(barriers.s_read[i], kSoftmaxWarps);
    init(barriers.pv_ready[i], 2 * kSoftmaxWarps);
    init(barriers.o_full[i], 1);
    init(barriers.message_full[i], kSoftmaxWarps);
    init(barriers.message_empty[i], kSoftmaxWarps);
    init(barriers.out_full[i], kSoftmaxWarps);
    init(barriers.out_empty[i], 1);
  }
  device::fence_barrier_init();
}

/// Persistent, one CTA a multiprocessor.
template <class Config>
__device__ inline void forward(const ForwardParams& params) {
  extern __shared__ __align__(1024) std::uint8_t memory[];
  auto& smem = *reinterpret_cast<SmemPlan<Config>*>(memory);
#if defined(__CUDA_ARCH__)
  constexpr RoleRegisters kRegisters = role_registers(__CUDA_ARCH__, Config::kLeakFree);
#else
  constexpr RoleRegisters kRegisters = {};
#endif
  static_assert(256 * kRegisters.softmax + 128 * (kRegisters.correction + kRegisters.other) <=
                65536);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const bool one = threadIdx.x % 32 == 0;
  if (threadIdx.x == 0) init_barriers<Config>(smem.barriers);
  if (warp == kMmaWarp) ptx::tmem_alloc<kTmemColumns>(shared_address(&smem.tmem));
  if (Config::kPScale == PScale::kConstant && threadIdx.x < mx::kAtomBytes / 4) {
    const auto fill = [](std::uint8_t* atom, std::uint32_t scale) {
      reinterpret_cast<std::uint32_t*>(atom)[threadIdx.x] = scale * 0x01010101u;
    };
    fill(smem.sf_p[0], kConstantScale);
    if (Config::kLeakFree) fill(smem.sf_v, mx::kE8M0Bias);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();

  if (warp < kCorrectionWarp) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters.softmax));
    Softmax<Config>(params, smem, warp / kSoftmaxWarps).run();
  } else if (warp < kMmaWarp) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters.correction));
    Correction<Config>(params, smem).run();
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters.other));
    if (warp == kMmaWarp && one) MmaIssuer<Config>(smem).run();
    if (warp == kEpilogueWarp && one) Epilogue<Config>(params, smem).run();
    if (warp == kLoadWarp) Loader<Config>(params, smem).run();
    __syncwarp();
  }
  // What used tensor memory has been waited for, and tcgen05.dealloc is nothing asynchronous.
  __syncthreads();
  if (warp == kMmaWarp) ptx::tmem_dealloc<kTmemColumns>(smem.tmem);
}

}  // namespace mxfa::sm100::forward
