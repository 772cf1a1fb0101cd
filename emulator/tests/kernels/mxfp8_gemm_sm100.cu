#include <cstdint>

/// d[M, N] = a[M, K] * b[N, K]^T in MXFP8, FP32 out: K-major operands, scales as 128x4 atoms, one
/// every 128 of K. Persistent: a CTA (or a pair, which shares B) computes 128 x 128 (256 x 128)
/// tiles in turn. Warp 0 loads by TMA into a ring of two stages, one thread of warp 1 copies scales
/// and multiplies into one of two accumulators, warps 2 to 5 store them. M is a multiple of the
/// tile, N and K are multiples of 128.
constexpr int kStages = 2;
constexpr int kTile = 128;
constexpr uint32_t kAtomBytes = 512;
constexpr uint32_t kColumnsSfa = 256;  // behind the two accumulators
constexpr uint32_t kColumnsSfb = 260;

struct alignas(64) Map {
  char bytes[128];
};
struct Maps {
  Map a, b, sfa, sfb;
};

template <int kCtas>
struct Shared {
  uint8_t a[kStages][kTile * 128];
  uint8_t b[kStages][kTile / kCtas * 128];
  uint8_t sfa[kStages][kAtomBytes];
  uint8_t sfb[kStages][kAtomBytes];
  uint64_t full[kStages], empty[kStages], tmem_full[2], tmem_empty[2];
  uint32_t tmem;
  static constexpr uint32_t kStageBytes = kTile * 128 + kTile / kCtas * 128 + 2 * kAtomBytes;
};

static __device__ uint32_t shared(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
static __device__ void init(uint64_t* barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared(barrier)), "r"(count));
}
static __device__ void wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred P;\nWAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 P, [%0], %1;\n"
      "@P bra DONE;\nbra WAIT;\nDONE:\n}" ::"r"(shared(barrier)),
      "r"(parity)
      : "memory");
}
/// Arrives at the even CTA's barrier.
static __device__ void arrive_at_leader(uint64_t* barrier) {
  asm volatile(
      "{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %0, 0;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [at];\n}" ::"r"(shared(barrier))
      : "memory");
}
/// `barrier` is a shared address of this CTA or its peer.
template <int kCtas>
static __device__ void load(void* to, const Map* map, int x, int y, uint32_t barrier) {
  if constexpr (kCtas == 1) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared(to)),
        "l"(map), "r"(x), "r"(y), "r"(barrier)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.cta_group::2 "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared(to)),
        "l"(map), "r"(x), "r"(y), "r"(barrier)
        : "memory");
  }
}
template <int kCtas>
static __device__ void commit(uint64_t* barrier) {
  if constexpr (kCtas == 1) {
    asm volatile(
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(
            shared(barrier))
        : "memory");
  } else {
    asm volatile(
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 "
        "[%0], %1;" ::"r"(shared(barrier)),
        "h"(static_cast<uint16_t>(3))
        : "memory");
  }
}
template <int kCtas>
static __device__ void copy_scales(uint32_t to, const void* atom) {
  const uint64_t descriptor = 0x0000400800000000 | shared(atom) >> 4;
  if constexpr (kCtas == 1) {
    asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" ::"r"(to), "l"(descriptor));
  } else {
    asm volatile("tcgen05.cp.cta_group::2.32x128b.warpx4 [%0], %1;" ::"r"(to), "l"(descriptor));
  }
}
/// One step of 32 along K.
template <int kCtas>
static __device__ void multiply(uint32_t tmem, uint32_t d, const void* a, const void* b, uint32_t k,
                                bool accumulate) {
  const uint64_t a_desc = 0x4000404000000000 | ((shared(a) >> 4) + 2 * k);
  const uint64_t b_desc = 0x4000404000000000 | ((shared(b) >> 4) + 2 * k);
  const uint32_t idesc = 0x00A00000 | (8u * kCtas) << 24 | k << 29 | k << 4;
  const uint32_t sfa = tmem + kColumnsSfa;
  const uint32_t sfb = tmem + kColumnsSfb;
  if constexpr (kCtas == 1) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
        "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale [%0], %1, %2, %3, [%4], [%5], p;\n}" ::
            "r"(d),
        "l"(a_desc), "l"(b_desc), "r"(idesc), "r"(sfa), "r"(sfb), "r"(accumulate ? 1 : 0));
  } else {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
        "tcgen05.mma.cta_group::2.kind::mxf8f6f4.block_scale [%0], %1, %2, %3, [%4], [%5], p;\n}" ::
            "r"(d),
        "l"(a_desc), "l"(b_desc), "r"(idesc), "r"(sfa), "r"(sfb), "r"(accumulate ? 1 : 0));
  }
}

