#pragma once

#include <string_view>

#include "attention/problem.h"
#include "core/check.h"
#include "mxfa/attention.h"

namespace mxfa::dispatch {

/// Throws Error naming an option that is no member of its enum.
inline void check_members(const attention::Options& options) {
  using attention::Precision, attention::Recipe;
  const auto check = [](bool is_member, std::string_view name, std::string_view members,
                        auto value) {
    core::expect(is_member, name, members, static_cast<std::int64_t>(value));
  };
  check(options.precision == Precision::kMxfp8 || options.precision == Precision::kBf16,
        "precision", "mxfp8 or bf16", options.precision);
  check(options.recipe == Recipe::kBlackwell || options.recipe == Recipe::kHopper, "recipe",
        "blackwell or hopper", options.recipe);
  check(options.scale_rule <= ScaleRule::kFloor, "scale_rule", "round-up or floor",
        options.scale_rule);
  check(options.causal_alignment <= CausalAlignment::kTopLeft, "causal_alignment",
        "bottom-right or top-left", options.causal_alignment);
  check(options.output_shape <= BlockShape::k1xD, "output_shape", "a member of BlockShape",
        options.output_shape);
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
