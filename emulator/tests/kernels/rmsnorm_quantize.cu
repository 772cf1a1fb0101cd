#include <cstdint>

/// y = x * rsqrt(mean(x^2) + eps) * weight for rows of `cols` (a multiple of 32), then MXFP8:
/// E4M3 payload [rows, cols] and one E8M0 scale for 32 columns [rows, cols / 32], rounded up.
/// One warp a row; each lane holds 4 neighbouring columns of 128 at a time.
extern "C" __global__ void rmsnorm_quantize(const float* x, const float* weight, uint8_t* payload,
                                            uint8_t* scales, int rows, int cols, float eps) {
  const int row = static_cast<int>(blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (row >= rows) return;
  const float* in = x + static_cast<int64_t>(row) * cols;
  float sum = 0.0f;
  for (int col = lane * 4; col < cols; col += 128) {
    const float4 v = *reinterpret_cast<const float4*>(in + col);
    sum = fmaf(v.x, v.x, sum);
    sum = fmaf(v.y, v.y, sum);
    sum = fmaf(v.z, v.z, sum);
    sum = fmaf(v.w, v.w, sum);
  }
  for (int step = 16; step > 0; step >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  const float inverse = 1.0f / sqrtf(sum / static_cast<float>(cols) + eps);
  for (int base = 0; base < cols; base += 128) {
    const int col = base + lane * 4;
    float y[4] = {};
    if (col < cols) {
      const float4 v = *reinterpret_cast<const float4*>(in + col);
      const float4 w = *reinterpret_cast<const float4*>(weight + col);
      y[0] = v.x * inverse * w.x;
      y[1] = v.y * inverse * w.y;
      y[2] = v.z * inverse * w.z;
      y[3] = v.w * inverse * w.w;
    }
    float amax = fmaxf(fmaxf(fabsf(y[0]), fabsf(y[1])), fmaxf(fabsf(y[2]), fabsf(y[3])));
    for (int step = 4; step > 0; step >>= 1) {
      amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, step));
    }
    const uint32_t bits = __float_as_uint(amax);
    const int exponent =
        max(0, static_cast<int>(bits >> 23) - 8 + ((bits & 0x7fffffu) > 0x600000u ? 1 : 0));
    const float factor = __uint_as_float(static_cast<uint32_t>(254 - exponent) << 23);
    uint16_t low;
    uint16_t high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
        : "=h"(low)
        : "f"(y[1] * factor), "f"(y[0] * factor));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
        : "=h"(high)
        : "f"(y[3] * factor), "f"(y[2] * factor));
    if (col < cols) {
      const int64_t at = static_cast<int64_t>(row) * cols + col;
      *reinterpret_cast<uint32_t*>(payload + at) = low | static_cast<uint32_t>(high) << 16;
      if (lane % 8 == 0) scales[at / 32] = static_cast<uint8_t>(exponent);
    }
  }
}
