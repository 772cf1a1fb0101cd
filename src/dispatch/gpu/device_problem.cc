#include "dispatch/gpu/device_problem.h"

#include <array>
#include <optional>

#include "core/arena.h"
#include "core/check.h"
#include "core/workspace.h"
#include "device/ops.h"
#include "device/tensor_map.h"
#include "dispatch/attention_problem.h"
#include "dispatch/gpu/device_memory.h"
#include "dispatch/refuse.h"
#include "dispatch/tiled_scales.h"
#include "dispatch/validate.h"

namespace mxfa::dispatch {
namespace {

using core::expect;
using core::later;

/// One side's tokens: packed [total, heads, head_dim] with cu_seqlens, or dense [batch, seqlen,
/// heads, head_dim] without.
device::Sequences sequences_of(const TensorView& x, std::string_view name,
                               const TensorView& cu_seqlens, std::string_view cu_name,
                               const driver::Device& device) {
  check_tensor(x, name);
  if (cu_seqlens.rank == 0) {
    expect(x.rank == 4, name, later("[batch, seqlen, heads, head_dim], as there is no {}", cu_name),
           x);
    expect(x.shape[0] < INT32_MAX && x.shape[0] * x.shape[1] <= INT32_MAX, name,
           "batch * seqlen below 2^31", x);
    return {.seqlen = x.shape[1],
            .batch = static_cast<std::int32_t>(x.shape[0]),
            .total = x.shape[0] * x.shape[1]};
  }
  expect(x.rank == 3, name, later("[tokens, heads, head_dim], as there is {}", cu_name), x);
  expect(x.shape[0] <= INT32_MAX, name, "less than 2^31 tokens", x);
  check_tensor(cu_seqlens, cu_name);
  check_dtype(cu_seqlens, cu_name, {DType::kI32, DType::kI64});
  expect(cu_seqlens.rank == 1 && cu_seqlens.shape[0] >= 1 && cu_seqlens.shape[0] < INT32_MAX,
         cu_name, "shape [batch + 1]", cu_seqlens);
  if (cu_seqlens.strides[0] != 1) {
    unsupported(cu_name, "contiguous offsets on a device",
                fmt::format("stride {}", cu_seqlens.strides[0]));
  }
  expect_on_device(device, cu_seqlens.data, cu_name);
  // Of 64 bits: until narrow_offsets(), which knows them.
  return {.cu_seqlens = static_cast<const std::int32_t*>(cu_seqlens.data),
          .batch = static_cast<std::int32_t>(cu_seqlens.shape[0] - 1),
          .total = x.shape[0]};
}

/// A broadcast q: one sequence of all its rows.
device::Sequences broadcast_sequence(const TensorView& q, const TensorView& cu_seqlens_q) {
  check_tensor(q, "q");
  expect(cu_seqlens_q.rank == 0, "cu_seqlens_q", "none where q is broadcast", cu_seqlens_q);
  expect(q.rank == 3, "q", "[total_q, heads, head_dim], as it is broadcast", q);
  return {.seqlen = q.shape[0], .batch = 1, .total = q.shape[0]};
}

void check_options(const attention::Options& options) {
  check_members(options);
  if (options.precision == attention::Precision::kBf16) {
    unsupported("precision", "mxfp8 on a device", "bf16");
  }
  for (const auto& [value, name] : {std::pair(options.max_seqlen_q, "max_seqlen_q"),
                                    std::pair(options.max_seqlen_k, "max_seqlen_k")}) {
    if (value >= 0) {
      unsupported(name, "none on a device, where lengths are not read by the host",
                  core::text(value));
    }
  }
  if (options.scale_rule != ScaleRule::kRoundUp) {
    unsupported("scale_rule", "round-up on a device", "floor");
  }
}

/// Where q, k and v must agree.
void check_shapes(const DeviceInputs& inputs, const DeviceProblem& problem) {
  const TensorView &q = inputs.q.values, &k = inputs.k.values, &v = inputs.v.values;
  const device::OperandsSpec& spec = problem.operands;
  expect(q.shape[q.rank - 2] <= INT32_MAX, "q", "fewer than 2^31 heads", q);
  expect(k.shape[k.rank - 1] == q.shape[q.rank - 1], "k",
         later("head_dim {} as q", q.shape[q.rank - 1]), k);
  check_shape(v, "v", k.dims());
  const bool dense = problem.dense();
  if (!problem.options.broadcast_q) {
    expect((inputs.cu_seqlens_q.rank == 0) == dense, "cu_seqlens_q",
           dense ? "none, as there is no cu_seqlens_k" : "offsets, as there is cu_seqlens_k",
           inputs.cu_seqlens_q);
    expect(spec.q_sequences.batch == spec.k_sequences.batch, dense ? "q" : "cu_seqlens_q",
           later("{} sequences as k", spec.k_sequences.batch), spec.q_sequences.batch);
  }
  for (const auto& [dtype, name] : {std::pair(k.dtype, "k"), std::pair(v.dtype, "v")}) {
    expect((dtype == DType::kE4M3) == (q.dtype == DType::kE4M3) &&
               (dtype == DType::kE4M3 || dtype == q.dtype),
           name, later("{} as q", dtype_name(q.dtype)), dtype_name(dtype));
  }
}

/// Rows of compact scales of a side, at most.
std::int64_t scale_rows(const device::Sequences& sequences, BlockShape shape) {
  if (mx::block_rows(shape) == 1) return sequences.total;
  if (sequences.cu_seqlens != nullptr) return mx::max_groups(sequences.total, sequences.batch);
  return sequences.batch * mx::ceil_div(sequences.seqlen, kScaleBlock);
}

/// Tiles of 128 tokens of a side, at most.
std::int64_t max_tiles(const device::Sequences& sequences) {
  if (sequences.cu_seqlens != nullptr) return mx::max_tiles(sequences.total, sequences.batch);
  return sequences.batch * mx::ceil_div(sequences.seqlen, mx::kAtomRows);
}

/// [batch, seqlen, heads, head_dim] where dense, [rows, heads, head_dim] where packed or broadcast.
void check_side_shape(const TensorView& x, std::string_view name, const DeviceProblem& problem,
                      Side side) {
  const device::Sequences& sequences = sequences_of(problem, side);
  const device::OperandsSpec& spec = problem.operands;
  const std::int64_t heads = side == Side::kK ? spec.num_heads_kv : spec.num_heads;
  const std::int64_t dim = spec.head_dim;
  if (problem.dense() && !(side == Side::kQ && spec.broadcast_q)) {
    check_shape(x, name,
                std::array<std::int64_t, 4>{sequences.batch, sequences.seqlen, heads, dim});
  } else {
    check_shape(x, name, std::array<std::int64_t, 3>{sequences.total, heads, dim});
  }
}

void check_strides(const TensorView& x, std::string_view name) {
  const int last = x.rank - 1;
  const std::int64_t end = device::kMapStrideEnd / static_cast<std::int64_t>(dtype_size(x.dtype));
  expect(x.strides[last] == 1, name, "contiguous rows of head_dim",
         later("stride {}", x.strides[last]));
  for (int i = 0; i < last; ++i) {
    expect(x.strides[i] >= 0, name, "no negative stride on a device",
           later("stride {} in dimension {}", x.strides[i], i));
    expect(x.strides[i] < end, name, "strides below 2^40 bytes on a device",
           later("stride {} of {} in dimension {}", x.strides[i], dtype_name(x.dtype), i));
  }
}

const std::int64_t* wide_offsets(const TensorView& cu_seqlens) {
  const bool wide = cu_seqlens.rank != 0 && cu_seqlens.dtype == DType::kI64;
  return wide ? static_cast<const std::int64_t*>(cu_seqlens.data) : nullptr;
}

/// Names are made where a check fails only.
void check_scales_given(const Tensor& x, std::string_view name, BlockShape shape) {
  if (x.values.dtype != DType::kE4M3) {
    expect(x.scales.rank == 0, later("{}.scales", name), "none without e4m3 payload", x.scales);
    return;
  }
  expect(x.scales.rank != 0, later("{}.scales", name),
         later("the scales of {} blocks", block_shape_name(shape)), "none");
}

/// Scales of payload, one for each group or token and head, or for each 32 columns of those.
void take_scales(const Tensor& x, std::string_view name, const device::Sequences& sequences,
                 BlockShape shape, const driver::Device& device, device::OperandInput& input) {
  check_scales_given(x, name, shape);
  if (x.values.dtype != DType::kE4M3) return;
  const std::string scales = fmt::format("{}.scales", name);
  check_tensor(x.scales, scales);
  check_dtype(x.scales, scales, {DType::kE8M0, DType::kU8});
  const std::array<std::int64_t, 3> extent{
      scale_rows(sequences, shape), x.values.shape[x.values.rank - 2],
      mx::ceil_div(x.values.shape[x.values.rank - 1], kScaleBlock)};
  const bool columns = mx::block_cols(shape) != 0;
  check_shape_at_least(x.scales, scales, std::span(extent).first(columns ? 3 : 2), 0);
  expect(!columns || x.scales.strides[2] == 1 || extent[2] == 1, scales,
         "contiguous scales of a row", later("stride {}", x.scales.strides[2]));
  expect_on_device(device, x.scales.data, scales);
  input.scales = static_cast<const std::uint8_t*>(x.scales.data);
  input.scale_strides = {.row = x.scales.strides[0], .head = x.scales.strides[1]};
}

/// Scales of a side in MXFP8 by rows: [tokens or groups, num_heads, ceil(head_dim / 32)].
void check_row_scales(const Tensor& x, std::string_view name, const DeviceProblem& problem,
                      Side side) {
  const BlockShape shape = problem.options.output_shape;
  if (x.values.dtype == DType::kE4M3 && shape != BlockShape::k1x32 && shape != BlockShape::k32x32) {
    unsupported("output_shape", "1x32 or 32x32 on a device", block_shape_name(shape));
  }
  check_scales_given(x, name, shape);
  if (x.values.dtype != DType::kE4M3) return;
  const std::string scales = fmt::format("{}.scales", name);
  check_output(x.scales, scales);
  check_dtype(x.scales, scales, {DType::kE8M0, DType::kU8});
  const std::int64_t columns = mx::ceil_div(problem.operands.head_dim, kScaleBlock);
  check_shape_at_least(x.scales, scales,
                       std::array{scale_rows(sequences_of(problem, side), shape),
                                  x.values.shape[x.values.rank - 2], columns},
                       0);
  expect(x.scales.strides[2] == 1 || columns == 1, scales, "contiguous scales of a row",
         later("stride {}", x.scales.strides[2]));
  expect_on_device(problem.queue.device, x.scales.data, scales);
}

}  // namespace

const device::Sequences& sequences_of(const DeviceProblem& problem, Side side) {
  if (side == Side::kO) return problem.o_sequences;
  return side == Side::kQ ? problem.operands.q_sequences : problem.operands.k_sequences;
}

DeviceProblem make_device_problem(const DeviceInputs& inputs, const attention::Options& options) {
  check_options(options);
  DeviceProblem problem{.options = options, .queue = options.device->state().queue(options.stream)};
  const driver::Device& device = problem.queue.device;
  const TensorView &q = inputs.q.values, &k = inputs.k.values;
  device::OperandsSpec& spec = problem.operands;
  spec.broadcast_q = options.broadcast_q;
  spec.leak_free = options.leak_free;
  spec.half_scores = options.half_scores;
  spec.bf16_scores = options.qk_bf16;
  spec.q_sequences = options.broadcast_q
                         ? broadcast_sequence(q, inputs.cu_seqlens_q)
                         : sequences_of(q, "q", inputs.cu_seqlens_q, "cu_seqlens_q", device);
  spec.k_sequences = sequences_of(k, "k", inputs.cu_seqlens_k, "cu_seqlens_k", device);
  problem.wide_cu_seqlens_q = wide_offsets(inputs.cu_seqlens_q);
  problem.wide_cu_seqlens_k = wide_offsets(inputs.cu_seqlens_k);
  const attention::AttentionProblem shape = problem_of(q, k, options);
  attention::internal::validate_heads(shape);
  attention::internal::validate_mask(shape);
  check_shapes(inputs, problem);
  problem.mask = shape.mask;
  problem.softmax_scale = shape.scale();
  spec.num_heads = static_cast<std::int32_t>(shape.num_heads);
  spec.num_heads_kv = static_cast<std::int32_t>(shape.num_heads_kv);
  spec.head_dim = static_cast<std::int32_t>(shape.head_dim);
  problem.o_sequences = spec.q_sequences;
  if (options.broadcast_q) {
    problem.o_sequences.batch = spec.k_sequences.batch;
    problem.o_sequences.total *= spec.k_sequences.batch;
  }
  expect(problem.rows_o() <= INT32_MAX, "q", "rows of o below 2^31", problem.rows_o());
  const BlockShape blocks = attention::operand_shape(options);
  spec.q = device_input(inputs.q, "q", problem, Side::kQ, blocks);
  spec.k = device_input(inputs.k, "k", problem, Side::kK, blocks);
  check_tensor(inputs.v.values, "v");  // q and k have been
  spec.v = device_input(inputs.v, "v", problem, Side::kK, blocks);
  expect(!options.qk_bf16 || q.dtype != DType::kE4M3, "q",
         "bf16 or f32 (the options read unquantized values)", q);
  return problem;
}

device::OperandInput device_input(const Tensor& x, std::string_view name,
                                  const DeviceProblem& problem, Side side, BlockShape shape) {
  const TensorView& values = x.values;
  check_dtype(values, name, {DType::kBF16, DType::kF32, DType::kE4M3});
  check_side_shape(values, name, problem, side);
  check_strides(values, name);
  const driver::Device& device = problem.queue.device;
  expect_on_device(device, values.data, name);
  const int last = values.rank - 1;
  const device::Sequences& sequences = sequences_of(problem, side);
  device::OperandInput input{.data = values.data,
                             .dtype = values.dtype,
                             .token_stride = values.strides[last - 2],
                             .head_stride = values.strides[last - 1]};
  // Of packed rows as well: those of a broadcast q's sequences are equally long.
  input.batch_stride = last == 3 ? values.strides[0] : sequences.seqlen * input.token_stride;
  take_scales(x, name, sequences, shape, device, input);
  return input;
}

DeviceRows device_rows(const Tensor& x, std::string_view name, const DeviceProblem& problem,
                       Side side) {
  if (!x.given()) return {};
  const TensorView& values = x.values;
  check_output(values, name);
  check_dtype(values, name, {DType::kBF16, DType::kF32, DType::kE4M3});
  check_side_shape(values, name, problem, side);
  check_strides(values, name);
  check_row_scales(x, name, problem, side);
  expect_on_device(problem.queue.device, values.data, name);
  const int last = values.rank - 1;
  DeviceRows rows{.tensor = &x,
                  .token_stride = values.strides[last - 2],
                  .head_stride = values.strides[last - 1]};
  if (last == 3 && values.shape[0] > 1 &&
      values.strides[0] != values.shape[1] * values.strides[1]) {
    rows.batch_stride = values.strides[0];
  }
  return rows;
}

void check_tiled_scales(const attention::TiledScales& tiled, const Tensor& x, std::string_view name,
                        const DeviceProblem& problem, Side side) {
  const device::Sequences& sequences = sequences_of(problem, side);
  const device::OperandsSpec& spec = problem.operands;
  const std::array<std::int64_t, 3> extents{
      sequences.total, side == Side::kK ? spec.num_heads_kv : spec.num_heads, spec.head_dim};
  check_tiled_copies(tiled, {.name = name,
                             .tensor = x,
                             .block_shape = problem.options.output_shape,
                             .extents = extents,
                             .tiles = max_tiles(sequences)});
  for (const TensorView* const scales : {&tiled.head_dim, &tiled.tokens}) {
    if (scales->rank == 0) continue;
    const auto past = reinterpret_cast<std::uintptr_t>(scales->data) % 16;
    expect(past == 0, later("{}_tiled", name), "addresses on 16 bytes",
           later("one {} bytes past that", past));
    expect_on_device(problem.queue.device, scales->data, fmt::format("{}_tiled", name));
  }
}

device::Mxfp8Rows mxfp8_rows(const DeviceRows& rows, BlockShape shape) {
  const TensorView& scales = rows.tensor->scales;
  return {.codes = static_cast<std::uint8_t*>(rows.data()),
          .token_stride = rows.token_stride,
          .head_stride = rows.head_stride,
          .scales = static_cast<std::uint8_t*>(scales.data),
          .scale_row_stride = scales.strides[0],
          .scale_head_stride = scales.strides[1],
          .block_shape = shape};
}

void check_row_values(const TensorView& x, std::string_view name, const DeviceProblem& problem) {
  check_output(x, name);
  check_dtype(x, name, {DType::kF32});
  check_shape(x, name, std::array{std::int64_t{problem.operands.num_heads}, problem.rows_o()});
  expect(x.strides[1] == 1 || problem.rows_o() <= 1, name, "contiguous rows of a head",
         later("stride {}", x.strides[1]));
  expect(x.strides[0] >= 0, name, "no negative stride on a device",
         later("stride {}", x.strides[0]));
  expect_on_device(problem.queue.device, x.data, name);
}

void check_row_max(const TensorView& row_max, const TensorView& lse) {
  expect(row_max.rank == 0 || row_max.strides[0] == lse.strides[0], "row_max",
         later("the strides of lse: {}", lse.strides[0]), row_max.strides[0]);
}

void check_workspace(const DeviceProblem& problem, std::span<std::byte> workspace,
                     std::int64_t bytes) {
  core::expect_memory(workspace, "workspace", bytes, device::kMemoryAlignment);
  expect_on_device(problem.queue.device, workspace.data(), "workspace");
}

namespace {

/// Where a call's narrow offsets lie; without memory they are counted.
struct NarrowOffsets {
  std::int32_t* q = nullptr;
  std::int32_t* k = nullptr;

