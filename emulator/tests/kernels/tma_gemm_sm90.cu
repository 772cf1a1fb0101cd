#include <cstdint>

/// d[64, 64] = a[64, K] * b[64, K]^T, FP8 E4M3 in, FP32 out, K = steps * 128. One producer warp
/// loads both tiles of each step by TMA (128-byte swizzle) into a ring of two stages; a warpgroup
/// multiplies them with wgmma, and the result goes out through shared memory by a bulk store.
constexpr int kStages = 2;
constexpr uint32_t kTileBytes = 64 * 128;

struct alignas(64) Map {
  char bytes[128];
};

static __device__ uint32_t shared(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
static __device__ void wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred P;\nWAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 P, [%0], %1;\n"
      "@P bra DONE;\nbra WAIT;\nDONE:\n}" ::"r"(shared(barrier)),
      "r"(parity)
      : "memory");
}
static __device__ void load(void* to, const Map* map, int k, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared(to)),
      "l"(map), "r"(k), "r"(0), "r"(shared(barrier))
      : "memory");
}
static __device__ uint64_t descriptor(const void* tile) {
  return static_cast<uint64_t>((shared(tile) & 0x3FFFFu) >> 4) | (uint64_t{1} << 16) |
         (uint64_t{1024 >> 4} << 32) | (uint64_t{1} << 62);
}

extern "C" __global__ void __launch_bounds__(160)
    tma_gemm(const __grid_constant__ Map a, const __grid_constant__ Map b, float* d, int steps) {
  extern __shared__ __align__(1024) uint8_t smem[];
  uint8_t* tile_a = smem;
  uint8_t* tile_b = smem + kStages * kTileBytes;
  float* out = reinterpret_cast<float*>(smem + 2 * kStages * kTileBytes);
  __shared__ uint64_t full[kStages];
  __shared__ uint64_t empty[kStages];
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared(&full[i])));
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 128;" ::"r"(shared(&empty[i])));
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x >= 128) {
    if (threadIdx.x == 128) {
      for (int step = 0; step < steps; ++step) {
        const int stage = step % kStages;
        wait(&empty[stage], (step / kStages + 1) % 2);
        asm volatile(
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared(&full[stage])),
            "r"(2 * kTileBytes)
            : "memory");
        load(tile_a + stage * kTileBytes, &a, step * 128, &full[stage]);
        load(tile_b + stage * kTileBytes, &b, step * 128, &full[stage]);
      }
    }
    return;
  }
  float c[32] = {};
  for (int step = 0; step < steps; ++step) {
    const int stage = step % kStages;
    wait(&full[stage], step / kStages % 2);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < 128; k += 32) {
      asm volatile(
          "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
          "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 "
          "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
          "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
          "%32, %33, p, 1, 1;\n}"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]),
            "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]),
            "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]),
            "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]), "+f"(c[24]), "+f"(c[25]),
            "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31])
          : "l"(descriptor(tile_a + stage * kTileBytes + k)),
            "l"(descriptor(tile_b + stage * kTileBytes + k)), "r"(step > 0 || k > 0 ? 1 : 0));
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared(&empty[stage]))
                 : "memory");
  }
  const int row = static_cast<int>(threadIdx.x) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
  for (int i = 0; i < 32; ++i) {
    const int column = i / 4 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
    out[(row + 8 * (i / 2 % 2)) * 64 + column] = c[i];
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("bar.sync 1, 128;" ::: "memory");
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(d),
                 "r"(shared(out)), "r"(64 * 64 * 4)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
}
