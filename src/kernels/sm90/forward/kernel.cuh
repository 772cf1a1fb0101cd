#pragma once

#include "device/clear_behind.cuh"
#include "kernels/sm90/forward/consumer.cuh"
#include "kernels/sm90/forward/load.cuh"
#include "kernels/sm90/forward/tiles.cuh"
#include "ptx/griddepcontrol.cuh"

namespace mxfa::sm90::forward {

/// Persistent, one CTA a multiprocessor. Barriers: the producer's first lane arrives with the bytes
/// that its copies will bring, its other lanes where they wrote; each consumer thread arrives once.
template <class Config>
__device__ inline void forward(const ForwardParams& params) {
  extern __shared__ __align__(1024) std::uint8_t memory[];
  auto& smem = *reinterpret_cast<SmemPlan<Config>*>(memory);
  constexpr int kConsumerThreads = 128 * Config::kConsumers;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Config::kTileBuffers; ++i) {
      cuda::ptx::mbarrier_init(&smem.tile_full[i], 32);
      cuda::ptx::mbarrier_init(&smem.q_full[i], 32);
      cuda::ptx::mbarrier_init(&smem.q_empty[i], kConsumerThreads + 32);
    }
    for (int i = 0; i < Config::kStages; ++i) {
      cuda::ptx::mbarrier_init(&smem.full[i], 32);
      cuda::ptx::mbarrier_init(&smem.empty[i], kConsumerThreads);
    }
    for (int i = 0; i < Config::kConsumers; ++i) {
      cuda::ptx::mbarrier_init(&smem.rows_full[i], 1);
      cuda::ptx::mbarrier_init(&smem.rows_read[i], 128);
    }
    cuda::ptx::mbarrier_init(&smem.patched, 1);
    cuda::ptx::fence_mbarrier_init(cuda::ptx::sem_release, cuda::ptx::scope_cluster);
  }
  ptx::griddepcontrol_wait();  // what was set up above had no need of the kernel before
  __syncthreads();
  const int warpgroup = static_cast<int>(threadIdx.x / 128);
  if (warpgroup == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Config::kProducerRegisters));
    if (threadIdx.x < 32) {
      TileProducer<Config>(params, smem).run();
    } else if (threadIdx.x < 64) {
      KeyProducer<Config>(params, smem).run();
    } else {
      device::clear_behind(params.behind,
                           static_cast<std::int32_t>(blockIdx.x * 2 + threadIdx.x / 32 - 2),
                           static_cast<std::int32_t>(gridDim.x * 2));
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Config::kConsumerRegisters));
    Consumer<Config>(params, smem, warpgroup - 1).run();
  }
}

}  // namespace mxfa::sm90::forward
