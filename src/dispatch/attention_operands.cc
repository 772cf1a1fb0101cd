#include "dispatch/attention_operands.h"

#include <algorithm>

#include "core/check.h"
#include "core/parallel.h"
#include "dispatch/attention_problem.h"
#include "dispatch/quantize_groups.h"
#include "dispatch/tiled_scales.h"
#include "dispatch/validate.h"
#include "mx/bits.h"

namespace mxfa::dispatch {
namespace {

QuantizeOptions quantize_options(const Role& role, TensorView& cu_seqlens) {
  cu_seqlens = make_tensor(const_cast<std::int32_t*>(role.cu_seqlens->data()), DType::kI32,
                           {std::ssize(*role.cu_seqlens)});
  return {.block_shape = role.block_shape, .cu_seqlens = cu_seqlens};
}

Plan role_plan(const attention::Tensor& tensor, const Role& role) {
  TensorView cu_seqlens;
  return make_plan(tensor.values.dims(), quantize_options(role, cu_seqlens));
}

void check_role_scales(const attention::Tensor& tensor, const Role& role) {
  const std::string name = fmt::format("{}.scales", role.name);
  const bool payload = tensor.values.dtype == DType::kE4M3;
  core::expect(payload || tensor.scales.rank == 0, name, "none without e4m3 payload",
               tensor.scales);
  if (!payload) return;
  core::expect(tensor.scales.rank != 0, name,
               core::later("the scales of {} blocks", block_shape_name(role.block_shape)), "none");
  check_scales(tensor.scales, name, role_plan(tensor, role), role.block_shape,
               ScaleLayout::kRowMajor);
}

float load_float(const TensorView& tensor, std::int64_t index) {
  if (tensor.dtype == DType::kF32) return static_cast<const float*>(tensor.data)[index];
  return mx::decode_f16(static_cast<const std::uint16_t*>(tensor.data)[index]);
}

/// Calls body(token, head) for all of them, on all threads.
template <class Body>
void for_each_row(const Packed& packed, Body body) {
  constexpr std::int64_t kTokens = 64;
  core::parallel_for(mx::ceil_div(packed.tokens, kTokens), [&](std::int64_t chunk) {
    const std::int64_t end = std::min((chunk + 1) * kTokens, packed.tokens);
    for (std::int64_t token = chunk * kTokens; token < end; ++token) {
      for (std::int64_t head = 0; head < packed.heads; ++head) body(token, head);
    }
  });
}

}  // namespace

AttentionShape::AttentionShape(const attention::ForwardArgs& args,
                               const attention::Options& options) {
  for (const auto& [tensor, name] : {std::pair(&args.q, "q"), std::pair(&args.k, "k")}) {
    check_tensor(tensor->values, name);
    core::expect(tensor->values.rank == 3, name, "shape [tokens, num_heads, head_dim]",
                 tensor->values);
    core::expect(tensor->values.shape[0] <= INT32_MAX, name, "less than 2^31 tokens",
                 tensor->values);
  }
  const TensorView& q = args.q.values;
  const TensorView& k = args.k.values;
  problem = problem_of(q, k, options);
  problem.total_q = q.shape[0];
  problem.total_k = k.shape[0];
  cu_seqlens_k = read_cu_seqlens(args.cu_seqlens_k, "cu_seqlens_k",
                                 {.total = problem.total_k, .max_seqlen = options.max_seqlen_k});
  if (options.broadcast_q) {
    core::expect(args.cu_seqlens_q.rank == 0, "cu_seqlens_q", "none where q is broadcast",
                 args.cu_seqlens_q);
    problem.batch = std::ssize(cu_seqlens_k) - 1;
    const std::int64_t rows = problem.rows_o();
    core::expect(rows <= INT32_MAX, "q", "batch * total_q below 2^31", rows);
    cu_seqlens_q = {0, static_cast<std::int32_t>(problem.total_q)};
    for (std::int64_t s = 0; s <= problem.batch; ++s) {
      cu_seqlens_o.push_back(static_cast<std::int32_t>(s * problem.total_q));
    }
  } else {
    cu_seqlens_q = read_cu_seqlens(args.cu_seqlens_q, "cu_seqlens_q",
                                   {.total = problem.total_q, .max_seqlen = options.max_seqlen_q});
    problem.batch = std::ssize(cu_seqlens_q) - 1;
    problem.cu_seqlens_q = cu_seqlens_q;
    cu_seqlens_o = cu_seqlens_q;
  }
  problem.cu_seqlens_k = cu_seqlens_k;
  attention::validate(problem);
  q_offsets = mx::make_jagged_offsets(cu_seqlens_q, problem.total_q, "cu_seqlens_q");
  o_offsets = mx::make_jagged_offsets(cu_seqlens_o, problem.rows_o(), "cu_seqlens_q");
  k_offsets = mx::make_jagged_offsets(cu_seqlens_k, problem.total_k, "cu_seqlens_k");
}

Role q_role(const AttentionShape& shape, const attention::Options& options) {
  return {.name = "q",
          .tokens = shape.problem.total_q,
          .heads = shape.problem.num_heads,
          .cu_seqlens = &shape.cu_seqlens_q,
          .offsets = &shape.q_offsets,
          .block_shape = attention::operand_shape(options),
          .shared = options.broadcast_q};
}

Role k_role(const AttentionShape& shape, const attention::Options& options, std::string_view name) {
  return {.name = name,
          .tokens = shape.problem.total_k,
          .heads = shape.problem.num_heads_kv,
          .cu_seqlens = &shape.cu_seqlens_k,
          .offsets = &shape.k_offsets,
          .block_shape = attention::operand_shape(options)};
}

Role o_role(const AttentionShape& shape, std::string_view name, BlockShape block_shape) {
  return {.name = name,
          .tokens = shape.problem.rows_o(),
          .heads = shape.problem.num_heads,
          .cu_seqlens = &shape.cu_seqlens_o,
          .offsets = &shape.o_offsets,
          .block_shape = block_shape};
}

void check_input(const attention::Tensor& tensor, const Role& role, std::int64_t head_dim) {
  check_tensor(tensor.values, role.name);
  check_dtype(tensor.values, role.name, {DType::kBF16, DType::kF16, DType::kF32, DType::kE4M3});
  check_shape(tensor.values, role.name, std::vector{role.tokens, role.heads, head_dim});
  check_role_scales(tensor, role);
}

void check_output_tensor(const attention::Tensor& tensor, const Role& role, std::int64_t head_dim) {
  check_output(tensor.values, role.name);
  check_dtype(tensor.values, role.name, {DType::kBF16, DType::kF32, DType::kE4M3});
  check_shape(tensor.values, role.name, std::vector{role.tokens, role.heads, head_dim});
  if (tensor.scales.rank != 0) check_output(tensor.scales, fmt::format("{}.scales", role.name));
  check_role_scales(tensor, role);
}

void check_row_values(const TensorView& tensor, std::string_view name,
                      const attention::AttentionProblem& problem, bool output) {
  if (output) {
    check_output(tensor, name);
  } else {
    check_tensor(tensor, name);
  }
  check_dtype(tensor, name, {DType::kF32});
  check_shape(tensor, name, std::vector{problem.num_heads, problem.rows_o()});
}

TensorView OperandMaker::bf16_copy(const TensorView& tensor) {
  auto* const out = arena_.take<std::uint16_t>(tensor.num_elements());
  if (!arena_.counting()) {
    const Packed from = as_packed(tensor);
    for_each_row(from, [&](std::int64_t token, std::int64_t head) {
      const std::int64_t base = from.offset(token, head);
      std::uint16_t* to = out + (token * from.heads + head) * from.dim;
      for (std::int64_t i = 0; i < from.dim; ++i) {
        const std::int64_t index = base + i * from.dim_stride;
        to[i] = tensor.dtype == DType::kBF16 ? static_cast<const std::uint16_t*>(tensor.data)[index]
                                             : mx::encode_bf16(load_float(tensor, index));
      }
    });
  }
  return make_tensor(out, DType::kBF16, tensor.dims());
}

TensorView OperandMaker::contiguous_copy(const TensorView& tensor) {
  const auto size = static_cast<std::int64_t>(dtype_size(tensor.dtype));
  auto* const out = arena_.take<std::uint8_t>(tensor.num_elements() * size);
  if (!arena_.counting()) {
    const Packed from = as_packed(tensor);
    for_each_row(from, [&](std::int64_t token, std::int64_t head) {
      const auto* source =
          static_cast<const std::uint8_t*>(tensor.data) + from.offset(token, head) * size;
      std::uint8_t* to = out + (token * from.heads + head) * from.dim * size;
      for (std::int64_t i = 0; i < from.dim; ++i) {
        std::copy_n(source + i * from.dim_stride * size, size, to + i * size);
      }
    });
  }
  return make_tensor(out, tensor.dtype, tensor.dims());
}

cpu::Operand OperandMaker::operand(const TensorView& values, const Role& role) {
  const Packed packed = as_packed(values);
  return {.dtype = values.dtype,
          .data = values.data,
          .token_stride = packed.token_stride,
          .head_stride = packed.head_stride,
          .scales = {},
          .offsets = role.offsets,
          .head_dim = packed.dim,
          .shared = role.shared};
}

cpu::Operand OperandMaker::quantized(const attention::Tensor& tensor, const Role& role) {
  const auto with_scales = [&](const TensorView& payload, const TensorView& scales) {
    cpu::Operand result = operand(payload, role);
    const auto compact = as_compact(scales, role_plan(tensor, role), role.block_shape);
    result.scales = {compact.data, compact.shape, compact.row_stride, compact.head_stride,
                     compact.col_stride};
    return result;
  };
  if (tensor.values.dtype == DType::kE4M3) {
    const bool adjacent = tensor.values.strides[2] == 1;
    return with_scales(adjacent ? tensor.values : contiguous_copy(tensor.values), tensor.scales);
  }
  TensorView cu_seqlens;
  QuantizeOptions options = quantize_options(role, cu_seqlens);
  options.rule = rule_;
  const bool bf16 = tensor.values.dtype == DType::kBF16;
  const TensorView values = bf16 ? tensor.values : bf16_copy(tensor.values);
  const std::vector<std::int64_t> shape = scale_shape(tensor.values.dims(), options);
  TensorView scales = make_tensor(nullptr, DType::kE8M0, shape);
  scales.data = arena_.take<std::uint8_t>(scales.num_elements());
  TensorView payload = make_tensor(nullptr, DType::kE4M3, tensor.values.dims());
  payload.data = arena_.take<std::uint8_t>(payload.num_elements());
  if (!arena_.counting()) mxfa::quantize(values, payload, scales, options);
  return with_scales(payload, scales);
}

cpu::Operand OperandMaker::values(const attention::Tensor& tensor, const Role& role) {
  if (tensor.values.dtype == DType::kE4M3) return quantized(tensor, role);
  if (tensor.values.dtype == DType::kF16) return operand(bf16_copy(tensor.values), role);
  const bool adjacent = tensor.values.strides[2] == 1;
  return operand(adjacent ? tensor.values : contiguous_copy(tensor.values), role);
}

cpu::Target make_target(const attention::Tensor& tensor, const Role& role, ScaleRule rule) {
  if (!tensor.given()) return {};
  const Packed packed = as_packed(tensor.values);
  cpu::Target target{.dtype = tensor.values.dtype,
                     .data = packed.data,
                     .token_stride = packed.token_stride,
                     .head_stride = packed.head_stride,
                     .dim_stride = packed.dim_stride,
                     .scales = {},
                     .offsets = role.offsets,
                     .head_dim = packed.dim,
                     .rule = rule};
  if (tensor.values.dtype == DType::kE4M3) {
    target.scales = as_compact(tensor.scales, role_plan(tensor, role), role.block_shape);
  }
  return target;
}

cpu::RowValues row_values(const TensorView& tensor) {
  return {static_cast<float*>(tensor.data), tensor.strides[0], tensor.strides[1]};
}

void clear_behind(const attention::Tensor& tensor, const Role& role) {
  if (!tensor.given()) return;
  const Plan plan = role_plan(tensor, role);
  clear_tokens(plan, tensor.values);
  if (tensor.values.dtype == DType::kE4M3) {
    clear_slack(tensor.scales, plan, role.block_shape, ScaleLayout::kRowMajor);
  }
}

void tile_scales(const attention::Tensor& tensor, const attention::TiledScales& tiled,
                 const Role& role) {
  for (const ScaleAxis axis : {ScaleAxis::kHeadDim, ScaleAxis::kTokens}) {
    const TensorView& scales = tiled_copy(tiled, axis);
    if (scales.rank == 0) continue;
    TensorView cu_seqlens;
    QuantizeOptions options = quantize_options(role, cu_seqlens);
    options.scale_axis = axis;
    mxfa::tile_scales(tensor.values.dims(), tensor.scales, scales, options);
  }
}

}  // namespace mxfa::dispatch
