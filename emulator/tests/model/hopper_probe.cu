// Runs the recordings of hopper_inputs.h on a Hopper GPU and prints "name hash" for each: see
// record_hopper.
#include <utility>

#include "hopper_probe_warp.cuh"

namespace {

// ---- wgmma

#define MMA_F32(TEXT, TAIL)                                                                    \
  asm volatile("wgmma.mma_async.sync.aligned." TEXT " {%0,%1,%2,%3}, %4, %5, 1, 1, 1" TAIL ";" \
               : "+f"(f[0]), "+f"(f[1]), "+f"(f[2]), "+f"(f[3])                                \
               : "l"(a), "l"(b))
#define MMA_F16(TEXT, TAIL)                                                              \
  asm volatile("wgmma.mma_async.sync.aligned." TEXT " {%0,%1}, %2, %3, 1, 1, 1" TAIL ";" \
               : "+r"(d[0]), "+r"(d[1])                                                  \
               : "l"(a), "l"(b))
#define MMA_S32(TEXT)                                                            \
  asm volatile("wgmma.mma_async.sync.aligned." TEXT " {%0,%1,%2,%3}, %4, %5, 1;" \
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])                  \
               : "l"(a), "l"(b))

template <int kKind>
__device__ void multiply(std::uint32_t (&d)[4], std::uint64_t a, std::uint64_t b) {
  using namespace hopper;
  float f[4];
  for (int i = 0; i < 4; ++i) f[i] = __uint_as_float(d[i]);
  if constexpr (kKind == kE4M3F32) MMA_F32("m64n8k32.f32.e4m3.e4m3", "");
  if constexpr (kKind == kE5M2F32) MMA_F32("m64n8k32.f32.e5m2.e5m2", "");
  if constexpr (kKind == kMixedF32) MMA_F32("m64n8k32.f32.e4m3.e5m2", "");
  if constexpr (kKind == kBF16F32) MMA_F32("m64n8k16.f32.bf16.bf16", ", 0, 0");
  if constexpr (kKind == kF16F32) MMA_F32("m64n8k16.f32.f16.f16", ", 0, 0");
  if constexpr (kKind == kTF32F32) MMA_F32("m64n8k8.f32.tf32.tf32", "");
  if constexpr (kKind == kE4M3F16) MMA_F16("m64n8k32.f16.e4m3.e4m3", "");
  if constexpr (kKind == kE5M2F16) MMA_F16("m64n8k32.f16.e5m2.e5m2", "");
  if constexpr (kKind == kF16F16) MMA_F16("m64n8k16.f16.f16.f16", ", 0, 0");
  if constexpr (kKind == kS8) MMA_S32("m64n8k32.s32.s8.s8");
  if constexpr (kKind == kU8S8) MMA_S32("m64n8k32.s32.u8.s8");
  if constexpr (kKind == kS8Saturating) MMA_S32("m64n8k32.s32.s8.s8.satfinite");
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  if constexpr (kKind < kS8 && kKind != kE4M3F16 && kKind != kE5M2F16 && kKind != kF16F16) {
    for (int i = 0; i < 4; ++i) d[i] = __float_as_uint(f[i]);
  }
}

/// Copies the image to shared memory, runs one instruction; D is [register][thread].
template <int kKind>
__global__ void multiply_kernel(const std::uint32_t* image, std::uint32_t words, std::uint64_t a,
                                std::uint64_t b, std::uint32_t* d) {
  extern __shared__ __align__(1024) std::uint32_t smem[];
  for (std::uint32_t i = threadIdx.x; i < words; i += 128) smem[i] = image[i];
  std::uint32_t regs[4];
  for (int i = 0; i < 4; ++i) regs[i] = d[i * 128 + threadIdx.x];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  const std::uint64_t base = (shared_address(smem) & 0x3FFFF) >> 4;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  multiply<kKind>(regs, a + base, b + base);
  for (int i = 0; i < 4; ++i) d[i * 128 + threadIdx.x] = regs[i];
}

template <int kKind>
Words run_multiply(const Words& image, std::uint64_t a, std::uint64_t b, const Words& d) {
  Buffer device_image(image);
  Buffer device_d(d);
  multiply_kernel<kKind><<<1, 128, 4 * image.size() + 1024>>>(
      device_image.get(), static_cast<std::uint32_t>(image.size()), a, b, device_d.get());
  return device_d.download();
}

