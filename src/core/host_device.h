#pragma once

/// Marks functions that compile for the host and, under nvcc, for the device as well.
#if defined(__CUDACC__)
#define MXFA_HOST_DEVICE __host__ __device__
#else
#define MXFA_HOST_DEVICE
#endif

/// Before MXFA_HOST_DEVICE functions that call what a template parameter brings: that may exist on
/// one side only, and so does the instance.
#if defined(__CUDACC__)
#define MXFA_EITHER_SIDE _Pragma("nv_exec_check_disable")
#else
#define MXFA_EITHER_SIDE
#endif
