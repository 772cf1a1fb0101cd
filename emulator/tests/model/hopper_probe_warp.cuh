#pragma once

#include "hopper_probe_support.cuh"

/// Warp matrices and conversions.
namespace {

__global__ void matrix_kernel(const std::uint32_t* image, std::uint32_t* out) {
  __shared__ __align__(1024) std::uint32_t smem[1024];
  for (int i = threadIdx.x; i < 1024; i += 32) smem[i] = image[i];
  __syncwarp();
  const std::uint32_t at = shared_address(smem) + threadIdx.x * 37 % 64 * 16;
  std::uint32_t r[4], t[4], m;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(t[0]), "=r"(t[1]), "=r"(t[2]), "=r"(t[3])
               : "r"(at));
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(m) : "r"(r[0]));
  for (int i = 0; i < 4; ++i) out[i * 32 + threadIdx.x] = r[i];
  for (int i = 0; i < 4; ++i) out[128 + i * 32 + threadIdx.x] = t[i];
  out[256 + threadIdx.x] = m;
  for (int i = 0; i < 4; ++i) r[i] = image[32 * i + threadIdx.x];
  for (int trans = 0; trans < 2; ++trans) {
    __syncwarp();
    for (int i = threadIdx.x; i < 1024; i += 32) smem[i] = 0;
    __syncwarp();
    if (trans == 0) {
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at),
                   "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                   : "memory");
    } else {
      asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at),
                   "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                   : "memory");
    }
    __syncwarp();
    for (int i = threadIdx.x; i < 1024; i += 32) out[288 + 1024 * trans + i] = smem[i];
  }
}

#define CVT_16(TEXT)                                                         \
  asm("{.reg .b16 h; " TEXT ", %1; cvt.u32.u16 %0, h;}" : "=r"(d) : "f"(x)); \
  break
#define CVT_8(TEXT)                                                              \
  asm("{.reg .b16 h; " TEXT ", %1, %1; cvt.u32.u16 %0, h;}" : "=r"(d) : "f"(x)); \
  break
#define CVT_32(TEXT)                       \
  asm(TEXT " %0, %1;" : "=r"(d) : "f"(x)); \
  break

__device__ std::uint32_t convert(int which, float x) {
  std::uint32_t d = 0;
  switch (which) {
    case 0:
      CVT_8("cvt.rn.satfinite.e4m3x2.f32 h");
    case 1:
      CVT_8("cvt.rn.satfinite.e5m2x2.f32 h");
    case 2:
      CVT_8("cvt.rn.satfinite.relu.e4m3x2.f32 h");
    case 3:
      CVT_16("cvt.rn.f16.f32 h");
    case 4:
      CVT_16("cvt.rz.f16.f32 h");
    case 5:
      CVT_16("cvt.rn.relu.f16.f32 h");
    case 6:
      CVT_16("cvt.rn.satfinite.f16.f32 h");
    case 7:
      CVT_16("cvt.rn.bf16.f32 h");
    case 8:
      CVT_16("cvt.rz.bf16.f32 h");
    case 9:
      CVT_16("cvt.rn.relu.bf16.f32 h");
    case 10:
      CVT_16("cvt.rn.satfinite.bf16.f32 h");
    case 11:
      CVT_16("cvt.rm.f16.f32 h");
    case 12:
      CVT_16("cvt.rp.f16.f32 h");
    case 13:
      CVT_32("cvt.rn.tf32.f32");
    case 14:
      CVT_32("cvt.rz.tf32.f32");
    case 15:
      CVT_32("cvt.rn.relu.tf32.f32");
  }
  return d;
}

__device__ std::uint32_t unpack(int which, std::uint32_t code) {
  const std::uint16_t pair = static_cast<std::uint16_t>(code);
  const std::uint32_t halves = code | code << 16;
  std::uint32_t d = 0;
  if (which == 0) asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(d) : "h"(pair));
  if (which == 1) asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(d) : "h"(pair));
  if (which == 2) asm("cvt.rn.relu.f16x2.e4m3x2 %0, %1;" : "=r"(d) : "h"(pair));
  if (which == 3) {
    asm("{.reg .b16 h; cvt.rn.satfinite.e4m3x2.f16x2 h, %1; cvt.u32.u16 %0, h;}"
        : "=r"(d)
        : "r"(halves));
  }
  if (which == 4) {
    asm("{.reg .b16 h; cvt.rn.satfinite.e5m2x2.f16x2 h, %1; cvt.u32.u16 %0, h;}"
        : "=r"(d)
        : "r"(halves));
  }
  return d;
}

__device__ std::uint32_t exponential(int which, std::uint32_t x) {
  std::uint32_t d = 0;
  const std::uint16_t one = static_cast<std::uint16_t>(x);
  if (which == 0) {
    asm("{.reg .b16 h; ex2.approx.f16 h, %1; cvt.u32.u16 %0, h;}" : "=r"(d) : "h"(one));
  }
  if (which == 1) asm("ex2.approx.f16x2 %0, %1;" : "=r"(d) : "r"(x));
  if (which == 2) {
    asm("{.reg .b16 h; ex2.approx.ftz.bf16 h, %1; cvt.u32.u16 %0, h;}" : "=r"(d) : "h"(one));
  }
  if (which == 3) asm("ex2.approx.ftz.bf16x2 %0, %1;" : "=r"(d) : "r"(x));
  return d;
}

__global__ void convert_kernel(int which, const std::uint32_t* in, std::uint32_t* out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = convert(which, __uint_as_float(in[i]));
}
__global__ void unpack_kernel(int which, std::uint32_t* out) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = unpack(which, i);
}

__global__ void exponential_kernel(int which, const std::uint32_t* in, std::uint32_t* out) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = exponential(which, in[i]);
}

void record_conversions() {
  Buffer image(hopper::random_words(55, 1024));
  Buffer matrices(Words(2336));
  matrix_kernel<<<1, 32>>>(image.get(), matrices.get());
  record("warp_matrices", matrices.download());
  Buffer in(hopper::scalar_inputs());
  Buffer out(Words(hopper::kScalarInputs));
  for (int which = 0; which < hopper::kConversions; ++which) {
    convert_kernel<<<hopper::kScalarInputs / 256, 256>>>(which, in.get(), out.get(),
                                                         hopper::kScalarInputs);
    record("cvt_" + std::to_string(which), out.download());
  }
  Buffer codes(Words(65536));
  for (int which = 0; which < hopper::kUnpackings; ++which) {
    unpack_kernel<<<256, 256>>>(which, codes.get());
    record("unpack_" + std::to_string(which), codes.download());
  }
  Words all;
  for (std::uint32_t code = 0; code < 65536; ++code) all.push_back(hopper::code_pair(code));
  Buffer pairs(all);
  for (int which = 0; which < hopper::kExponentials; ++which) {
    exponential_kernel<<<256, 256>>>(which, pairs.get(), codes.get());
    record("ex2_" + std::to_string(which), codes.download());
  }
}

}  // namespace
