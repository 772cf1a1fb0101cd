#pragma once

#include <cstdint>
#include <string_view>

#include "attention/mask.h"
#include "device/mxfp8_rows.h"
#include "device/operands.h"
#include "dispatch/gpu/device_state.h"
#include "mxfa/attention.h"

/// An attention call on a device, from public arguments to what kernels take: what the forward and
/// the backward have in common. Everything here throws Error that names the argument, what was
/// expected and what came.
namespace mxfa::dispatch {

/// Checked for what all architectures ask for; pointers are device addresses.
struct DeviceProblem {
  const attention::Options& options;
  device::Queue queue;
  device::OperandsSpec operands = {};  ///< q, k, v, sequences, heads
  device::Sequences o_sequences = {};  ///< of o, dout, lse: q's, or k's batch of q where broadcast
  attention::Mask mask = {};
  double softmax_scale = 0.0;
  /// Offsets of 64 bits, for whom narrow_offsets() makes those of `operands`.
  const std::int64_t* wide_cu_seqlens_q = nullptr;
  const std::int64_t* wide_cu_seqlens_k = nullptr;

  std::int64_t rows_o() const { return o_sequences.total; }
  bool dense() const { return operands.k_sequences.cu_seqlens == nullptr; }
};

/// The inputs that every call has.
struct DeviceInputs {
  const Tensor &q, &k, &v;
  const TensorView &cu_seqlens_q, &cu_seqlens_k;
};
DeviceProblem make_device_problem(const DeviceInputs& inputs, const attention::Options& options);

/// One of the tensors that lie as q, as o or as k.
enum class Side : std::uint8_t { kQ, kO, kK };
const device::Sequences& sequences_of(const DeviceProblem& problem, Side side);

/// A checked input of a side (check_tensor) that is quantized, or payload with the scales of
/// `shape` blocks.
device::OperandInput device_input(const Tensor& x, std::string_view name,
                                  const DeviceProblem& problem, Side side, BlockShape shape);

/// A tensor that kernels read or write row by row. Strides count elements; head_dim is contiguous.
struct DeviceRows {
  const Tensor* tensor = nullptr;  ///< null: not given
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
  std::int64_t batch_stride = 0;  ///< 0: sequences lie side by side

  bool given() const { return tensor != nullptr; }
  DType dtype() const { return tensor->values.dtype; }
  void* data() const { return tensor->values.data; }
};
/// kBF16, kF32, or kE4M3 with scales of options.output_shape. Not given: nothing.
DeviceRows device_rows(const Tensor& x, std::string_view name, const DeviceProblem& problem,
                       Side side);

/// Tiled copies of the scales of a side's output.
void check_tiled_scales(const attention::TiledScales& tiled, const Tensor& x, std::string_view name,
                        const DeviceProblem& problem, Side side);

/// Those in MXFP8, as attention kernels write them.
device::Mxfp8Rows mxfp8_rows(const DeviceRows& rows, BlockShape shape);

/// FP32 [num_heads, rows_o] of contiguous rows.
void check_row_values(const TensorView& x, std::string_view name, const DeviceProblem& problem);
/// For kernels that take row_max where lse's strides say.
void check_row_max(const TensorView& row_max, const TensorView& lse);

/// `workspace`: at least so many bytes of the device, on 256 bytes.
void check_workspace(const DeviceProblem& problem, std::span<std::byte> workspace,
                     std::int64_t bytes);

/// Bytes that narrow_offsets() takes behind `bytes` of others, on 256 bytes: all of them.
std::int64_t with_offsets_bytes(const DeviceProblem& problem, std::int64_t bytes);
/// Points the sequences at offsets of 32 bits behind `bytes` of `workspace`, where those given have
/// 64, and launches what makes them.
void narrow_offsets(DeviceProblem& problem, std::byte* workspace, std::int64_t bytes, bool launch);

}  // namespace mxfa::dispatch
