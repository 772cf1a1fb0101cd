#include "mxfa/attention.h"

#include <array>
#include <limits>
#include <tuple>

#include "core/check.h"
#include "core/workspace.h"
#include "dispatch/attention_operands.h"
#include "dispatch/attention_problem.h"
#include "dispatch/device_calls.h"
#include "dispatch/overlap.h"
#include "dispatch/tiled_scales.h"
#include "dispatch/validate.h"

namespace mxfa::attention {
namespace {

using core::Arena;
using dispatch::AttentionShape;
using dispatch::OperandMaker;
using dispatch::Role;

void check_device(const Options& options) {
  core::expect(options.device != nullptr, "device", "one", "none (the CPU keeps nothing)");
}

bool is_bf16(const Options& options) { return options.precision == Precision::kBf16; }

void check_options(const Options& options) {
  dispatch::check_members(options);
  for (const auto& [dial, name] :
       {std::pair(options.qk_bf16, "qk_bf16"), std::pair(options.dp_bf16, "dp_bf16"),
        std::pair(options.leak_free, "leak_free")}) {
    core::expect(!dial || !is_bf16(options), name, "false where precision is bf16", "true");
  }
  core::expect(!options.half_scores, "half_scores", "a Hopper GPU", "the CPU");
  core::expect(!options.exact, "exact", "a device", "the CPU (its oracle is `mxfa sqnr`)");
  core::expect(options.dq_accum == DType::kF32, "dq_accum", "f32 on the CPU",
               dtype_name(options.dq_accum));
  core::expect(options.p_scale == PScale::kConstant, "p_scale", "constant on the CPU",
               "block scales");
}

/// Tensors that are not payload have one dtype; some must not be payload.
class DTypeCheck {
 public:
  void check(const Tensor& tensor, std::string_view name, bool needs_values) {
    const DType dtype = tensor.values.dtype;
    if (dtype == DType::kE4M3) {
      core::expect(!needs_values, name, "bf16, f16 or f32 (the options read unquantized values)",
                   tensor.values);
      return;
    }
    if (first_.empty()) {
      first_ = name;
      dtype_ = dtype;
    }
    core::expect(dtype == dtype_, name, core::later("{} as {}", dtype_name(dtype_), first_),
                 tensor.values);
  }

