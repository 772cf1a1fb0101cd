#pragma once

#include "device/rmsnorm_quantize.h"
#include "driver/kernel.h"

/// Host side of the arch-neutral kernels: checks, launch shapes. Pointers are device addresses;
/// nothing waits for the device.
namespace mxfa::device {

/// The images of this folder's kernels, for a KernelCache.
std::span<const driver::KernelImage> kernel_images();

/// Where a call runs. The cache belongs to the device.
struct Queue {
  const driver::Device& device;
  driver::KernelCache& kernels;
  CUstream stream = nullptr;
};

/// Throws Error where dim is not a multiple of 32 up to 16384, or a row count is negative.
void rmsnorm_quantize(const Queue& queue, const RmsNormQuantizeParams& params);

}  // namespace mxfa::device
