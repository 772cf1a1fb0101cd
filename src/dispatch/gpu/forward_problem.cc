#include "dispatch/gpu/forward_problem.h"

#include <cmath>
#include <string>
#include <vector>

#include "attention/problem.h"
#include "core/check.h"
#include "dispatch/gpu/device_memory.h"
#include "dispatch/refuse.h"
#include "dispatch/validate.h"

namespace mxfa::dispatch {
namespace {

using core::text;

/// One side's tokens: packed [total, heads, head_dim] with cu_seqlens, or dense [batch, seqlen,
/// heads, head_dim] without.
device::Sequences sequences_of(const TensorView& x, std::string_view name,
                               const TensorView& cu_seqlens, std::string_view cu_name,
                               const driver::Device& device) {
  check_tensor(x, name);
  if (cu_seqlens.rank == 0) {
    if (!(x.rank == 4))
      refuse(name, fmt::format("[batch, seqlen, heads, head_dim], as there is no {}", cu_name),
             text(x));
    if (!(x.shape[0] < INT32_MAX && x.shape[0] * x.shape[1] <= INT32_MAX))
      refuse(name, "batch * seqlen below 2^31", text(x));
    return {.seqlen = x.shape[1],
            .batch = static_cast<std::int32_t>(x.shape[0]),
            .total = x.shape[0] * x.shape[1]};
  }
  if (!(x.rank == 3))
    refuse(name, fmt::format("[tokens, heads, head_dim], as there is {}", cu_name), text(x));
  if (!(x.shape[0] <= INT32_MAX)) refuse(name, "less than 2^31 tokens", text(x));
  check_tensor(cu_seqlens, cu_name);
  if (!(cu_seqlens.dtype == DType::kI32)) refuse(cu_name, "i32 on a device", text(cu_seqlens));
  if (!(cu_seqlens.rank == 1 && cu_seqlens.shape[0] >= 1 && cu_seqlens.shape[0] < INT32_MAX))
    refuse(cu_name, "shape [batch + 1]", text(cu_seqlens));
  if (!(cu_seqlens.strides[0] == 1))
    refuse(cu_name, "contiguous offsets", fmt::format("stride {}", cu_seqlens.strides[0]));
  expect_on_device(device, cu_seqlens.data, cu_name);
  return {.cu_seqlens = static_cast<const std::int32_t*>(cu_seqlens.data),
          .batch = static_cast<std::int32_t>(cu_seqlens.shape[0] - 1),
          .total = x.shape[0]};
}

/// A broadcast q: one sequence of all its rows.
device::Sequences broadcast_sequence(const TensorView& q, const TensorView& cu_seqlens_q) {
  check_tensor(q, "q");
  if (!(cu_seqlens_q.rank == 0))
    refuse("cu_seqlens_q", "none where q is broadcast", text(cu_seqlens_q));
  if (!(q.rank == 3)) refuse("q", "[total_q, heads, head_dim], as it is broadcast", text(q));
  return {.seqlen = q.shape[0], .batch = 1, .total = q.shape[0]};
}

/// Scales of payload, one for each group (32xD) or token (1xD) and head.
void check_payload(const Tensor& x, std::string_view name, const device::Sequences& sequences,
                   BlockShape shape, const driver::Device& device, device::OperandInput& input) {
  const std::string scales = fmt::format("{}.scales", name);
  if (x.values.dtype != DType::kE4M3) {
    if (!(x.scales.rank == 0)) refuse(scales, "none without e4m3 payload", text(x.scales));
    return;
  }
  if (!(x.scales.rank > 0))
    refuse(scales, fmt::format("the scales of {} blocks", block_shape_name(shape)), "none");
  check_tensor(x.scales, scales);
  check_dtype(x.scales, scales, {DType::kE8M0, DType::kU8});
  const bool jagged = sequences.cu_seqlens != nullptr;
  std::int64_t rows = sequences.total;
  if (shape == BlockShape::k32xD) {
    rows = jagged ? mx::max_groups(sequences.total, sequences.batch)
                  : sequences.batch * mx::ceil_div(sequences.seqlen, kScaleBlock);
  }
  check_shape_at_least(x.scales, scales, std::vector{rows, x.values.shape[x.values.rank - 2]}, 0);
  expect_on_device(device, x.scales.data, scales);
  input.scales = static_cast<const std::uint8_t*>(x.scales.data);
  input.scale_strides = {.row = x.scales.strides[0], .head = x.scales.strides[1]};
}

device::OperandInput input_of(const Tensor& x, std::string_view name,
                              const device::Sequences& sequences, BlockShape shape,
                              const driver::Device& device) {
  const TensorView& values = x.values;
  check_tensor(values, name);
  check_dtype(values, name, {DType::kBF16, DType::kF32, DType::kE4M3});
  const int last = values.rank - 1;
  if (!(values.strides[last] == 1))
    refuse(name, "contiguous rows of head_dim", fmt::format("stride {}", values.strides[last]));
  for (int i = 0; i < last; ++i) {
    if (!(values.strides[i] >= 0))
      refuse(name, "no negative stride on a device",
             fmt::format("stride {} in dimension {}", values.strides[i], i));
  }
  expect_on_device(device, values.data, name);
  device::OperandInput input{.data = values.data,
                             .dtype = values.dtype,
                             .token_stride = values.strides[last - 2],
                             .head_stride = values.strides[last - 1],
                             .batch_stride = last == 3 ? values.strides[0] : 0};
  check_payload(x, name, sequences, shape, device, input);
  return input;
}

void check_options(const attention::Options& options) {
  if (!(options.precision == attention::Precision::kMxfp8 ||
        options.precision == attention::Precision::kBf16))
    refuse("precision", "mxfp8 or bf16", text(static_cast<std::int64_t>(options.precision)));
  if (options.precision == attention::Precision::kBf16) {
    unsupported("precision", "mxfp8 on a device", "bf16");
  }
  for (const auto& [value, name] : {std::pair(options.max_seqlen_q, "max_seqlen_q"),
                                    std::pair(options.max_seqlen_k, "max_seqlen_k")}) {
    if (value >= 0) {
      unsupported(name, "none on a device, where lengths are not read by the host", text(value));
    }
  }
  if (options.dp_bf16) unsupported("dp_bf16", "false on a device", "true");
  if (options.scale_rule != ScaleRule::kRoundUp) {
    unsupported("scale_rule", "round-up on a device", "floor");
  }
}

void check_o(ForwardProblem& problem, const TensorView& q, const driver::Device& device) {
  const Tensor& o = problem.args.o;
  const std::int64_t heads = problem.operands.num_heads, dim = problem.operands.head_dim;
  check_output(o.values, "o");
  check_dtype(o.values, "o", {DType::kBF16, DType::kF32, DType::kE4M3});
  const bool batched = problem.dense();
  std::vector<std::int64_t> shape{problem.rows_o, heads, dim};
  if (batched) {
    const std::int64_t seqlen = q.rank == 4 ? q.shape[1] : q.shape[0];
    shape = {problem.operands.k_sequences.batch, seqlen, heads, dim};
  }
  check_shape(o.values, "o", shape);
  const int last = o.values.rank - 1;
  if (!(o.values.strides[last] == 1))
    refuse("o", "contiguous rows of head_dim", fmt::format("stride {}", o.values.strides[last]));
  problem.o_token_stride = o.values.strides[last - 2];
  problem.o_head_stride = o.values.strides[last - 1];
  for (int i = 0; i < last; ++i) {
    if (!(o.values.strides[i] >= 0))
      refuse("o", "no negative stride on a device",
             fmt::format("stride {} in dimension {}", o.values.strides[i], i));
  }
  if (batched && o.values.shape[0] > 1 &&
      o.values.strides[0] != o.values.shape[1] * o.values.strides[1]) {
    problem.o_batch_stride = o.values.strides[0];
  }
  expect_on_device(device, o.values.data, "o");
}

/// Scales of an output in MXFP8: [rows_o or groups, num_heads, ceil(head_dim / 32)].
void check_o_scales(const ForwardProblem& problem, const driver::Device& device) {
  const Tensor& o = problem.args.o;
  if (o.values.dtype != DType::kE4M3) {
    if (o.scales.rank != 0) refuse("o.scales", "none without e4m3 payload", text(o.scales));
    return;
  }
  const BlockShape shape = problem.options.output_shape;
  if (shape != BlockShape::k1x32 && shape != BlockShape::k32x32) {
    unsupported("output_shape", "1x32 or 32x32 on a device", block_shape_name(shape));
  }
  if (o.scales.rank == 0) {
    refuse("o.scales", fmt::format("the scales of {} blocks", block_shape_name(shape)), "none");
  }
  check_output(o.scales, "o.scales");
  check_dtype(o.scales, "o.scales", {DType::kE8M0, DType::kU8});
  std::int64_t rows = problem.rows_o;
  if (shape == BlockShape::k32x32) {
    const device::Sequences& q = problem.operands.q_sequences;
    const std::int64_t batch =
        problem.operands.broadcast_q ? problem.operands.k_sequences.batch : q.batch;
    rows = q.cu_seqlens != nullptr ? mx::max_groups(q.total, q.batch)
                                   : batch * mx::ceil_div(q.seqlen, kScaleBlock);
  }
  const std::int64_t columns = mx::ceil_div(problem.operands.head_dim, kScaleBlock);
  check_shape_at_least(o.scales, "o.scales",
                       std::vector{rows, std::int64_t{problem.operands.num_heads}, columns}, 0);
  if (o.scales.strides[2] != 1 && columns > 1) {
    refuse("o.scales", "contiguous scales of a row", fmt::format("stride {}", o.scales.strides[2]));
  }
  expect_on_device(device, o.scales.data, "o.scales");
}

void check_rows(const TensorView& x, std::string_view name, const ForwardProblem& problem) {
  check_output(x, name);
  check_dtype(x, name, {DType::kF32});
  check_shape(x, name, std::vector{std::int64_t{problem.operands.num_heads}, problem.rows_o});
  if (!(x.strides[1] == 1 || problem.rows_o <= 1))
    refuse(name, "contiguous rows of a head", fmt::format("stride {}", x.strides[1]));
  if (!(x.strides[0] >= 0))
    refuse(name, "no negative stride on a device", fmt::format("stride {}", x.strides[0]));
  expect_on_device(problem.queue.device, x.data, name);
}

/// Where q, k and v must agree.
void check_shapes(const attention::ForwardArgs& args, const ForwardProblem& problem) {
  const TensorView &q = args.q.values, &k = args.k.values, &v = args.v.values;
  const std::int64_t heads = q.shape[q.rank - 2], heads_kv = k.shape[k.rank - 2];
  attention::internal::validate_heads(
      {.num_heads = heads, .num_heads_kv = heads_kv, .head_dim = q.shape[q.rank - 1]});
  if (!(heads <= INT32_MAX)) refuse("q", "fewer than 2^31 heads", text(q));
  if (!(k.shape[k.rank - 1] == q.shape[q.rank - 1]))
    refuse("k", fmt::format("head_dim {} as q", q.shape[q.rank - 1]), text(k));
  check_shape(v, "v", k.dims());
  const bool dense = args.cu_seqlens_k.rank == 0;
  if (!problem.options.broadcast_q) {
    if (!((args.cu_seqlens_q.rank == 0) == dense))
      refuse("cu_seqlens_q",
             dense ? "none, as there is no cu_seqlens_k" : "offsets, as there is cu_seqlens_k",
             text(args.cu_seqlens_q));
    if (!(problem.operands.q_sequences.batch == problem.operands.k_sequences.batch))
      refuse(dense ? "q" : "cu_seqlens_q",
             fmt::format("{} sequences as k", problem.operands.k_sequences.batch),
             text(problem.operands.q_sequences.batch));
  }
  for (const auto& [dtype, name] : {std::pair(k.dtype, "k"), std::pair(v.dtype, "v")}) {
    if (!((dtype == DType::kE4M3) == (q.dtype == DType::kE4M3) &&
          (dtype == DType::kE4M3 || dtype == q.dtype)))
      refuse(name, fmt::format("{} as q", dtype_name(q.dtype)), std::string(dtype_name(dtype)));
  }
}

}  // namespace

ForwardProblem make_forward_problem(const attention::ForwardArgs& args,
                                    const attention::Options& options) {
  check_options(options);
  ForwardProblem problem{.args = args,
                         .options = options,
                         .queue = options.device->state().queue(options.stream),
                         .operands = {},
                         .mask = {.causal = options.causal,
                                  .alignment = options.causal_alignment,
                                  .window_left = options.window_left,
                                  .window_right = options.window_right}};
  const driver::Device& device = problem.queue.device;
  device::OperandsSpec& spec = problem.operands;
  spec.broadcast_q = options.broadcast_q;
  spec.leak_free = options.leak_free;
  spec.half_scores = options.half_scores;
  spec.bf16_scores = options.qk_bf16;
  const TensorView& q = args.q.values;
  spec.q_sequences = options.broadcast_q
                         ? broadcast_sequence(q, args.cu_seqlens_q)
                         : sequences_of(q, "q", args.cu_seqlens_q, "cu_seqlens_q", device);
  spec.k_sequences = sequences_of(args.k.values, "k", args.cu_seqlens_k, "cu_seqlens_k", device);
  check_shapes(args, problem);
  spec.num_heads = static_cast<std::int32_t>(q.shape[q.rank - 2]);
  spec.num_heads_kv = static_cast<std::int32_t>(args.k.values.shape[args.k.values.rank - 2]);
  spec.head_dim = static_cast<std::int32_t>(q.shape[q.rank - 1]);
  const BlockShape shape = attention::operand_shape(options);
  spec.q = input_of(args.q, "q", spec.q_sequences, shape, device);
  spec.k = input_of(args.k, "k", spec.k_sequences, shape, device);
  spec.v = input_of(args.v, "v", spec.k_sequences, shape, device);
  if (options.qk_bf16 && q.dtype == DType::kE4M3) {
    refuse("q", "bf16 or f32 (the options read unquantized values)", text(q));
  }
  problem.rows_o = options.broadcast_q ? spec.q_sequences.total * spec.k_sequences.batch
                                       : spec.q_sequences.total;
  if (!(problem.rows_o <= INT32_MAX)) refuse("q", "rows of o below 2^31", text(problem.rows_o));
  problem.softmax_scale =
      options.softmax_scale.value_or(1.0 / std::sqrt(static_cast<double>(spec.head_dim)));
  if (!(std::isfinite(problem.softmax_scale) && problem.softmax_scale > 0))
    refuse("softmax_scale", "a finite number above 0", fmt::format("{}", problem.softmax_scale));
  check_o(problem, q, device);
  check_o_scales(problem, device);
  check_rows(args.lse, "lse", problem);
  if (args.row_max.rank > 0) check_rows(args.row_max, "row_max", problem);
  return problem;
}

void check_row_max(const ForwardProblem& problem) {
  const TensorView& row_max = problem.args.row_max;
  if (row_max.rank == 0 || row_max.strides[0] == problem.args.lse.strides[0]) return;
  refuse("row_max", fmt::format("the strides of lse: {}", problem.args.lse.strides[0]),
         core::text(row_max.strides[0]));
}

}  // namespace mxfa::dispatch
