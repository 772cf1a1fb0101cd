#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/progress.h"
#include "module/step.h"

/// What `mxfa module` measures: times and memory of a step, and MXFP8's error against BF16.
namespace mxfa::cli::module {

/// Throws Error that says how much memory a batch of these sizes takes, where that is more than the
/// machine has; before anything of it is drawn. It names the option that differs from the preset's
/// and costs the most, or the batch where none does.
void check_memory(const reference::CrossAttentionBatchOptions& sizes,
                  const reference::CrossAttentionBatchOptions& preset);

struct Times {
  std::vector<double> forward_ms, backward_ms;  ///< of each run
};

struct StepMeasurement {
  std::string precision;  ///< "mxfp8" or "bf16"
  Times times;
  StepBytes bytes;
  /// Largest resident memory while the step ran, without what was there before but the inputs;
  /// none where the system does not tell.
  std::optional<std::int64_t> peak_bytes;
};

/// Runs that measure() makes at most; it stops after the one in which kEnoughSeconds have passed.
inline constexpr int kMostRuns = 3;
inline constexpr double kEnoughSeconds = 15;

/// Advances `progress` by kMostRuns.
StepMeasurement measure(const reference::CrossAttentionBatch& batch,
                        const cross_attention::Options& options, io::Progress& progress);

enum class Verdict : std::uint8_t { kPass, kBorderline, kFail };
std::string_view verdict_name(Verdict verdict);

struct TensorError {
  std::string_view name;
  double db = 0;
  double bar = 0;
  Verdict verdict = Verdict::kPass;
  /// Of a tensor that is zero but for rounding: it has no SQNR, passes or fails by its size.
  bool is_zero = false;
};
/// 10 log10(sum bf16^2 / sum (bf16 - mxfp8)^2) of the 24 tensors of one step each. Values that are
/// infinite in both (lse of a row without keys) are left out. Advances `progress` by 2.
std::vector<TensorError> compare(const reference::CrossAttentionBatch& batch,
                                 const cross_attention::Options& mxfp8, io::Progress& progress);
Verdict judge(double db, double bar);

/// Multiplications and additions of the step's products, forward and backward.
struct Flops {
  double forward = 0;
  double backward = 0;
};
Flops count_flops(const reference::CrossAttentionBatch& batch);

}  // namespace mxfa::cli::module
