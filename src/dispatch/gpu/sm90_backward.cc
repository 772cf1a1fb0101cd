#include "core/check.h"
#include "device/preparation.h"
#include "dispatch/gpu/architectures.h"
#include "dispatch/gpu/sm90_bf16_rows.h"
#include "dispatch/refuse.h"
#include "kernels/sm90/backward/launch.h"

namespace mxfa::dispatch {
namespace {

/// In bytes and elements, what BF16 rows lie on.
struct Alignment {
  int strides, address;
};

void check_lie(const DeviceRows& x, std::string_view name, const Alignment& alignment) {
  const auto [strides, address] = alignment;
  if (x.batch_stride != 0) {
    unsupported(name, "sequences side by side in a backward on sm_90a", "another batch stride");
  }
  core::expect(
      x.token_stride % strides == 0 && x.head_stride % strides == 0 &&
          reinterpret_cast<std::uintptr_t>(x.data()) % static_cast<unsigned>(address) == 0,
      name,
      core::later("strides that are multiples of {} and an address on {} bytes", strides, address),
      core::later("strides {}, {}, address {}", x.token_stride, x.head_stride, fmt::ptr(x.data())));
}

void check_o(const DeviceRows& x) {
  if (x.dtype() != DType::kBF16) {
    unsupported("o", "bf16 in a backward on sm_90a", dtype_name(x.dtype()));
  }
  check_lie(x, "o", {.strides = 4, .address = 8});
}

bool is_mxfp8(const DeviceRows& x) { return x.given() && x.dtype() == DType::kE4M3; }

/// dk and dv in MXFP8 are made from BF16, by the kernel that quantizes.
void check_gradient(const DeviceRows& x, std::string_view name, bool of_keys, int head_dim) {
  if (!x.given()) return;
  if (x.dtype() == DType::kF32) {
    unsupported(name, "bf16 or e4m3 in a backward on sm_90a", dtype_name(x.dtype()));
  }
  if (!is_mxfp8(x)) return check_lie(x, name, {.strides = 2, .address = 4});
  if (of_keys && head_dim % kScaleBlock != 0) {
    unsupported(name, "head_dim 32, 64, 96 or 128 in e4m3 on sm_90a", core::text(head_dim));
  }
  const int bytes = of_keys ? 8 : 4;
  check_lie(x, name, {.strides = bytes, .address = bytes});
}

void check_dials(const BackwardProblem& problem) {
  const attention::Options& options = problem.options;
  const device::OperandsSpec& spec = problem.operands;
  if (!options.qk_bf16 && !options.dp_bf16 && !options.leak_free) return;
  const std::string_view option = options.leak_free ? "leak_free"
                                  : options.qk_bf16 ? "qk_bf16"
                                                    : "dp_bf16";
  if (options.half_scores) {
    unsupported(option, "false beside half_scores in a backward on sm_90a", "true");
  }
  if (options.leak_free && (options.qk_bf16 || options.dp_bf16)) {
    unsupported(options.qk_bf16 ? "qk_bf16" : "dp_bf16",
                "false beside leak_free in a backward on sm_90a", "true");
  }
  if (options.dq_accum != DType::kF32) {
    unsupported("dq_accum", fmt::format("f32 on sm_90a where {} is set", option),
                dtype_name(options.dq_accum));
  }
  if (options.qk_bf16) {
    check_bf16_rows(spec.q, "q", spec.q_sequences, "qk_bf16");
    check_bf16_rows(spec.k, "k", spec.k_sequences, "qk_bf16");
  }
  if (options.dp_bf16) {
    check_bf16_rows(spec.v, "v", spec.k_sequences, "dp_bf16");
    check_bf16_rows(spec.dout, "dout", problem.o_sequences, "dp_bf16");
  }
}

sm90::backward::Product product_of(const attention::Options& options) {
  using enum sm90::backward::Product;
  if (options.leak_free) return kTokenScales;
  if (options.qk_bf16) return options.dp_bf16 ? kBf16 : kBf16S;
  return options.dp_bf16 ? kBf16Dp : kGroupScales;
}

void check(const BackwardProblem& problem) {
  const attention::Options& options = problem.options;
  check_dials(problem);
  for (const auto& [tensor, name] :
       {std::pair(&problem.args.delta, "delta"), std::pair(&problem.args.dq_seq, "dq_seq")}) {
    if (tensor->rank != 0) {
      unsupported(name, "none in a backward on sm_90a", core::text(*tensor));
    }
  }
  if (options.deterministic && !sm90::backward::dq_has_order(options.broadcast_q, problem.mask)) {
    unsupported("deterministic", "false on sm_90a where q is broadcast under a mask", "true");
  }
  core::expect(problem.args.row_max.rank != 0, "row_max", "the forward's, in the Hopper recipe",
               "none");
  check_row_max(problem.args.row_max, problem.args.lse);
  const int head_dim = problem.operands.head_dim;
  check_o(problem.o);
  check_gradient(problem.dq, "dq", false, head_dim);
  check_gradient(problem.dk, "dk", true, head_dim);
  check_gradient(problem.dv, "dv", true, head_dim);
}

sm90::backward::GradientOut gradient(const DeviceRows& x) {
  if (!x.given() || is_mxfp8(x)) return {};
  return {.data = static_cast<std::uint16_t*>(x.data()),
          .token_stride = x.token_stride,
          .head_stride = x.head_stride};
}

/// dk or dv in BF16 where it is wanted in MXFP8, else where it goes. Takes memory of `arena`.
sm90::backward::GradientOut key_gradient(const BackwardProblem& problem, const DeviceRows& x,
                                         core::Arena& arena) {
  if (!is_mxfp8(x)) return gradient(x);
  const device::OperandsSpec& spec = problem.operands;
  const std::int64_t width = std::int64_t{spec.num_heads_kv} * spec.head_dim;
  return {.data = arena.take<std::uint16_t>(spec.k_sequences.total * width),
          .token_stride = width,
          .head_stride = spec.head_dim};
}

/// A call in `memory`: operands, BF16 of what becomes MXFP8, then the kernels' own. Null: for the
/// size alone.
struct CallInMemory {
  sm90::backward::BackwardCall call;
  std::int64_t own_begin = 0;  ///< bytes before the kernels' own
};
CallInMemory call_of(const BackwardProblem& problem, void* memory,
                     const device::ClearBehindParams& behind) {
  const device::AttentionOperands operands = device::operands_in(problem.operands, memory);
  core::Arena arena = device::operand_arena(memory, device::kMemoryAlignment);
  arena.take<std::byte>(operands.bytes);
  const sm90::backward::GradientOut dk = key_gradient(problem, problem.dk, arena),
                                    dv = key_gradient(problem, problem.dv, arena);
  const attention::BackwardArgs& args = problem.args;
  const attention::Options& options = problem.options;
  const sm90::backward::BackwardCall call{
      .q = operands.q,
      .k = operands.k,
      .v = operands.v,
      .dout = operands.dout,
      .product = product_of(options),
      .q_bf16 = bf16_rows(problem.operands.q),
      .k_bf16 = bf16_rows(problem.operands.k),
      .v_bf16 = bf16_rows(problem.operands.v),
      .dout_bf16 = bf16_rows(problem.operands.dout),
      .broadcast_q = problem.operands.broadcast_q,
      .mask = problem.mask,
      .softmax_scale = problem.softmax_scale,
      .o = static_cast<const std::uint16_t*>(problem.o.data()),
      .o_token_stride = problem.o.token_stride,
      .o_head_stride = problem.o.head_stride,
      .lse = static_cast<const float*>(args.lse.data),
      .row_max = static_cast<const float*>(args.row_max.data),
      .lse_head_stride = args.lse.strides[0],
      .columns = problem.operands.head_dim,
      .dq = gradient(problem.dq),
      .dq_mxfp8 =
          is_mxfp8(problem.dq) ? mxfp8_rows(problem.dq, options.output_shape) : device::Mxfp8Rows{},
      .dk = dk,
      .dv = dv,
      .behind = behind,
      .scores = problem.operands.half_scores ? sm90::backward::Scores::kF16
                                             : sm90::backward::Scores::kF32,
      .dq_sums = options.dq_accum == DType::kF16 ? sm90::backward::DqSums::kF16
                                                 : sm90::backward::DqSums::kF32,
      .dq_exponent = options.dq_exponent,
      .deterministic = options.deterministic,
      .dq_overflows = static_cast<unsigned long long*>(args.dq_overflows.data),
      .workspace = arena.take<std::byte>(0)};
  return {call, arena.used()};
}

std::uint8_t* bytes_of(const TensorView& x) { return static_cast<std::uint8_t*>(x.data); }

/// What no sequence has of a tiled copy of dk's or dv's scales.
void clear_behind(const BackwardProblem& problem, const TensorView& tiled,
                  const device::JaggedOffsetsView& offsets) {
  if (tiled.rank == 0) return;
  device::clear_tiles_behind(problem.queue,
                             {.tiled = bytes_of(tiled),
                              .head_bytes = tiled.strides[0],
                              .offsets = offsets,
                              .num_heads = problem.operands.num_heads_kv,
                              .head_dim = problem.operands.head_dim},
                             tiled.shape[1]);
}

/// dk or dv from the BF16 that a call has left.
void quantize_gradient(const BackwardProblem& problem, const DeviceRows& x,
                       const attention::TiledScales& tiled, const sm90::backward::GradientOut& from,
                       const device::JaggedOffsetsView& offsets) {
  if (!is_mxfp8(x)) return;
  clear_behind(problem, tiled.head_dim, offsets);
  clear_behind(problem, tiled.tokens, offsets);
  const device::OperandsSpec& spec = problem.operands;
  const device::Sequences& keys = spec.k_sequences;
  const device::Mxfp8Rows out = mxfp8_rows(x, problem.options.output_shape);
  device::quantize(problem.queue,
                   {.input = {.data = from.data,
                              .dtype = DType::kBF16,
                              .row_stride = from.token_stride,
                              .head_stride = from.head_stride,
                              .batch_stride = keys.seqlen * from.token_stride,
                              .rows = offsets.dense() ? keys.seqlen : keys.total,
                              .head_dim = spec.head_dim},
                    .codes = out.codes,
                    .codes_row_stride = out.token_stride,
                    .codes_head_stride = out.head_stride,
                    .compact = out.scales,
                    .compact_strides = {.row = out.scale_row_stride, .head = out.scale_head_stride},
                    .tiled_dim = bytes_of(tiled.head_dim),
                    .dim_strides = {.head_bytes = tiled.head_dim.strides[0]},
                    .tiled_tokens = bytes_of(tiled.tokens),
                    .token_strides = {.head_bytes = tiled.tokens.strides[0]},
                    .offsets = offsets,
                    .num_heads = spec.num_heads_kv,
                    .head_dim = spec.head_dim,
                    .block_shape = out.block_shape},
                   mx::max_tiles(keys.total, keys.batch));
}

std::int64_t workspace_bytes(const BackwardProblem& problem) {
  const CallInMemory call = call_of(problem, nullptr, {});
  return call.own_begin + sm90::backward::backward_workspace_bytes(problem.queue.device, call.call);
}

void prepare(const BackwardProblem& problem, void* workspace) {
  device::prepare_operands(problem.queue, problem.operands, workspace);
}

void attend(const BackwardProblem& problem, void* workspace,
            const device::ClearBehindParams& behind) {
  const sm90::backward::BackwardCall call = call_of(problem, workspace, behind).call;
  sm90::backward::attention_backward(problem.queue, call);
  const attention::BackwardArgs& args = problem.args;
  quantize_gradient(problem, problem.dk, args.dk_tiled, call.dk, call.k.offsets);
  quantize_gradient(problem, problem.dv, args.dv_tiled, call.dv, call.k.offsets);
}

}  // namespace

const BackwardKernels kSm90Backward{check, workspace_bytes, prepare, attend};

}  // namespace mxfa::dispatch