std::uint64_t descriptor(std::uint32_t start, std::uint32_t lbo, std::uint32_t sbo, int code = 0,
                         std::uint32_t base_offset = 0) {
  return static_cast<std::uint64_t>(code) << 62 | static_cast<std::uint64_t>(base_offset) << 49 |
         static_cast<std::uint64_t>(sbo >> 4) << 32 | static_cast<std::uint64_t>(lbo >> 4) << 16 |
         start >> 4;
}

template <int kKind>
void record_arithmetic() {
  for (int style = 0; style < hopper::kStyles; ++style) {
    hopper::Rng rng = hopper::arithmetic_rng(kKind, style);
    Words all;
    for (int run = 0; run < hopper::kRuns; ++run) {
      const auto bytes = hopper::operand_bytes(kKind, style, rng);
      const Words d = hopper::accumulators(kKind, style, rng);
      Words result = run_multiply<kKind>(hopper::plain_image(bytes), descriptor(0, 1024, 128),
                                         descriptor(2048, 128, 128), d);
      result.resize(hopper::has_half_accumulator(kKind) ? 256 : 512);
      all.insert(all.end(), result.begin(), result.end());
    }
    record(std::string("wgmma_") + hopper::kind_name(kKind) + "_" + std::to_string(style), all);
  }
}

template <int... kKinds>
void record_all_arithmetic(std::integer_sequence<int, kKinds...>) {
  (record_arithmetic<kKinds>(), ...);
}

/// One digit, low or high, of the 16-byte chunk behind each row and half of a K-major operand.
Words chunk_digits(std::uint64_t a, bool high) {
  std::vector<std::uint8_t> image(24576);
  for (std::uint32_t i = 0; i < 16384; ++i) {
    image[i] = static_cast<std::uint8_t>(high ? i / 1024 : i / 16 % 64);
  }
  image[16384] = 1;             // row 0 of B picks k = 0
  image[16384 + 128 + 16] = 1;  // row 1 picks k = 16
  Words words(image.size() / 4);
  std::memcpy(words.data(), image.data(), image.size());
  return run_multiply<hopper::kS8>(words, a, descriptor(16384, 128, 128), Words(512));
}

/// The 16-byte chunk behind row and half of a K-major operand, for every start line and base
/// offset.
void record_lines() {
  for (int code = 1; code <= 3; ++code) {
    Words all;
    for (std::uint32_t line = 0; line < 8; ++line) {
      for (std::uint32_t offset = 0; offset < 8; ++offset) {
        const std::uint64_t a = descriptor(hopper::kLineBase + 128 * line, 0,
                                           8 * hopper::row_width(code), code, offset);
        const Words low = chunk_digits(a, false);
        const Words high = chunk_digits(a, true);
        for (std::uint32_t i = 0; i < 128; ++i) {
          const std::uint32_t row = i / 2, half = i % 2;
          const std::uint32_t thread = row / 16 * 32 + row % 8 * 4;
          const std::uint32_t at = (row % 16 / 8 * 2 + half) * 128 + thread;
          all.push_back(low[at] + 64 * high[at]);
        }
      }
    }
    record("lines_code" + std::to_string(code), all);
  }
}

// clang-format off
#define REGS32 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21"    \
               ",%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}"
#define F8(D, I) "+f"(D[I]), "+f"(D[I + 1]), "+f"(D[I + 2]), "+f"(D[I + 3]), "+f"(D[I + 4]), \
                 "+f"(D[I + 5]), "+f"(D[I + 6]), "+f"(D[I + 7])
#define MMA_N64(TAIL)                                                                             \
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "                              \
               REGS32 ", %32, %33, 1, 1, 1, "                                                     \
               TAIL ";" : F8(d, 0), F8(d, 8), F8(d, 16), F8(d, 24) : "l"(a + base), "l"(b + base))
// clang-format on

