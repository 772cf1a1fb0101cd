#pragma once

#include <cuda.h>
#include <stdint.h>

/// Calls that libmxemu.so has besides those of the CUDA driver. They change the machine that the
/// whole process sees. Those marked (*) can only be changed while no context is active
/// (CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE), the others act on what is asked for afterwards.
/// Wrong values give CUDA_ERROR_INVALID_VALUE.
#ifdef __cplusplus
extern "C" {
#endif

/// (*) "sm_90a" (the start), "sm_100a" or "sm_103a": compute capability, SM count, FP8 arithmetic.
CUresult mxemuSetArch(const char* arch);
/// (*) 1 to 64 devices that share nothing but the host; 1 at the start.
CUresult mxemuSetDeviceCount(int count);
/// (*) What CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT says, 1 to 1024; 0 for the architecture's own.
/// Few make persistent kernels take several tiles a CTA.
CUresult mxemuSetMultiprocessorCount(int count);
/// Order of everything that is not ordered: streams, CTAs, warps, asynchronous work. The policy is
/// "random" (the start), "earliest", "latest", "lifo", "starve" or "timed"; the same seed and
/// policy replay.
CUresult mxemuSetSchedule(const char* policy, uint64_t seed);
/// Host threads of a launch, 1 (the start) to 1024. More than one do not replay.
CUresult mxemuSetThreads(int threads);
/// Whether fresh device memory is filled with 0xFF (the start) or zeros, and whether a kernel's
/// read of bytes that nobody wrote is a fault (the start: yes).
CUresult mxemuSetMemory(int poison, int check_uninitialised);
/// How matrix instructions round: "native" (the start: as the architecture does), "exact", "hopper"
/// or "blackwell".
CUresult mxemuSetArithmetic(const char* mode);
/// Whether what the ISA does not promise, although hardware is known to do it, is a fault (the
/// start) or passes.
CUresult mxemuSetStrict(int strict);
/// Whether launches run under the hazard checker (the start: no; several times slower, one host
/// thread). Its errors are faults like any other.
CUresult mxemuSetChecker(int enabled);
/// A folder, made where it is missing, for a trace of each launch from now on, KERNEL.NUMBER.json
/// and .svg (mxemu/trace.h), of its first block; null or "" for none. Use the policy "timed" for a
/// picture to look at. With the checker on also KERNEL.NUMBER.waits: a line for each wait of the
/// kernel, PTX line, times that it passed, that it had to wait, and that it passed for the phase
/// before a barrier's first one.
CUresult mxemuSetTrace(const char* folder);
/// What the calling thread's last call found wrong, in words; empty after success. After a kernel's
/// fault it is the emulator's report. Valid until the thread's next call.
CUresult mxemuGetReport(const char** text);

#ifdef __cplusplus
}
#endif
