/// c[i] = a[i] + b[i] for i < n; one thread an element.
extern "C" __global__ void vector_add(const float* a, const float* b, float* c, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) c[i] = a[i] + b[i];
}

/// out[0] = acc after `steps` dependent multiply-adds in each thread: the speed of the core.
extern "C" __global__ void fma_loop(float* out, int steps) {
  float x = static_cast<float>(threadIdx.x) * 1e-3f;
  float y = x + 0.5f;
  for (int i = 0; i < steps; ++i) {
    x = __fmaf_rn(x, 0.999f, y);
    y = __fmaf_rn(y, 0.998f, x);
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = x + y;
}