/// Which operand is under test: 0 A K-major, 1 A MN-major, 2 B MN-major.
template <int kTest>
__global__ void major_kernel(const std::uint32_t* image, std::uint64_t a, std::uint64_t b,
                             std::uint32_t* out) {
  extern __shared__ __align__(1024) std::uint32_t smem[];
  for (std::uint32_t i = threadIdx.x; i < 10240; i += 128) smem[i] = image[i];
  float d[32];
  for (int i = 0; i < 32; ++i) d[i] = 0;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  const std::uint64_t base = (shared_address(smem) & 0x3FFFF) >> 4;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  if constexpr (kTest == 0) MMA_N64("0, 0");
  if constexpr (kTest == 1) MMA_N64("1, 0");
  if constexpr (kTest == 2) MMA_N64("0, 1");
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < 32; ++i) out[i * 128 + threadIdx.x] = static_cast<std::uint32_t>(d[i]);
}

std::uint16_t small_half(std::uint32_t value) {
  if (value == 0) return 0;
  const int e = 31 - __builtin_clz(value);
  return static_cast<std::uint16_t>((e + 15) << 10 | ((value << (10 - e)) & 0x3FF));
}

/// Number of the f16 element behind (mn, k), digit by digit in base 32.
template <int kTest>
void record_majors() {
  check(
      cudaFuncSetAttribute(major_kernel<kTest>, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536),
      "shared memory");
  Words all;
  for (int code = 0; code < 4; ++code) {
    for (int variant = 0; variant < 2; ++variant) {
      const hopper::Strides strides = hopper::major_strides(code, variant);
      Words result(4096);
      for (int digit = 0; digit < 3; ++digit) {
        std::vector<std::uint16_t> image(20480);
        for (std::uint32_t i = 0; i < 16384; ++i) {
          image[i] = small_half((i >> (5 * digit)) & 31);
        }
        for (std::uint32_t row = 0; row < 64; ++row) {  // the other operand picks k = row % 16
          const std::uint32_t k = row % 16;
          image[16384 + k / 8 * 512 + row * 8 + k % 8] = small_half(1);
        }
        Words words(10240);
        std::memcpy(words.data(), image.data(), 40960);
        const std::uint64_t test = descriptor(hopper::kMajorBase, strides.lbo, strides.sbo, code);
        const std::uint64_t pick = descriptor(32768, 1024, 128);
        Buffer device_image(words);
        Buffer out(Words(4096));
        major_kernel<kTest><<<1, 128, 42000>>>(device_image.get(), kTest == 2 ? pick : test,
                                               kTest == 2 ? test : pick, out.get());
        const Words got = out.download();
        for (std::size_t i = 0; i < got.size(); ++i) result[i] += got[i] << (5 * digit);
      }
      all.insert(all.end(), result.begin(), result.end());
    }
  }
  record("majors_" + std::to_string(kTest), all);
}

// ---- Tensor copies

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                 const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                 const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

CUtensorMap encode(const hopper::Load& load, void* address) {
  static EncodeTiled function = nullptr;
  if (function == nullptr) {
    cudaDriverEntryPointQueryResult found;
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled",
                                           reinterpret_cast<void**>(&function), 12000,
                                           cudaEnableDefault, &found),
          "driver entry point");
  }
  CUtensorMap map;
  const cuuint64_t dims[2] = {load.dims[0], load.dims[1]};
  const cuuint64_t strides[1] = {load.stride};
  const cuuint32_t box[2] = {load.box[0], load.box[1]};
  const cuuint32_t steps[2] = {1, load.step};
  const CUresult status = function(
      &map, static_cast<CUtensorMapDataType>(load.type), 2, address, dims, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, static_cast<CUtensorMapSwizzle>(load.swizzle),
      CU_TENSOR_MAP_L2_PROMOTION_NONE, static_cast<CUtensorMapFloatOOBfill>(load.fill_nan));
  if (status != CUDA_SUCCESS) {
    std::fprintf(stderr, "%s: encode %d\n", load.name.c_str(), static_cast<int>(status));
    std::exit(1);
  }
  return map;
}

#define TENSOR_OP(TEXT) \
  asm volatile(TEXT " [%0, {%1,%2}], [%3];" ::"l"(&map), "r"(c0), "r"(c1), "r"(at) : "memory")

