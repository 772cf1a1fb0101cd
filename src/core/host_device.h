#pragma once

/// Marks functions that compile for the host and, under nvcc, for the device as well.
#if defined(__CUDACC__)
#define MXFA_HOST_DEVICE __host__ __device__
#else
#define MXFA_HOST_DEVICE
#endif