 private:
  std::string_view first_;
  DType dtype_ = DType::kBF16;
};

cpu::Arithmetic arithmetic(const Options& options) {
  return {.bf16 = is_bf16(options),
          .hopper = options.recipe == Recipe::kHopper && !is_bf16(options),
          .leak_free = options.leak_free,
          .rule = options.scale_rule};
}

DTypeCheck check_qkv(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionShape& shape,
                     const Options& options) {
  const std::int64_t dim = shape.problem.head_dim;
  dispatch::check_input(q, dispatch::q_role(shape, options), dim);
  dispatch::check_input(k, dispatch::k_role(shape, options, "k"), dim);
  dispatch::check_input(v, dispatch::k_role(shape, options, "v"), dim);
  DTypeCheck dtypes;
  dtypes.check(q, "q", is_bf16(options) || options.qk_bf16);
  dtypes.check(k, "k", is_bf16(options) || options.qk_bf16);
  dtypes.check(v, "v", is_bf16(options));
  return dtypes;
}

void check_forward(const ForwardArgs& args, const AttentionShape& shape, const Options& options) {
  check_qkv(args.q, args.k, args.v, shape, options);
  dispatch::check_output_tensor(args.o, dispatch::o_role(shape, "o", options.output_shape),
                                shape.problem.head_dim);
  dispatch::check_row_values(args.lse, "lse", shape.problem, true);
  if (args.row_max.rank != 0) {
    dispatch::check_row_values(args.row_max, "row_max", shape.problem, true);
  }
}

Role gradient_role(Role role, const Options& options) {
  role.block_shape = options.output_shape;
  return role;
}

void check_backward(const BackwardArgs& args, const AttentionShape& shape, const Options& options) {
  dispatch::check_dq_exponent(options);
  const std::int64_t dim = shape.problem.head_dim;
  DTypeCheck dtypes = check_qkv(args.q, args.k, args.v, shape, options);
  dispatch::check_input(args.dout, dispatch::o_role(shape, "dout", dout_shape(options)), dim);
  dtypes.check(args.dout, "dout", is_bf16(options) || options.dp_bf16);
  core::expect(!options.dp_bf16 || args.v.values.dtype != DType::kE4M3, "v",
               "bf16, f16 or f32 (the options read unquantized values)", args.v.values);
  // Not E4M3: what a rounded o does to delta changes where training ends (docs/numerics.md).
  dispatch::check_dtype(args.o.values, "o", {DType::kBF16, DType::kF32});
  dispatch::check_input(args.o, dispatch::o_role(shape, "o", {}), dim);
  dispatch::check_row_values(args.lse, "lse", shape.problem, false);
  if (arithmetic(options).hopper) {
    core::expect(args.row_max.rank != 0, "row_max", "the forward's, in the Hopper recipe", "none");
    dispatch::check_row_values(args.row_max, "row_max", shape.problem, false);
  }
  const Role q = dispatch::q_role(shape, options);
  for (const auto& [tensor, tiled, name] :
       {std::tuple(&args.dk, &args.dk_tiled, "dk"), std::tuple(&args.dv, &args.dv_tiled, "dv")}) {
    const Role role = gradient_role(dispatch::k_role(shape, options, name), options);
    if (tensor->given()) dispatch::check_output_tensor(*tensor, role, dim);
    dispatch::check_tiled_copies(*tiled, {.name = name,
                                          .tensor = *tensor,
                                          .block_shape = role.block_shape,
                                          .extents = std::array{role.tokens, role.heads, dim},
                                          .tiles = role.offsets->tiles.back()});
  }
  core::expect(args.dq_overflows.rank == 0, "dq_overflows", "none on the CPU", args.dq_overflows);
  if (args.delta.rank != 0) dispatch::check_row_values(args.delta, "delta", shape.problem, true);
  if (args.dq_seq.rank != 0) {
    core::expect(options.broadcast_q && args.dq.given(), "dq_seq",
                 "none unless q is broadcast and dq is given", args.dq_seq);
    dispatch::check_output_tensor({args.dq_seq, {}}, dispatch::o_role(shape, "dq_seq", {}), dim);
  }
  if (!args.dq.given()) return;
  Role role = gradient_role(q, options);
  role.name = "dq";
  dispatch::check_output_tensor(args.dq, role, dim);
}

cpu::ForwardCall make_call(const ForwardArgs& args, const AttentionShape& shape,
                           const Options& options, Arena& arena) {
  OperandMaker maker(arena, options.scale_rule);
  const auto operand = [&](const Tensor& tensor, const Role& role, bool values) {
    return values ? maker.values(tensor, role) : maker.quantized(tensor, role);
  };
  const bool qk_values = is_bf16(options) || options.qk_bf16;
  cpu::ForwardCall call{.problem = shape.problem, .arithmetic = arithmetic(options)};
  call.q = operand(args.q, dispatch::q_role(shape, options), qk_values);
  call.k = operand(args.k, dispatch::k_role(shape, options, "k"), qk_values);
  call.v = operand(args.v, dispatch::k_role(shape, options, "v"), is_bf16(options));
  call.o = dispatch::make_target(args.o, dispatch::o_role(shape, "o", options.output_shape),
                                 options.scale_rule);
  call.lse = dispatch::row_values(args.lse);
  if (args.row_max.rank != 0) call.row_max = dispatch::row_values(args.row_max);
  const std::int64_t keys = cpu::shared_key_bytes(shape.problem);
  if (keys > 0) call.shared_keys = arena.take<std::uint16_t>(keys / 2);
  return call;
}

cpu::BackwardCall make_call(const BackwardArgs& args, const AttentionShape& shape,
                            const Options& options, Arena& arena) {
  OperandMaker maker(arena, options.scale_rule);
  const bool bf16 = is_bf16(options);
  const Role q = dispatch::q_role(shape, options);
  const Role k = dispatch::k_role(shape, options, "k");
  const Role v = dispatch::k_role(shape, options, "v");
  const Role dout = dispatch::o_role(shape, "dout", dout_shape(options));
  cpu::BackwardCall call{.problem = shape.problem, .arithmetic = arithmetic(options)};
  call.q_k = bf16 ? maker.values(args.q, q) : maker.quantized(args.q, q);
  call.k_q = bf16 ? maker.values(args.k, k) : maker.quantized(args.k, k);
  call.q_s = options.qk_bf16 ? maker.values(args.q, q) : call.q_k;
  call.k_s = options.qk_bf16 ? maker.values(args.k, k) : call.k_q;
  const bool dp_values = bf16 || options.dp_bf16;
  call.v_p = dp_values ? maker.values(args.v, v) : maker.quantized(args.v, v);
  call.dout_v = bf16 ? maker.values(args.dout, dout) : maker.quantized(args.dout, dout);
  call.dout_p = options.dp_bf16 ? maker.values(args.dout, dout) : call.dout_v;
  call.o = maker.values(args.o, dispatch::o_role(shape, "o", {}));
  call.lse = dispatch::row_values(args.lse);
  if (call.arithmetic.hopper) call.row_max = dispatch::row_values(args.row_max);
  call.dq = dispatch::make_target(args.dq, gradient_role(q, options), options.scale_rule);
  call.dk = dispatch::make_target(args.dk, gradient_role(k, options), options.scale_rule);
  call.dv = dispatch::make_target(args.dv, gradient_role(v, options), options.scale_rule);
  if (args.delta.rank != 0) call.delta = dispatch::row_values(args.delta);
  call.dq_seq = dispatch::make_target({args.dq_seq, {}}, dispatch::o_role(shape, "dq_seq", {}),
                                      options.scale_rule);
  const std::int64_t sums = args.dq.given() ? cpu::dq_sums_elems(shape.problem) : 0;
  if (sums > 0) call.dq_sums = arena.take<float>(sums);
  const bool has_keys = args.dk.given() || args.dv.given();
  const std::int64_t key_sums = has_keys ? cpu::key_sums_elems(shape.problem) : 0;
  if (key_sums > 0) call.key_sums = arena.take<float>(key_sums);
  const std::int64_t shared = cpu::shared_query_bytes(shape.problem);
  if (shared > 0) call.shared_queries = arena.take<std::byte>(shared);
  return call;
}

ForwardArgs shape_args(const BackwardArgs& args) {
  return {.q = args.q,
          .k = args.k,
          .v = args.v,
          .cu_seqlens_q = args.cu_seqlens_q,
          .cu_seqlens_k = args.cu_seqlens_k};
}

void fill_behind(const TensorView& rows, std::int64_t first, float value) {
  if (rows.rank == 0) return;
  const cpu::RowValues values = dispatch::row_values(rows);
  for (std::int64_t head = 0; head < rows.shape[0]; ++head) {
    for (std::int64_t row = first; row < rows.shape[1]; ++row) {
      values.at(head, row) = value;
    }
  }
}

}  // namespace

BackwardArgs backward_args(const ForwardArgs& forward, const Tensor& dout) {
  return {.q = forward.q,
          .k = forward.k,
          .v = forward.v,
          .cu_seqlens_q = forward.cu_seqlens_q,
          .cu_seqlens_k = forward.cu_seqlens_k,
          .o = forward.o,
          .lse = forward.lse,
          .row_max = forward.row_max,
          .dout = dout};
}

BlockShape operand_shape(const Options& options) {
  if (options.leak_free) return BlockShape::k1xD;
  return dout_shape(options);
}

BlockShape dout_shape(const Options& options) {
  return options.recipe == Recipe::kHopper ? BlockShape::k32xD : BlockShape::k32x32;
}

std::int64_t forward_workspace_bytes(const ForwardArgs& args, const Options& options) {
  if (options.device != nullptr) return dispatch::device_forward_workspace_bytes(args, options);
  check_options(options);
  const AttentionShape shape(args, options);
  check_forward(args, shape, options);
  Arena counter;
  make_call(args, shape, options, counter);
  return counter.used();
}

std::int64_t backward_workspace_bytes(const BackwardArgs& args, const Options& options) {
  if (options.device != nullptr) return dispatch::device_backward_workspace_bytes(args, options);
  check_options(options);
  const AttentionShape shape(shape_args(args), options);
  check_backward(args, shape, options);
  Arena counter;
  make_call(args, shape, options, counter);
  return counter.used();
}

void forward(const ForwardArgs& args, const Options& options, std::span<std::byte> workspace) {
  if (options.device != nullptr) return dispatch::device_forward(args, options, workspace, {});
  check_options(options);
  const AttentionShape shape(args, options);
  check_forward(args, shape, options);
  dispatch::check_overlaps(args, workspace);
  core::with_workspace(
      workspace, [&](Arena& arena) { return make_call(args, shape, options, arena); },
      [&](const cpu::ForwardCall& call) { cpu::attention_forward(call); });
  dispatch::clear_behind(args.o, dispatch::o_role(shape, "o", options.output_shape));
  constexpr float kNoKey = -std::numeric_limits<float>::infinity();
  fill_behind(args.lse, shape.cu_seqlens_o.back(), kNoKey);
  fill_behind(args.row_max, shape.cu_seqlens_o.back(), kNoKey);
}

void prepare_forward(const ForwardArgs& args, const Options& options,
                     std::span<std::byte> workspace) {
  check_device(options);
  dispatch::device_forward(args, options, workspace, {.attend = false});
}

void forward_prepared(const ForwardArgs& args, const Options& options,
                      std::span<std::byte> workspace) {
  check_device(options);
  dispatch::device_forward(args, options, workspace, {.prepare = false});
}

void backward(const BackwardArgs& args, const Options& options, std::span<std::byte> workspace) {
  if (options.device != nullptr) return dispatch::device_backward(args, options, workspace, {});
  check_options(options);
  const AttentionShape shape(shape_args(args), options);
  check_backward(args, shape, options);
  dispatch::check_overlaps(args, workspace);
  core::with_workspace(
      workspace, [&](Arena& arena) { return make_call(args, shape, options, arena); },
      [&](const cpu::BackwardCall& call) { cpu::attention_backward(call); });
  const Role k = gradient_role(dispatch::k_role(shape, options, "dk"), options);
  dispatch::clear_behind(args.dq, gradient_role(dispatch::q_role(shape, options), options));
  dispatch::clear_behind(args.dk, k);
  dispatch::clear_behind(args.dv, k);
  dispatch::tile_scales(args.dk, args.dk_tiled, k);
  dispatch::tile_scales(args.dv, args.dv_tiled, k);
  fill_behind(args.delta, shape.cu_seqlens_o.back(), 0.0f);
}

void prepare_backward(const BackwardArgs& args, const Options& options,
                      std::span<std::byte> workspace) {
  check_device(options);
  dispatch::device_backward(args, options, workspace, {.attend = false});
}

void backward_prepared(const BackwardArgs& args, const Options& options,
                       std::span<std::byte> workspace) {
  check_device(options);
  dispatch::device_backward(args, options, workspace, {.prepare = false});
}

}  // namespace mxfa::attention
