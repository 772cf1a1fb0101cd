#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/attention_case.h"

/// Accuracy of what was timed, against the oracle in double precision.
namespace mxfa::bench {

/// Inputs and outputs of a call, BF16, packed row-major: q, o, dout, dq [total_q, num_heads,
/// head_dim], k, v, dk, dv [total_k, num_heads_kv, head_dim]. Outputs that were not computed are
/// empty.
struct AttentionOperands {
  std::span<const std::uint16_t> q, k, v, dout;
  std::span<const std::uint16_t> o, dq, dk, dv;
};

/// SQNR in dB of each output given, by its name. Measured on the first kv head of the longest
/// sequence (with all its query heads) that has at most `max_pairs` (query, key) pairs; where none
/// has, on as many of the last rows of the shortest one, and without dk and dv.
std::vector<std::pair<std::string, double>> sqnr_db(const AttentionCase& c,
                                                    const AttentionOperands& tensors,
                                                    std::int64_t max_pairs);

}  // namespace mxfa::bench