/// What all roles agree on.
struct Work {
  int m_tiles, n_tiles, steps;
  int cluster, clusters, rank;
};

/// Warp 0, one thread of each CTA. Waits on empty, signals the leader's full.
template <int kCtas>
static __device__ void produce(const Maps& maps, Shared<kCtas>& s, const Work& work) {
  int turn = 0;
  for (int tile = work.cluster; tile < work.m_tiles * work.n_tiles; tile += work.clusters) {
    const int m = tile / work.n_tiles * kCtas + work.rank;  // in 128 rows
    const int n = tile % work.n_tiles;
    for (int step = 0; step < work.steps; ++step, ++turn) {
      const int stage = turn % kStages;
      wait(&s.empty[stage], (turn / kStages + 1) % 2);
      if (work.rank == 0) {
        asm volatile(
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared(&s.full[stage])),
            "r"(kCtas * s.kStageBytes)
            : "memory");
      }
      const uint32_t full = shared(&s.full[stage]) & 0xFEFFFFFFu;  // the even CTA's
      load<kCtas>(s.a[stage], &maps.a, step * 128, m * kTile, full);
      load<kCtas>(s.b[stage], &maps.b, step * 128, n * kTile + work.rank * kTile / kCtas, full);
      load<kCtas>(s.sfa[stage], &maps.sfa, 0, m * work.steps + step, full);
      load<kCtas>(s.sfb[stage], &maps.sfb, 0, n * work.steps + step, full);
    }
  }
  // Barriers must not be signalled after the block has exited.
  for (int i = 0; i < kStages; ++i, ++turn) {
    wait(&s.empty[turn % kStages], (turn / kStages + 1) % 2);
  }
}

/// Warp 1, one thread of the leader. Waits on full and tmem_empty, signals empty and tmem_full.
template <int kCtas>
static __device__ void issue(Shared<kCtas>& s, const Work& work) {
  int turn = 0;
  int result = 0;
  for (int tile = work.cluster; tile < work.m_tiles * work.n_tiles; tile += work.clusters) {
    const uint32_t d = s.tmem + result % 2 * kTile;
    wait(&s.tmem_empty[result % 2], (result / 2 + 1) % 2);
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
    for (int step = 0; step < work.steps; ++step, ++turn) {
      const int stage = turn % kStages;
      wait(&s.full[stage], turn / kStages % 2);
      asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
      copy_scales<kCtas>(s.tmem + kColumnsSfa, s.sfa[stage]);
      copy_scales<kCtas>(s.tmem + kColumnsSfb, s.sfb[stage]);
#pragma unroll
      for (uint32_t k = 0; k < 4; ++k) {
        multiply<kCtas>(s.tmem, d, s.a[stage], s.b[stage], k, step > 0 || k > 0);
      }
      commit<kCtas>(&s.empty[stage]);
    }
    commit<kCtas>(&s.tmem_full[result % 2]);
    ++result;
  }
}

