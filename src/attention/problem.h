#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "attention/mask.h"
#include "attention/seqlen.h"
#include "core/check.h"
#include "core/seqlens.h"

/// What one attention call computes, independent of the machine. Host only.
namespace mxfa::attention {

/// Head dimensions that kernels have; smaller ones are padded with zero columns.
inline constexpr std::int64_t kNativeHeadDims[] = {64, 128};
inline constexpr std::int64_t kHeadDimMultiple = 8;

/// Of sums of dQ * 2^exponent.
inline constexpr std::string_view kDqExponents = "-64 to 64";
constexpr bool is_dq_exponent(std::int32_t exponent) { return exponent >= -64 && exponent <= 64; }

/// Shapes: q, dq [total_q, num_heads, head_dim]; k, v, dk, dv [total_k, num_heads_kv, head_dim];
/// o, dout [rows_o, num_heads, head_dim]; lse [num_heads, rows_o]. Query head h reads the kv head
/// h / heads_per_kv. rows_o is total_q, or batch * total_q where q is broadcast.
struct AttentionProblem {
  std::int64_t batch = 0;
  std::int64_t num_heads = 1;
  std::int64_t num_heads_kv = 1;
  std::int64_t head_dim = 0;
  std::int64_t head_dim_v = 0;  ///< 0 = head_dim; nothing else is supported
  std::int64_t total_q = 0;
  std::int64_t total_k = 0;
  std::span<const std::int32_t> cu_seqlens_q = {};  ///< [batch + 1]; empty where broadcast_q
  std::span<const std::int32_t> cu_seqlens_k = {};  ///< [batch + 1]
  std::int64_t max_seqlen_q = -1;                   ///< longest sequence, -1 = not stated
  std::int64_t max_seqlen_k = -1;
  /// q holds one sequence of total_q rows that every sequence of the batch reads; dq is summed
  /// over the batch.
  bool broadcast_q = false;
  Mask mask = {};
  std::optional<double> softmax_scale = {};  ///< default 1 / sqrt(head_dim), of the unpadded one

  std::int64_t heads_per_kv() const { return num_heads / num_heads_kv; }
  std::int64_t rows_o() const { return broadcast_q ? batch * total_q : total_q; }
  double scale() const {
    return softmax_scale.value_or(1.0 / std::sqrt(static_cast<double>(head_dim)));
  }
  Seqlens seqlens() const {
    return {.cu_seqlens_q = broadcast_q ? nullptr : cu_seqlens_q.data(),
            .cu_seqlens_k = cu_seqlens_k.data(),
            .broadcast_seqlen_q = broadcast_q ? total_q : 0};
  }
};

/// The native head dimension that `head_dim` is padded to; Error(kUnsupported) where there is none.
inline std::int64_t padded_head_dim(std::int64_t head_dim) {
  if (head_dim > 0 && head_dim % kHeadDimMultiple == 0) {
    for (const std::int64_t native : kNativeHeadDims) {
      if (head_dim <= native) return native;
    }
  }
  throw Error(ErrorKind::kUnsupported,
              fmt::format("head_dim: expected 64 or 128, or a multiple of {} up to 128, got {}",
                          kHeadDimMultiple, head_dim));
}

namespace internal {

inline void validate_heads(const AttentionProblem& problem) {
  core::expect(problem.num_heads >= 1, "num_heads", "at least 1", problem.num_heads);
  core::expect(problem.num_heads_kv >= 1, "num_heads_kv", "at least 1", problem.num_heads_kv);
  core::expect(problem.num_heads % problem.num_heads_kv == 0, "num_heads",
               core::later("a multiple of num_heads_kv = {}", problem.num_heads_kv),
               problem.num_heads);
  padded_head_dim(problem.head_dim);
  if (problem.head_dim_v != 0 && problem.head_dim_v != problem.head_dim) {
    throw Error(ErrorKind::kUnsupported, fmt::format("head_dim_v: expected head_dim = {}, got {}",
                                                     problem.head_dim, problem.head_dim_v));
  }
}

inline void validate_lengths(const AttentionProblem& problem) {
  core::expect(problem.batch >= 0, "batch", "at least 0", problem.batch);
  core::expect(problem.total_q >= 0, "total_q", "at least 0", problem.total_q);
  core::expect(problem.total_k >= 0, "total_k", "at least 0", problem.total_k);
  const std::string offsets = fmt::format("batch + 1 = {} offsets", problem.batch + 1);
  const auto expect_count = [&](std::span<const std::int32_t> cu_seqlens, std::string_view name) {
    core::expect(std::int64_t(cu_seqlens.size()) == problem.batch + 1, name, offsets,
                 std::int64_t(cu_seqlens.size()));
  };
  if (problem.broadcast_q) {
    core::expect(problem.cu_seqlens_q.empty(), "cu_seqlens_q", "none where q is broadcast",
                 std::int64_t(problem.cu_seqlens_q.size()));
    core::expect(problem.max_seqlen_q < 0 || problem.max_seqlen_q >= problem.total_q,
                 "max_seqlen_q", core::later("at least {}", problem.total_q), problem.max_seqlen_q);
  } else {
    expect_count(problem.cu_seqlens_q, "cu_seqlens_q");
    core::check_cu_seqlens(problem.cu_seqlens_q, "cu_seqlens_q", problem.total_q,
                           problem.max_seqlen_q);
  }
  expect_count(problem.cu_seqlens_k, "cu_seqlens_k");
  core::check_cu_seqlens(problem.cu_seqlens_k, "cu_seqlens_k", problem.total_k,
                         problem.max_seqlen_k);
}

inline void validate_mask(const AttentionProblem& problem) {
  const Mask& mask = problem.mask;
  core::expect(mask.window_left >= -1, "window_left", "at least -1", mask.window_left);
  core::expect(mask.window_right >= -1, "window_right", "at least -1", mask.window_right);
  core::expect(std::isfinite(problem.scale()) && problem.scale() > 0, "softmax_scale",
               "a finite number above 0", core::later("{}", problem.scale()));
  core::expect(problem.scale() >= 0x1p-120 && problem.scale() <= 0x1p120, "softmax_scale",
               "2^-120 to 2^120, which FP32 holds", core::later("{}", problem.scale()));
}

}  // namespace internal

/// Throws Error naming the argument, what was expected and what came, where the problem is
/// malformed (kInvalidArgument) or of a kind that the library does not have (kUnsupported).
inline void validate(const AttentionProblem& problem) {
  internal::validate_heads(problem);
  internal::validate_lengths(problem);
  internal::validate_mask(problem);
}

}  // namespace mxfa::attention
