#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "io/json_records.h"
#include "mxfa/device.h"

/// Accuracy of attention forward on a device, with bars that it passes or fails.
namespace mxfa::bench {

struct SqnrOptions {
  std::vector<std::int64_t> seqlens_k = {1024, 2048, 4096, 8192, 16384};
  std::int64_t max_pairs = 512 * 1024;  ///< (query, key) pairs of a case
  std::vector<bool> half_scores = {false, true};
  double slack_db = 1;  ///< how far the bars of o lie below what they are taken from
};

/// Two records for each of the datasets normal, diffuse, rmsnorm, sink and vbias
/// (reference/datasets.h), number of keys and kind of scores: of a dense call, so small that CTAs
/// may divide its keys, and of a jagged one, in which a CTA walks all of them, as in a large call.
/// In a record's `sqnr`:
///   o_kern  against attention in float64 on the dequantized operands. Bar: slack_db below what the
///           recipe reaches on the same operands (reference/recipe), and with 4096 keys and FP32
///           scores also slack_db below the figure of docs/numerics.md (sqnr_bar())
///   o_f64   likewise on the BF16 inputs, without such a figure
/// and in its further fields lse_recipe_relative (to the LSE of the recipe, which has the kernel's
/// own S; bar 2e-5, kHalfScoresLse with half scores) and lse_f64_relative (against float64; bar
/// twice what the recipe is off, and with half scores kHalfScoresLse more), each as
/// {value, bar, verdict}: the largest |difference| / max(1, |lse|) of a row.
std::vector<io::Record> sqnr_records(const Device& device, const SqnrOptions& options,
                                     const std::function<void()>& done);

/// Whether every verdict of these records is "pass".
bool all_pass(const std::vector<io::Record>& records);

}  // namespace mxfa::bench