static __device__ void load_columns(uint32_t from, float (&x)[16]) {
  asm volatile(
      "tcgen05.ld.sync.aligned.32x32b.x16.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
      "%12, %13, %14, %15}, [%16];"
      : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3]), "=f"(x[4]), "=f"(x[5]), "=f"(x[6]),
        "=f"(x[7]), "=f"(x[8]), "=f"(x[9]), "=f"(x[10]), "=f"(x[11]), "=f"(x[12]), "=f"(x[13]),
        "=f"(x[14]), "=f"(x[15])
      : "r"(from));
  asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
}

/// Warps 2 to 5 of each CTA, 32 rows each. Waits on tmem_full, signals the leader's tmem_empty.
template <int kCtas>
static __device__ void store(float* out, Shared<kCtas>& s, const Work& work) {
  const uint32_t quarter = threadIdx.x / 32 % 4;
  int result = 0;
  for (int tile = work.cluster; tile < work.m_tiles * work.n_tiles; tile += work.clusters) {
    wait(&s.tmem_full[result % 2], result / 2 % 2);
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
    const int row = (tile / work.n_tiles * kCtas + work.rank) * kTile +
                    static_cast<int>(quarter * 32 + threadIdx.x % 32);
    float* to = out + (static_cast<int64_t>(row) * work.n_tiles + tile % work.n_tiles) * kTile;
#pragma unroll 1
    for (int n = 0; n < kTile; n += 16) {
      float x[16];
      load_columns(s.tmem + (quarter << 21) + result % 2 * kTile + n, x);
      for (int i = 0; i < 16; ++i) to[n + i] = x[i];
    }
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
    arrive_at_leader(&s.tmem_empty[result % 2]);
    ++result;
  }
}

template <int kCtas>
static __device__ void synchronize() {
  if constexpr (kCtas == 1) {
    __syncthreads();
  } else {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  }
}

template <int kCtas>
static __device__ void allocate(Shared<kCtas>& s) {
  if constexpr (kCtas == 1) {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 512;" ::"r"(
        shared(&s.tmem)));
  } else {
    asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], 512;" ::"r"(
        shared(&s.tmem)));
  }
}
template <int kCtas>
static __device__ void deallocate(uint32_t tmem) {
  if constexpr (kCtas == 1) {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 512;" ::"r"(tmem));
  } else {
    asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, 512;" ::"r"(tmem));
  }
}

template <int kCtas>
static __device__ void gemm(const Maps& maps, float* out, int m_tiles, int n_tiles, int steps) {
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& s = *reinterpret_cast<Shared<kCtas>*>(memory);
  const int rank = static_cast<int>(blockIdx.x) % kCtas;
  const Work work{m_tiles,
                  n_tiles,
                  steps,
                  static_cast<int>(blockIdx.x) / kCtas,
                  static_cast<int>(gridDim.x) / kCtas,
                  rank};
  const uint32_t warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      init(&s.full[i], 1);
      init(&s.empty[i], 1);
    }
    for (int i = 0; i < 2; ++i) {
      init(&s.tmem_full[i], 1);
      init(&s.tmem_empty[i], 128 * kCtas);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  if (warp == 1) allocate(s);
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
  synchronize<kCtas>();
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
  if (threadIdx.x == 0) produce(maps, s, work);
  if (threadIdx.x == 32 && rank == 0) issue(s, work);
  if (warp >= 2) store(out, s, work);
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
  __syncwarp();
  synchronize<kCtas>();
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
  if (warp == 1) deallocate<kCtas>(s.tmem);
}

extern "C" __global__ void __launch_bounds__(192)
    mxfp8_gemm(const __grid_constant__ Maps maps, float* out, int m_tiles, int n_tiles, int steps) {
  gemm<1>(maps, out, m_tiles, n_tiles, steps);
}
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(192)
    mxfp8_gemm_pair(const __grid_constant__ Maps maps, float* out, int m_tiles, int n_tiles,
                    int steps) {
  gemm<2>(maps, out, m_tiles, n_tiles, steps);
}
