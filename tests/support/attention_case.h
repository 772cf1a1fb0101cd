#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "attention/problem.h"
#include "support/compare.h"

/// An attention problem with its inputs and right answers, and how a backend's result is held
/// against them. The list of problems is in support/cases.h.
namespace mxfa::testing {

/// The right value of one tensor, packed as in AttentionProblem. It may be shorter than the tensor:
/// rows behind the last sequence are not compared.
struct Answer {
  std::vector<double> values;
  double relative = 0;  ///< what quantization to MXFP8 may cost; 0 = exact but for output rounding
  double floor = std::numeric_limits<double>::min();  ///< magnitudes below count as this
};

struct AttentionCase {
  std::int64_t num_heads = 1;
  std::int64_t num_heads_kv = 1;
  std::int64_t head_dim = 32;
  std::vector<std::int32_t> cu_seqlens_q{0};
  std::vector<std::int32_t> cu_seqlens_k{0};
  std::int64_t slack_rows_k = 0;  ///< rows of k and v behind the last sequence
  std::int64_t max_seqlen_k = -1;
  attention::Mask mask = {};
  std::optional<double> softmax_scale = {};
  std::vector<float> q = {}, k = {}, v = {}, dout = {};
  /// A tensor without an answer must be finite.
  std::optional<Answer> o = {}, lse = {}, dq = {}, dk = {}, dv = {};
  /// Where not empty, the call must be refused with a message that holds all of these.
  std::vector<std::string> refusal = {};

  std::int64_t total_q() const { return cu_seqlens_q.back(); }
  std::int64_t total_k() const { return cu_seqlens_k.back() + slack_rows_k; }
  attention::AttentionProblem problem() const {
    return {.batch = std::int64_t(cu_seqlens_q.size()) - 1,
            .num_heads = num_heads,
            .num_heads_kv = num_heads_kv,
            .head_dim = head_dim,
            .total_q = total_q(),
            .total_k = refusal.empty() ? total_k() : std::int64_t(k.size()) / width_k(),
            .cu_seqlens_q = cu_seqlens_q,
            .cu_seqlens_k = cu_seqlens_k,
            .max_seqlen_k = max_seqlen_k,
            .mask = mask,
            .softmax_scale = softmax_scale};
  }
  std::int64_t width_q() const { return num_heads * head_dim; }
  std::int64_t width_k() const { return num_heads_kv * head_dim; }
};

/// What a backend computes in: one relative rounding of its output dtype, and whether MXFP8
/// operands allow it an Answer's `relative` as well.
struct Precision {
  double rounding = 0;
  bool quantized = false;
};

/// `got` starts with the answer's values; without an answer it is finite everywhere.
template <class T>
::testing::AssertionResult matches(const std::vector<T>& got, const std::optional<Answer>& answer,
                                   Precision precision, const std::string& label) {
  if (!answer) {
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (std::isfinite(static_cast<double>(got[i]))) continue;
      return ::testing::AssertionFailure()
             << fmt::format("{}: index {} is {}, want a finite value", label, i, got[i]);
    }
    return ::testing::AssertionSuccess();
  }
  if (got.size() < answer->values.size()) {
    return ::testing::AssertionFailure() << fmt::format("{}: size {}, want at least {}", label,
                                                        got.size(), answer->values.size());
  }
  const std::vector<T> leading(got.begin(), got.begin() + std::ptrdiff_t(answer->values.size()));
  const double allowance = precision.quantized ? answer->relative : 0;
  return expect_close(leading, answer->values,
                      {.metric = Metric::kMaxRel,
                       .limit = std::max(allowance, precision.rounding),
                       .floor = answer->floor},
                      {.label = label});
}

}  // namespace mxfa::testing
