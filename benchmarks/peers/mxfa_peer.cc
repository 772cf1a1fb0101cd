#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "mxfa/mxfa.h"

/// mxfa's forward for run.py, by ctypes, on PyTorch's own tensors and stream.
namespace {

thread_local std::string failure;

struct Call {
  mxfa::attention::ForwardArgs args;
  mxfa::attention::Options options;
};

}  // namespace

extern "C" {

struct MxfaPeerShape {
  std::int64_t batch, num_heads, seqlen_q, seqlen_k, total_k, head_dim;
  std::int64_t jagged, causal;
  std::int64_t variant;  ///< 0 none, 1 half_scores, 2 qk_bf16, 3 leak_free
};
/// BF16 q, o [tokens, num_heads, head_dim], k, v likewise; lse FP32 [num_heads, total_q]; offsets
/// int32 [batch + 1].
struct MxfaPeerTensors {
  void *q, *k, *v, *o, *lse, *cu_seqlens_q, *cu_seqlens_k;
};

/// Why the last call of this thread failed.
const char* mxfa_peer_failure() { return failure.c_str(); }

/// Null where it fails.
void* mxfa_peer_open(int ordinal) {
  try {
    return new mxfa::Device({.ordinal = ordinal, .emulated_arch = {}, .library = {}});
  } catch (const std::exception& error) {
    failure = error.what();
    return nullptr;
  }
}

/// Null where it fails. It lives until the program ends, as the device does.
void* mxfa_peer_call(void* device, void* stream, const MxfaPeerShape* shape,
                     const MxfaPeerTensors* tensors) {
  try {
    using mxfa::DType;
    using mxfa::make_tensor;
    const MxfaPeerShape& s = *shape;
    const std::int64_t total_q = s.batch * s.seqlen_q;
    const auto tensor = [&](void* data, std::int64_t tokens, std::int64_t seqlen) {
      return mxfa::Tensor{
          s.jagged != 0
              ? make_tensor(data, DType::kBF16, {tokens, s.num_heads, s.head_dim})
              : make_tensor(data, DType::kBF16, {s.batch, seqlen, s.num_heads, s.head_dim}),
          {}};
    };
    auto call = std::make_unique<Call>();
    call->args.q = tensor(tensors->q, total_q, s.seqlen_q);
    call->args.k = tensor(tensors->k, s.total_k, s.seqlen_k);
    call->args.v = tensor(tensors->v, s.total_k, s.seqlen_k);
    call->args.o = tensor(tensors->o, total_q, s.seqlen_q);
    call->args.lse = make_tensor(tensors->lse, DType::kF32, {s.num_heads, total_q});
    if (s.jagged != 0) {
      call->args.cu_seqlens_q = make_tensor(tensors->cu_seqlens_q, DType::kI32, {s.batch + 1});
      call->args.cu_seqlens_k = make_tensor(tensors->cu_seqlens_k, DType::kI32, {s.batch + 1});
    }
    call->options.device = static_cast<const mxfa::Device*>(device);
    call->options.stream = stream;
    call->options.recipe = mxfa::attention::native_recipe(*call->options.device);
    call->options.causal = s.causal != 0;
    call->options.half_scores = s.variant == 1;
    call->options.qk_bf16 = s.variant == 2;
    call->options.leak_free = s.variant == 3;
    return call.release();
  } catch (const std::exception& error) {
    failure = error.what();
    return nullptr;
  }
}

/// -1 where it fails.
std::int64_t mxfa_peer_workspace_bytes(void* call) {
  try {
    const auto& own = *static_cast<const Call*>(call);
    return mxfa::attention::forward_workspace_bytes(own.args, own.options);
  } catch (const std::exception& error) {
    failure = error.what();
    return -1;
  }
}

/// phase: 0 the whole call, 1 preparation, 2 attention on prepared operands. 0 where it succeeds.
int mxfa_peer_run(void* call, void* workspace, std::int64_t bytes, int phase) {
  try {
    const auto& own = *static_cast<const Call*>(call);
    const std::span memory(static_cast<std::byte*>(workspace), static_cast<std::size_t>(bytes));
    if (phase == 0) mxfa::attention::forward(own.args, own.options, memory);
    if (phase == 1) mxfa::attention::prepare_forward(own.args, own.options, memory);
    if (phase == 2) mxfa::attention::forward_prepared(own.args, own.options, memory);
    return 0;
  } catch (const std::exception& error) {
    failure = error.what();
    return 1;
  }
}

}  // extern "C"
