#pragma once

#include "device/fp8.cuh"

/// Magnitudes of what wgmma accumulates, for blocks of MXFP8. A thread has 16 values of a warp's 16
/// rows of 32 columns: value 4 j + 2 h + i is in row lane / 4 + 8 h, column 8 j + 2 (lane % 4) + i.
namespace mxfa::sm90 {

/// Of the row's 32 columns.
__device__ inline float row_amax(const float* values, int h) {
  float most = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    most = device::max_nan(most, fabsf(values[4 * (i >> 1) + 2 * h + (i & 1)]));
  }
  most = device::max_nan(most, __shfl_xor_sync(~0u, most, 1));
  return device::max_nan(most, __shfl_xor_sync(~0u, most, 2));
}

/// Of all 16 rows.
__device__ inline float rows_amax(const float* values) {
  float most = device::max_nan(row_amax(values, 0), row_amax(values, 1));
#pragma unroll
  for (int step = 4; step < 32; step *= 2) {
    most = device::max_nan(most, __shfl_xor_sync(~0u, most, step));
  }
  return most;
}

}  // namespace mxfa::sm90
