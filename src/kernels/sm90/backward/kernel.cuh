#pragma once

#include "kernels/sm90/backward/add.cuh"
#include "kernels/sm90/backward/consumer.cuh"
#include "kernels/sm90/backward/dq.cuh"
#include "kernels/sm90/backward/half_consumer.cuh"
#include "kernels/sm90/backward/load.cuh"
#include "ptx/griddepcontrol.cuh"

namespace mxfa::sm90::backward {

/// Of the warpgroups: the producers of rows and of keys are a warp each of the first, the adder and
/// what loads columns a thread each of the two others of it; consumers come between.
inline constexpr int kLoadingWarpgroup = 0, kFirstConsumer = 1;
template <class Config>
inline constexpr int kDqWarpgroup = kFirstConsumer + Config::kConsumers;

/// Persistent, one CTA a multiprocessor.
template <class Config>
__device__ inline void backward(const BackwardParams& params) {
  extern __shared__ __align__(1024) std::uint8_t memory[];
  auto& smem = *reinterpret_cast<SmemPlan<Config>*>(memory);
  constexpr int kConsumerThreads = 128 * Config::kConsumers, kDqThreads = 128;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Config::kKeyBuffers; ++i) {
      cuda::ptx::mbarrier_init(&smem.place_full[i], 1);
      cuda::ptx::mbarrier_init(&smem.place_empty[i], 32);
      cuda::ptx::mbarrier_init(&smem.key_full[i], 32);
      cuda::ptx::mbarrier_init(&smem.key_empty[i],
                               kConsumerThreads + (Config::kTellsExponents ? 0 : kDqThreads));
      cuda::ptx::mbarrier_init(&smem.v_full[i], 1);
      cuda::ptx::mbarrier_init(&smem.v_empty[i], kConsumerThreads);
      cuda::ptx::mbarrier_init(&smem.kt_full[i], 1);
      cuda::ptx::mbarrier_init(&smem.kt_empty[i], kDqThreads);
    }
    for (int i = 0; i < Config::kStages; ++i) {
      cuda::ptx::mbarrier_init(&smem.rows_full[i], 1);
      cuda::ptx::mbarrier_init(&smem.rows_empty[i], kConsumerThreads + 1);
      cuda::ptx::mbarrier_init(&smem.columns_full[i], 1);
      cuda::ptx::mbarrier_init(&smem.columns_empty[i], kConsumerThreads);
    }
    for (int i = 0; i < Config::kDsBuffers; ++i) {
      cuda::ptx::mbarrier_init(&smem.ds_full[i], kConsumerThreads);
      cuda::ptx::mbarrier_init(&smem.ds_empty[i], kDqThreads);
    }
    for (int i = 0; i < Config::kDqBuffers; ++i) {
      cuda::ptx::mbarrier_init(&smem.dq_full[i], kDqThreads);
      cuda::ptx::mbarrier_init(&smem.dq_empty[i], 1);
    }
    cuda::ptx::fence_mbarrier_init(cuda::ptx::sem_release, cuda::ptx::scope_cluster);
  }
  ptx::griddepcontrol_wait();  // what was set up above had no need of the launches before
  __syncthreads();
  const int warpgroup = static_cast<int>(threadIdx.x / 128);
  if (warpgroup == kLoadingWarpgroup) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Config::kProducerRegisters));
    if (threadIdx.x < 32) RowProducer<Config>(params, smem).run();
    if (threadIdx.x == 32) add_dq_pieces<Config>(params, smem);
    if (threadIdx.x == 64) load_columns<Config>(params, smem);
    if (threadIdx.x >= 96) KeyProducer<Config>(params, smem).run();
  } else if (warpgroup == kDqWarpgroup<Config>) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Config::kDqRegisters));
    DqMaker<Config>(params, smem).run();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Config::kConsumerRegisters));
    using Role =
        std::conditional_t<Config::kScores == Scores::kF16, HalfConsumer<Config>, Consumer<Config>>;
    Role(params, smem, warpgroup - kFirstConsumer).run();
  }
}

}  // namespace mxfa::sm90::backward
