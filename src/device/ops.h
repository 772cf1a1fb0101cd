#pragma once

#include "device/quantize.h"
#include "device/rmsnorm_quantize.h"
#include "device/tile_plan.h"
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

/// Writes groups and tiles [batch + 1] from cu_seqlens `tokens` [batch + 1], on the device.
void jagged_offsets(const Queue& queue, const std::int32_t* tokens, std::int32_t batch,
                    std::int64_t* groups, std::int64_t* tiles);

/// Quantizes packed sequences of together at most `max_tiles` tiles of 128 tokens (mx::max_tiles
/// bounds them by shapes alone). Throws Error where head_dim, strides or the block shape do not fit
/// the outputs asked for.
void quantize(const Queue& queue, const QuantizeParams& params, std::int64_t max_tiles);

/// Writes the plan that attention::JaggedOrder reads, and clears the counter. One CTA; a few
/// microseconds up to some thousand sequences.
void tile_plan(const Queue& queue, const TilePlanParams& params);

}  // namespace mxfa::device
