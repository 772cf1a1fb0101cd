#pragma once

#include <cuda.h>

/// The CUDA driver calls that the library makes, in one list: the table, its loader and the
/// emulator's exports follow from it. Names are macros of cuda.h where the driver has versions, so
/// that each entry means the version that this header declares.
#define MXFA_DRIVER_FUNCTIONS(X)  \
  X(cuInit)                       \
  X(cuDriverGetVersion)           \
  X(cuGetErrorName)               \
  X(cuGetErrorString)             \
  X(cuDeviceGet)                  \
  X(cuDeviceGetCount)             \
  X(cuDeviceGetName)              \
  X(cuDeviceGetAttribute)         \
  X(cuDeviceTotalMem)             \
  X(cuDevicePrimaryCtxRetain)     \
  X(cuDevicePrimaryCtxRelease)    \
  X(cuCtxGetCurrent)              \
  X(cuCtxPushCurrent)             \
  X(cuCtxPopCurrent)              \
  X(cuCtxSynchronize)             \
  X(cuMemAlloc)                   \
  X(cuMemFree)                    \
  X(cuMemAllocAsync)              \
  X(cuMemFreeAsync)               \
  X(cuMemcpyHtoDAsync)            \
  X(cuMemcpyDtoHAsync)            \
  X(cuMemcpyDtoDAsync)            \
  X(cuMemsetD8Async)              \
  X(cuPointerGetAttribute)        \
  X(cuStreamCreate)               \
  X(cuStreamDestroy)              \
  X(cuStreamSynchronize)          \
  X(cuStreamWaitEvent)            \
  X(cuStreamBeginCapture)         \
  X(cuStreamEndCapture)           \
  X(cuStreamIsCapturing)          \
  X(cuGraphInstantiate)           \
  X(cuGraphLaunch)                \
  X(cuGraphExecDestroy)           \
  X(cuGraphDestroy)               \
  X(cuEventCreate)                \
  X(cuEventDestroy)               \
  X(cuEventRecord)                \
  X(cuEventSynchronize)           \
  X(cuEventElapsedTime)           \
  X(cuModuleLoadData)             \
  X(cuModuleUnload)               \
  X(cuModuleGetFunction)          \
  X(cuFuncSetAttribute)           \
  X(cuFuncGetAttribute)           \
  X(cuLaunchKernelEx)             \
  X(cuOccupancyMaxActiveClusters) \
  X(cuTensorMapEncodeTiled)

namespace mxfa::driver {

struct FunctionTable {
#define MXFA_DRIVER_MEMBER(name) decltype(&::name) name = nullptr;
  MXFA_DRIVER_FUNCTIONS(MXFA_DRIVER_MEMBER)
#undef MXFA_DRIVER_MEMBER
};

}  // namespace mxfa::driver
