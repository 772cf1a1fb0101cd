/// Softmax of rows of 128 scores, one thread a row: p[row, 128] and lse[row] (natural log).
extern "C" __global__ void softmax_row(const float* s, float* p, float* lse, float scale) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const float4* in = reinterpret_cast<const float4*>(s) + row * 32;
  float4* out = reinterpret_cast<float4*>(p) + row * 32;
  float v[128];
  float row_max = -INFINITY;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const float4 x = in[i];
    v[4 * i] = x.x;
    v[4 * i + 1] = x.y;
    v[4 * i + 2] = x.z;
    v[4 * i + 3] = x.w;
    row_max = fmaxf(row_max, fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w)));
  }
  const float scale_log2 = scale * 1.4426950408889634f;
  const float offset = row_max * scale_log2;
  float row_sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 128; ++i) {
    v[i] = exp2f(fmaf(v[i], scale_log2, -offset));
    row_sum += v[i];
  }
  const float inverse = 1.0f / row_sum;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    out[i] = make_float4(v[4 * i] * inverse, v[4 * i + 1] * inverse, v[4 * i + 2] * inverse,
                         v[4 * i + 3] * inverse);
  }
  lse[row] = row_max * scale + logf(row_sum);
}
