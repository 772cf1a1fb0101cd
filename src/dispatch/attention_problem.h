#pragma once

#include "attention/problem.h"
#include "core/check.h"
#include "dispatch/members.h"
#include "mxfa/attention.h"

namespace mxfa::dispatch {

/// Throws Error naming an option that is no member of its enum.
inline void check_members(const attention::Options& options) {
  check_member(options.precision, "precision");
  check_member(options.recipe, "recipe");
  check_member(options.scale_rule, "scale_rule");
  check_member(options.causal_alignment, "causal_alignment");
  check_member(options.output_shape, "output_shape");
  check_member(options.p_scale, "p_scale");
  check_member(options.dq_accum, "dq_accum");
}

/// Of a backward.
inline void check_dq_exponent(const attention::Options& options) {
  core::expect(attention::is_dq_exponent(options.dq_exponent), "dq_exponent",
               attention::kDqExponents, options.dq_exponent);
}

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