/// op: -2 load, -1 store, 0.. as hopper::Reduction::op. Shared memory starts as `shared` and is
/// written back there.
__global__ void tensor_kernel(const __grid_constant__ CUtensorMap map, int c0, int c1,
                              std::uint32_t offset, std::uint32_t bytes, int op,
                              std::uint32_t* shared) {
  extern __shared__ __align__(1024) std::uint32_t smem[];
  __shared__ __align__(8) std::uint64_t barrier;
  const std::uint32_t at = shared_address(smem) + offset;
  const std::uint32_t mbar = shared_address(&barrier);
  for (int i = threadIdx.x; i < hopper::kSharedWords; i += 32) smem[i] = shared[i];
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(mbar));
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    if (op == -2) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(mbar),
                   "r"(bytes));
      asm volatile(
          "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
          "[%1, {%2,%3}], [%4];" ::"r"(at),
          "l"(&map), "r"(c0), "r"(c1), "r"(mbar)
          : "memory");
      std::uint32_t done = 0;
      while (done == 0) {
        asm volatile(
            "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; "
            "selp.u32 %0, 1, 0, p;}"
            : "=r"(done)
            : "r"(mbar)
            : "memory");
      }
    }
    if (op == -1) TENSOR_OP("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group");
    if (op == 0) TENSOR_OP("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group");
    if (op == 1) TENSOR_OP("cp.reduce.async.bulk.tensor.2d.global.shared::cta.min.bulk_group");
    if (op == 2) TENSOR_OP("cp.reduce.async.bulk.tensor.2d.global.shared::cta.max.bulk_group");
    if (op == 3) TENSOR_OP("cp.reduce.async.bulk.tensor.2d.global.shared::cta.inc.bulk_group");
    if (op == 4) TENSOR_OP("cp.reduce.async.bulk.tensor.2d.global.shared::cta.dec.bulk_group");
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
  }
  __syncthreads();
  for (int i = threadIdx.x; i < hopper::kSharedWords; i += 32) shared[i] = smem[i];
}

__global__ void bulk_reduce_kernel(const std::uint32_t* operand, std::uint32_t* gmem) {
  __shared__ __align__(128) std::uint32_t smem[hopper::kSharedWords];
  for (int i = threadIdx.x; i < hopper::kSharedWords; i += 32) smem[i] = operand[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 8192;" ::"l"(gmem),
        "r"(shared_address(smem))
        : "memory");
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
  }
}

constexpr std::uint32_t kDynamicBytes = 4 * hopper::kSharedWords + 1024;

void record_copies() {
  const Words source = hopper::random_words(77, 16384);
  for (const hopper::Load& load : hopper::loads()) {
    Buffer gmem(source);
    Buffer shared(hopper::random_words(78, hopper::kSharedWords));
    tensor_kernel<<<1, 32, kDynamicBytes>>>(encode(load, gmem.get()), load.coords[0],
                                            load.coords[1], load.offset, load.bytes(), -2,
                                            shared.get());
    record(load.name, shared.download());
  }
  for (const hopper::Store& store : hopper::stores()) {
    Buffer gmem(Words(2080, 0x11111111));
    Buffer shared(hopper::random_words(78, hopper::kSharedWords));
    hopper::Load map;
    map.dims[0] = 208;
    map.box[0] = 64;
    map.box[1] = 4;
    map.swizzle = 2;
    tensor_kernel<<<1, 32, kDynamicBytes>>>(encode(map, gmem.get()), store.coords[0],
                                            store.coords[1], 0, 0, -1, shared.get());
    record("store_" + std::to_string(store.coords[0]) + "_" + std::to_string(store.coords[1]),
           gmem.download());
  }
  for (const hopper::Reduction& reduction : hopper::reductions()) {
    Words old, operand;
    hopper::reduction_inputs(reduction, old, operand);
    Buffer gmem(old);
    Buffer shared(operand);
    if (reduction.type < 0) {
      bulk_reduce_kernel<<<1, 32>>>(shared.get(), gmem.get());
    } else {
      hopper::Load map;
      map.type = reduction.type;
      map.elem_bytes = reduction.type == 6 || reduction.type == 9 ? 2 : 4;
      map.dims[0] = 1024 / map.elem_bytes;
      map.dims[1] = 8;
      map.stride = 1024;
      map.box[0] = 256;
      map.box[1] = 8;
      tensor_kernel<<<1, 32, kDynamicBytes>>>(encode(map, gmem.get()), 0, 0, 0, 0, reduction.op,
                                              shared.get());
    }
    record(reduction.name, gmem.download());
  }
}

}  // namespace

int main() {
  record_all_arithmetic(std::make_integer_sequence<int, hopper::kKinds>{});
  record_lines();
  record_majors<0>();
  record_majors<1>();
  record_majors<2>();
  record_copies();
  record_conversions();
}
