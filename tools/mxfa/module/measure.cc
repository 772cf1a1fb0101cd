#include "module/measure.h"

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <map>

#include "core/check.h"
#include "module/presets.h"
#include "module/zero_gradients.h"
#include "reference/sqnr.h"

namespace mxfa::cli::module {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// A line of /proc/self/status in bytes.
std::optional<std::int64_t> memory_status(std::string_view key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(key, 0) == 0) return std::stoll(line.substr(key.size() + 1)) * 1024;
  }
  return std::nullopt;
}
/// Makes VmHWM count from now; false where the system refuses.
bool reset_peak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good();
}

double bar_of(std::string_view tensor) {
  for (const Bar& bar : kBars) {
    if (bar.tensor == tensor) return bar.db;
  }
  throw Error(ErrorKind::kInvalidArgument, fmt::format("tensor: {} has no bar", tensor));
}

/// With one key, lse is its score: the products of q and k, whose errors add up.
double bar_of_one_score() {
  const auto noise = [](double db) { return std::pow(10, -db / 10); };
  return -10 * std::log10(noise(bar_of("q")) + noise(bar_of("k")));
}

/// Of the inputs and one step with its gradients and intermediates, for each element of a tensor as
/// long as the keys, the outputs, or a projection: 2 (BF16), activations 6, gradients up to 16.
constexpr double kBytesOfElement = 24;

/// In double, which no size overflows.
double bytes_of_step(const reference::CrossAttentionBatchOptions& sizes) {
  const auto dim = static_cast<double>(sizes.dim), batch = static_cast<double>(sizes.batch);
  const double keys = batch * static_cast<double>(sizes.max_seqlen_k) * (1 - sizes.sparsity);
  const double rows = batch * static_cast<double>(sizes.seqlen_q);
  return kBytesOfElement * dim * (keys + rows + 4 * dim) + 8 * batch;
}

}  // namespace

void check_memory(const reference::CrossAttentionBatchOptions& sizes,
                  const reference::CrossAttentionBatchOptions& preset) {
  const double needed = bytes_of_step(sizes);
  const double present =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  if (needed <= present) return;
  std::string_view option = "batch";
  double least = needed;
  const auto blame = [&](std::string_view name, auto member) {
    reference::CrossAttentionBatchOptions without = sizes;
    without.*member = preset.*member;
    const double bytes = bytes_of_step(without);
    if (bytes >= least) return;
    least = bytes;
    option = name;
  };
  using Sizes = reference::CrossAttentionBatchOptions;
  blame("batch", &Sizes::batch);
  blame("seed-queries", &Sizes::seqlen_q);
  blame("dim", &Sizes::dim);
  blame("max-kv", &Sizes::max_seqlen_k);
  blame("sparsity", &Sizes::sparsity);
  core::expect(
      false, option, fmt::format("sizes whose step fits the machine's {:.0f} GB", present * 1e-9),
      fmt::format("{} sequences of up to {} keys, {} seed queries, dim {}, which take about "
                  "{:.3g} GB",
                  sizes.batch, sizes.max_seqlen_k, sizes.seqlen_q, sizes.dim, needed * 1e-9));
}

StepMeasurement measure(const reference::CrossAttentionBatch& batch,
                        const cross_attention::Options& options, io::Progress& progress) {
  StepMeasurement result;
  result.precision = options.precision == attention::Precision::kBf16 ? "bf16" : "mxfp8";
  const bool peak_known = reset_peak();
  const std::optional<std::int64_t> before = memory_status("VmRSS:");
  Step step(batch, options, false);
  result.bytes = step.bytes();
  const Clock::time_point start = Clock::now();
  for (int run = 0; run < kMostRuns; ++run) {
    if (run == 0 || ms_since(start) < 1000 * kEnoughSeconds) {
      const Clock::time_point forward = Clock::now();
      step.forward();
      result.times.forward_ms.push_back(ms_since(forward));
      const Clock::time_point backward = Clock::now();
      step.backward();
      result.times.backward_ms.push_back(ms_since(backward));
    }
    progress.advance();
  }
  const std::optional<std::int64_t> peak = memory_status("VmHWM:");
  if (peak_known && peak && before) result.peak_bytes = *peak - *before + result.bytes.inputs;
  return result;
}

std::vector<TensorError> compare(const reference::CrossAttentionBatch& batch,
                                 const cross_attention::Options& mxfp8, io::Progress& progress) {
  cross_attention::Options bf16 = mxfp8;
  bf16.precision = attention::Precision::kBf16;
  Step truth(batch, bf16, true), step(batch, mxfp8, true);
  for (Step* one : {&truth, &step}) {
    one->forward();
    one->backward();
    progress.advance();
  }
  const std::vector<StepTensor> want = truth.tensors(), got = step.tensors();
  const std::map<std::string_view, double> zeros = zero_gradients(batch, step);
  std::vector<TensorError> errors;
  for (std::size_t i = 0; i < got.size(); ++i) {
    TensorError& error = errors.emplace_back();
    error.name = got[i].name;
    error.bar = bar_of(error.name);
    const std::vector<float> values = values_of(got[i]);
    error.db = reference::sqnr_db_of<float>(values_of(want[i]), values);
    const auto zero = zeros.find(error.name);
    error.is_zero = zero != zeros.end();
    if (!zeros.empty() && error.name == "lse") error.bar = bar_of_one_score();
    error.verdict = !error.is_zero                              ? judge(error.db, error.bar)
                    : largest_magnitude(values) <= zero->second ? Verdict::kPass
                                                                : Verdict::kFail;
  }
  return errors;
}

Verdict judge(double db, double bar) {
  if (db >= bar) return Verdict::kPass;
  // NaN fails.
  return db >= bar - kBorderlineDb ? Verdict::kBorderline : Verdict::kFail;
}

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPass:
      return "pass";
    case Verdict::kBorderline:
      return "borderline";
    case Verdict::kFail:
      return "fail";
  }
  throw Error(ErrorKind::kInvalidArgument, "verdict: not a member of Verdict");
}

Flops count_flops(const reference::CrossAttentionBatch& batch) {
  const auto product = [](double m, double n, double k) { return 2 * m * n * k; };
  const auto dim = static_cast<double>(batch.options.dim);
  const auto keys = static_cast<double>(batch.total_k());
  const auto queries = static_cast<double>(batch.options.seqlen_q);
  const auto rows = static_cast<double>(batch.rows_o());
  const auto width_q = static_cast<double>(batch.width_q());
  const auto width_kv = static_cast<double>(batch.width_kv());
  const double linear = product(queries, width_q, dim) + 2 * product(keys, width_kv, dim) +
                        product(rows, dim, width_q);
  // S and O forward; S, dP, dV, dK and dQ backward.
  const double score = product(queries, keys, width_q);
  return {.forward = linear + 2 * score, .backward = 2 * linear + 5 * score};
}

}  // namespace mxfa::cli::module
