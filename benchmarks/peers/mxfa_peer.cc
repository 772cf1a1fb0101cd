#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "mxfa/mxfa.h"

/// mxfa's forward and backward for run.py, by ctypes, on PyTorch's own tensors and stream.
struct MxfaPeerShape {
  std::int64_t batch, num_heads, seqlen_q, seqlen_k, total_k, head_dim;
  std::int64_t jagged, causal;
  std::int64_t backward;
  /// Forward: 0 none, 1 half_scores, 2 qk_bf16, 3 leak_free, 4 leak_free with half_scores.
  /// Backward, of dq's sums: 0 FP32, 1 FP16, 2 deterministic; 3 and 4: 0 and 1 with half_scores.
  std::int64_t variant;
};
/// BF16 q, o, dout, dq [tokens, num_heads, head_dim], k, v, dk, dv likewise; lse, row_max FP32
/// [num_heads, total_q]; offsets int32 [batch + 1]. The last four: of a backward only.
struct MxfaPeerTensors {
  void *q, *k, *v, *o, *lse, *row_max, *cu_seqlens_q, *cu_seqlens_k;
  void *dout, *dq, *dk, *dv;
};

namespace {

thread_local std::string failure;

struct Call {
  bool backward = false;
  mxfa::attention::ForwardArgs forward_args;
  mxfa::attention::BackwardArgs backward_args;
  mxfa::attention::Options options;
};

/// What `body` returns, or `failed` where it throws.
template <class Body>
auto guarded(Body body, decltype(body()) failed) {
  try {
    return body();
  } catch (const std::exception& error) {
    failure = error.what();
    return failed;
  }
}

/// Packed where jagged, else [batch, seqlen, num_heads, head_dim].
mxfa::Tensor tensor_of(const MxfaPeerShape& s, void* data, bool of_queries) {
  using mxfa::make_tensor;
  const std::int64_t seqlen = of_queries ? s.seqlen_q : s.seqlen_k;
  const std::int64_t tokens = of_queries ? s.batch * s.seqlen_q : s.total_k;
  if (s.jagged != 0) {
    return {make_tensor(data, mxfa::DType::kBF16, {tokens, s.num_heads, s.head_dim})};
  }
  return {make_tensor(data, mxfa::DType::kBF16, {s.batch, seqlen, s.num_heads, s.head_dim})};
}

Call make_call(void* device, void* stream, const MxfaPeerShape& s, const MxfaPeerTensors& t) {
  using mxfa::DType;
  using mxfa::make_tensor;
  const auto rows = [&](void* data) {
    return make_tensor(data, DType::kF32, {s.num_heads, s.batch * s.seqlen_q});
  };
  Call call;
  call.backward = s.backward != 0;
  mxfa::attention::ForwardArgs& args = call.forward_args;
  args = {.q = tensor_of(s, t.q, true),
          .k = tensor_of(s, t.k, false),
          .v = tensor_of(s, t.v, false),
          .o = tensor_of(s, t.o, true),
          .lse = rows(t.lse),
          .row_max = rows(t.row_max)};
  if (s.jagged != 0) {
    args.cu_seqlens_q = make_tensor(t.cu_seqlens_q, DType::kI32, {s.batch + 1});
    args.cu_seqlens_k = make_tensor(t.cu_seqlens_k, DType::kI32, {s.batch + 1});
  }
  call.backward_args = mxfa::attention::backward_args(args, tensor_of(s, t.dout, true));
  call.backward_args.dq = tensor_of(s, t.dq, true);
  call.backward_args.dk = tensor_of(s, t.dk, false);
  call.backward_args.dv = tensor_of(s, t.dv, false);
  mxfa::attention::Options& options = call.options;
  options.device = static_cast<const mxfa::Device*>(device);
  options.stream = stream;
  options.recipe = mxfa::attention::native_recipe(*options.device);
  options.causal = s.causal != 0;
  if (call.backward) {
    options.dq_accum = s.variant == 1 || s.variant == 4 ? DType::kF16 : DType::kF32;
    options.deterministic = s.variant == 2;
    options.half_scores = s.variant >= 3;
  } else {
    options.half_scores = s.variant == 1 || s.variant == 4;
    options.qk_bf16 = s.variant == 2;
    options.leak_free = s.variant >= 3;
  }
  return call;
}

}  // namespace

extern "C" {

/// Why the last call of this thread failed.
const char* mxfa_peer_failure() { return failure.c_str(); }

/// Null where it fails.
void* mxfa_peer_open(int ordinal) {
  return guarded([&]() -> void* { return new mxfa::Device({.ordinal = ordinal}); }, nullptr);
}

/// Null where it fails. It lives until the program ends, as the device does.
void* mxfa_peer_call(void* device, void* stream, const MxfaPeerShape* shape,
                     const MxfaPeerTensors* tensors) {
  return guarded([&]() -> void* { return new Call(make_call(device, stream, *shape, *tensors)); },
                 nullptr);
}

/// -1 where it fails.
std::int64_t mxfa_peer_workspace_bytes(void* call) {
  const auto& own = *static_cast<const Call*>(call);
  return guarded(
      [&] {
        return own.backward
                   ? mxfa::attention::backward_workspace_bytes(own.backward_args, own.options)
                   : mxfa::attention::forward_workspace_bytes(own.forward_args, own.options);
      },
      std::int64_t{-1});
}

/// phase: 0 the whole call, 1 preparation, 2 attention on prepared operands. 0 where it succeeds.
int mxfa_peer_run(void* call, void* workspace, std::int64_t bytes, int phase) {
  using namespace mxfa::attention;
  const auto& own = *static_cast<const Call*>(call);
  const std::span memory(static_cast<std::byte*>(workspace), static_cast<std::size_t>(bytes));
  constexpr decltype(&forward) kForward[] = {forward, prepare_forward, forward_prepared};
  constexpr decltype(&backward) kBackward[] = {backward, prepare_backward, backward_prepared};
  return guarded(
      [&] {
        if (own.backward) {
          kBackward[phase](own.backward_args, own.options, memory);
        } else {
          kForward[phase](own.forward_args, own.options, memory);
        }
        return 0;
      },
      1);
}

}  // extern "C"