  NarrowOffsets(const DeviceProblem& problem, core::Arena& arena) {
    const device::OperandsSpec& spec = problem.operands;
    if (problem.wide_cu_seqlens_q != nullptr) q = take(spec.q_sequences, arena);
    if (problem.wide_cu_seqlens_k != nullptr) k = take(spec.k_sequences, arena);
  }

 private:
  static std::int32_t* take(const device::Sequences& sequences, core::Arena& arena) {
    return arena.take<std::int32_t>(std::int64_t{sequences.batch} + 1);
  }
};

}  // namespace

std::int64_t with_offsets_bytes(const DeviceProblem& problem, std::int64_t bytes) {
  if (problem.wide_cu_seqlens_q == nullptr && problem.wide_cu_seqlens_k == nullptr) return bytes;
  core::Arena counter({}, device::kMemoryAlignment);
  counter.take<std::byte>(bytes);
  const NarrowOffsets offsets(problem, counter);
  return counter.used();
}

void narrow_offsets(DeviceProblem& problem, std::byte* workspace, std::int64_t bytes, bool launch) {
  const std::int64_t all = with_offsets_bytes(problem, bytes);
  if (all == bytes) return;
  core::Arena arena({workspace, static_cast<std::size_t>(all)}, device::kMemoryAlignment);
  arena.take<std::byte>(bytes);
  const NarrowOffsets offsets(problem, arena);
  const auto use = [&](const std::int64_t* wide, std::int32_t* narrow,
                       device::Sequences& sequences) {
    if (wide == nullptr) return;
    sequences.cu_seqlens = narrow;
    if (launch) device::narrow_offsets(problem.queue, wide, narrow, sequences.batch);
  };
  use(problem.wide_cu_seqlens_q, offsets.q, problem.operands.q_sequences);
  use(problem.wide_cu_seqlens_k, offsets.k, problem.operands.k_sequences);
  if (problem.wide_cu_seqlens_q != nullptr) {
    problem.o_sequences.cu_seqlens = problem.operands.q_sequences.cu_seqlens;
  }
}

}  // namespace mxfa::dispatch
