#include <cuda.h>

#include <algorithm>

#include "call.h"

/// Names and meanings of error codes.
namespace mxfa::emu::driver {
namespace {

struct ErrorText {
  CUresult code;
  const char* name;
  const char* text;
};
#define MXEMU_ERROR(code, text) \
  { code, #code, text }
constexpr ErrorText kErrors[] = {
    MXEMU_ERROR(CUDA_SUCCESS, "no error"),
    MXEMU_ERROR(CUDA_ERROR_INVALID_VALUE, "an argument is out of its range"),
    MXEMU_ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    MXEMU_ERROR(CUDA_ERROR_NOT_INITIALIZED, "cuInit was not called"),
    MXEMU_ERROR(CUDA_ERROR_NO_DEVICE, "there is no device"),
    MXEMU_ERROR(CUDA_ERROR_INVALID_DEVICE, "no device has this ordinal"),
    MXEMU_ERROR(CUDA_ERROR_INVALID_IMAGE, "not the image of a module"),
    MXEMU_ERROR(CUDA_ERROR_INVALID_CONTEXT, "no usable context is current"),
    MXEMU_ERROR(CUDA_ERROR_NO_BINARY_FOR_GPU, "the image has no code for this device"),
    MXEMU_ERROR(CUDA_ERROR_INVALID_PTX, "the PTX cannot be compiled for this device"),
    MXEMU_ERROR(CUDA_ERROR_INVALID_HANDLE, "a handle of no object of its kind"),
    MXEMU_ERROR(CUDA_ERROR_ILLEGAL_STATE, "the object is not in the state that the call needs"),
    MXEMU_ERROR(CUDA_ERROR_NOT_FOUND, "nothing has this name"),
    MXEMU_ERROR(CUDA_ERROR_NOT_READY, "the work has not ended yet"),
    MXEMU_ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "a kernel accessed memory that is not its own"),
    MXEMU_ERROR(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "the launch needs more than an SM has"),
    MXEMU_ERROR(CUDA_ERROR_LAUNCH_TIMEOUT, "a kernel does not end"),
    MXEMU_ERROR(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "the primary context is in use"),
    MXEMU_ERROR(CUDA_ERROR_CONTEXT_IS_DESTROYED, "the current context has been destroyed"),
    MXEMU_ERROR(CUDA_ERROR_ASSERT, "an assertion failed in a kernel"),
    MXEMU_ERROR(CUDA_ERROR_MISALIGNED_ADDRESS, "a kernel accessed a misaligned address"),
    MXEMU_ERROR(CUDA_ERROR_LAUNCH_FAILED, "a kernel failed"),
    MXEMU_ERROR(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "the grid cannot be resident at once"),
    MXEMU_ERROR(CUDA_ERROR_NOT_PERMITTED, "the call is not allowed here"),
    MXEMU_ERROR(CUDA_ERROR_NOT_SUPPORTED, "not supported on this device"),
    MXEMU_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "not allowed while a stream is captured"),
    MXEMU_ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "an earlier error has ended the capture"),
    MXEMU_ERROR(CUDA_ERROR_STREAM_CAPTURE_MERGE, "two captures would become one"),
    MXEMU_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "the capture did not begin in this stream"),
    MXEMU_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
                "captured work of another stream is not joined"),
    MXEMU_ERROR(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "captured work would wait for other work"),
    MXEMU_ERROR(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "the legacy stream would wait for a capture"),
    MXEMU_ERROR(CUDA_ERROR_CAPTURED_EVENT, "the event was last recorded in a capture"),
    MXEMU_ERROR(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "another thread began the capture"),
    MXEMU_ERROR(CUDA_ERROR_INVALID_CLUSTER_SIZE, "the cluster does not fit the launch"),
    MXEMU_ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
};
#undef MXEMU_ERROR

CUresult find(CUresult code, const char* ErrorText::*member, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto* it = std::ranges::find(kErrors, code, &ErrorText::code);
  *text = it == std::end(kErrors) ? nullptr : it->*member;
  return *text == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

}  // namespace
}  // namespace mxfa::emu::driver

using mxfa::emu::driver::ErrorText;

// These two leave the report of the call that failed.
CUresult cuGetErrorName(CUresult error, const char** name) {
  return mxfa::emu::driver::find(error, &ErrorText::name, name);
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  return mxfa::emu::driver::find(error, &ErrorText::text, text);
}
