#pragma once

#include <span>

#include "device/clear_behind.h"
#include "device/jagged_scale.h"
#include "device/quantize.h"
#include "device/realign.h"
#include "device/rmsnorm_backward.h"
#include "device/rmsnorm_quantize.h"
#include "device/rowwise.h"
#include "device/tile_plan.h"
#include "driver/kernel.h"

/// Host side of the arch-neutral kernels: checks, launch shapes. Pointers are device addresses;
/// nothing waits for the device. Every call throws Error(kInvalidArgument) that names the field,
/// what was expected and what came. Packed sequences lie in together at most `max_tiles` tiles of
/// 128 tokens: mx::max_tiles bounds them by shapes alone.
namespace mxfa::device {

/// What the memory of a call begins on: the alignment of what the driver allocates.
inline constexpr std::int64_t kMemoryAlignment = 256;

/// The images of this folder's kernels, for a KernelCache.
std::span<const driver::KernelImage> kernel_images();

/// Where a call runs. The cache belongs to the device.
struct Queue {
  const driver::Device& device;
  driver::KernelCache& kernels;
  CUstream stream = nullptr;
};

/// dim: a multiple of 32 up to 16384.
void rmsnorm_quantize(const Queue& queue, const RmsNormQuantizeParams& params);
void rmsnorm_backward(const Queue& queue, const RmsNormBackwardParams& params);

/// Writes groups and tiles [batch + 1] from cu_seqlens `tokens` [batch + 1], on the device.
void jagged_offsets(const Queue& queue, const std::int32_t* tokens, std::int32_t batch,
                    std::int64_t* groups, std::int64_t* tiles);

/// Offsets [batch + 1] of 64 bits, which fit 32, as such.
void narrow_offsets(const Queue& queue, const std::int64_t* wide, std::int32_t* narrow,
                    std::int32_t batch);

/// Also of accumulated gradients, in one read of the sums: FP32, or FP16 with its exponent, with
/// the counter of those that overflowed.
void quantize(const Queue& queue, const QuantizeParams& params, std::int64_t max_tiles);

/// Scales to their tiled home, every byte of the sequences' atoms written, padding with 0x00; and
/// back.
void tile_scales(const Queue& queue, const TileScalesParams& params, std::int64_t max_tiles);
void untile_scales(const Queue& queue, const TileScalesParams& params, std::int64_t max_tiles);
/// Zeros in the tiles behind the last sequence's, of `tiles` that a head has. `compact` is unused.
void clear_tiles_behind(const Queue& queue, const TileScalesParams& params, std::int64_t tiles);

/// `format`: kE4M3 or kE5M2, of both payloads.
void realign(const Queue& queue, const RealignParams& params, DType format, std::int64_t max_tiles);

void delta(const Queue& queue, const DeltaParams& params, std::int64_t max_tiles);
/// What delta() refuses, for kernels that make delta among other things.
void check_delta(const DeltaParams& params);
void dequantize_bf16(const Queue& queue, const DequantizeParams& params, std::int64_t max_tiles);
/// As quantize() takes accumulated gradients, to BF16.
void finish_sums_bf16(const Queue& queue, const FinishSumsParams& params, std::int64_t max_tiles);

/// What attention kernels leave unwritten behind the last sequence.
void clear_behind(const Queue& queue, const ClearBehindParams& params);

struct ExactAttentionParams;
/// Attention for checking (device/exact_attention.h); any architecture, slow.
void exact_attention(const Queue& queue, const ExactAttentionParams& params);

/// Writes the plan that attention::JaggedOrder reads, and clears the counter. One CTA; a few
/// microseconds up to some thousand sequences.
void tile_plan(const Queue& queue, const TilePlanParams& params);

/// What of an attention call is launched: its plan, which only jagged batches have and which stays
/// in the workspace, attention on the plan that is there, or both.
enum class Phase : std::uint8_t { kAll, kPlan, kAttend };

/// The sides of an attention call whose lengths are on the device.
struct JaggedSides {
  JaggedOffsetsView q, k;
  bool broadcast_q = false;
  void* workspace = nullptr;  ///< counter, then the plan
  std::int64_t workspace_bytes = 0;
  Phase phase = Phase::kAll;
};
/// What the kernel reads: the plan, and a counter from 0, to which it has to return when the kernel
/// ends (WarpFetchAdd does).
struct JaggedWork {
  attention::Seqlens seqlens;
  std::int32_t* counter = nullptr;
  attention::JaggedPlan plan;
};
/// Elements of a workspace, counter included.
constexpr std::int64_t jagged_work_elems(std::int32_t batch) {
  return attention::plan_elems(batch) + 2;
}
/// Makes the plan in the workspace, but for kAttend. Throws as well where one side is dense.
JaggedWork plan_jagged(const Queue& queue, const attention::TileShape& shape,
                       const JaggedSides& sides);

}  // namespace mxfa::device
