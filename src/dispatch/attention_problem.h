#pragma once

#include "attention/problem.h"
#include "mxfa/attention.h"

namespace mxfa::dispatch {

/// What shapes and options say of a call. q and k: [.., heads, head_dim]. Lengths are left to the
/// caller.
inline attention::AttentionProblem problem_of(const TensorView& q, const TensorView& k,
                                              const attention::Options& options) {
  return {.num_heads = q.shape[q.rank - 2],
          .num_heads_kv = k.shape[k.rank - 2],
          .head_dim = q.shape[q.rank - 1],
          .max_seqlen_q = options.max_seqlen_q,
          .max_seqlen_k = options.max_seqlen_k,
          .broadcast_q = options.broadcast_q,
          .mask = {.causal = options.causal,
                   .alignment = options.causal_alignment,
                   .window_left = options.window_left,
                   .window_right = options.window_right},
          .softmax_scale = options.softmax_scale};
}

}  // namespace mxfa::dispatch
