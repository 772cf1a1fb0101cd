#include "device/sqnr_suite.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>

#include "common/bars.h"
#include "core/parallel.h"
#include "device/head_memory.h"
#include "device/operands.h"
#include "dispatch/gpu/device_state.h"
#include "mx/half_sums.h"
#include "mxfa/attention.h"
#include "reference/datasets.h"
#include "reference/recipe/recipe.h"

namespace mxfa::bench {
namespace {

using reference::HeadInputs;
using reference::Matrix;
namespace recipe = reference::recipe;

constexpr const char* kDatasets[] = {"normal", "diffuse", "rmsnorm", "sink", "vbias"};
/// dB of o against kern at 4096 keys: docs/numerics.md, 32xD.
constexpr std::int64_t kListedKeys = 4096;
const std::map<std::string, double> kListed = {
    {"normal", 32.1}, {"diffuse", 31.6}, {"rmsnorm", 48.0}, {"sink", 37.7}, {"vbias", 54.0}};
/// Relative to max(1, |lse|) of a row.
constexpr double kF32ScoresLse = 2e-5;

struct Sample {
  std::string dataset;
  std::int64_t seqlen_q = 0, seqlen_k = 0;
  HeadInputs inputs;
};

struct Call {
  bool half_scores = false, jagged = false;
};

struct Result {
  std::vector<double> o;
  std::vector<double> lse;
};

/// The public call on one head. As a jagged batch of one its keys are never divided among CTAs.
Result run_on(const Device& device, const Sample& sample, const Call& call) {
  const std::int64_t dim = sample.inputs.q.cols;
  const DeviceMemory q = upload_bf16(device, sample.inputs.q),
                     k = upload_bf16(device, sample.inputs.k),
                     v = upload_bf16(device, sample.inputs.v);
  const DeviceMemory o = nan_memory(device, q.size_bytes()),
                     lse = nan_memory(device, sample.seqlen_q * sizeof(float));
  const Sequence sequence_q(device, sample.seqlen_q, call.jagged);
  const Sequence sequence_k(device, sample.seqlen_k, call.jagged);
  const attention::ForwardArgs args{
      .q = sequence_q.tensor(q, dim),
      .k = sequence_k.tensor(k, dim),
      .v = sequence_k.tensor(v, dim),
      .cu_seqlens_q = sequence_q.cu_seqlens(),
      .cu_seqlens_k = sequence_k.cu_seqlens(),
      .o = sequence_q.tensor(o, dim),
      .lse = make_tensor(lse.data(), DType::kF32, {1, sample.seqlen_q}),
      .row_max = {}};
  attention::Options options;
  options.device = &device;
  options.recipe = attention::native_recipe(device);
  options.half_scores = call.half_scores;
  options.softmax_scale = sample.inputs.softmax_scale;
  const DeviceMemory workspace(
      device, static_cast<std::size_t>(attention::forward_workspace_bytes(args, options)));
  attention::forward(args, options, {workspace.data(), workspace.size_bytes()});
  device.synchronize();
  std::vector<float> lse_values(static_cast<std::size_t>(sample.seqlen_q));
  lse.download(lse_values.data(), lse.size_bytes());
  return {download_bf16(o), {lse_values.begin(), lse_values.end()}};
}

/// What the oracle and the recipe make of a sample.
struct Wanted {
  Result kern, f64, recipe;
};
Wanted wanted_of(const Sample& sample, attention::Recipe own_recipe, bool half_scores) {
  recipe::RecipeConfig config = own_recipe == attention::Recipe::kHopper
                                    ? recipe::RecipeConfig::hopper()
                                    : recipe::RecipeConfig::blackwell();
  config.o_out = recipe::OutputFormat::kBf16;
  recipe::Operands operands = recipe::quantize_operands(sample.inputs, config);
  if (half_scores) {
    const HeadInputs& in = sample.inputs;
    recipe::requantize(in.q, device::kLoweredQ, operands.q, false, mx::kHalfSumsQ);
    recipe::requantize(in.k, device::kLoweredK, operands.k, true, mx::kHalfSumsK);
    recipe::requantize(in.v, 0, operands.v, false, mx::kHalfSumsV);
  }
  const recipe::HeadProblem problem{sample.inputs.mask, sample.inputs.softmax_scale};
  const auto result_of = [](const reference::ForwardResult& forward) {
    return Result{forward.o.data, forward.lse};
  };
  const auto saved = recipe::recipe_forward(operands, problem, config).saved;
  return {result_of(reference::attention_forward(recipe::kern_inputs(operands, problem, config))),
          result_of(reference::attention_forward(sample.inputs)),
          {{saved.o.data.begin(), saved.o.data.end()}, {saved.lse.begin(), saved.lse.end()}}};
}

io::Record record_of(const Sample& sample, const Call& call, const Result& got, const Wanted& want,
                     double slack_db) {
  const bool half_scores = call.half_scores;
  io::Record record;
  record.routine = "attention_forward_sqnr";
  record.impl = half_scores ? "mxfa mxfp8 (half scores)" : "mxfa mxfp8";
  record.shape = one_head(sample.seqlen_q, sample.seqlen_k, sample.inputs.q.cols);
  record.shape.jagged = call.jagged;
  record.variant.qk = "mxfp8";
  record.variant.scores = half_scores ? "fp16" : "fp32";
  std::optional<double> listed;
  if (sample.seqlen_k == kListedKeys && !half_scores) listed = kListed.at(sample.dataset);
  record.sqnr = {sqnr_bar("o_kern", {want.kern.o, got.o, want.recipe.o}, listed, slack_db),
                 sqnr_bar("o_f64", {want.f64.o, got.o, want.recipe.o}, std::nullopt, slack_db)};
  const double half = half_scores ? attention::kHalfScoresLse : 0;
  record.extra["dataset"] = sample.dataset;
  record.extra["lse_recipe_relative"] = difference_bar(
      largest_relative_difference(want.recipe.lse, got.lse), half_scores ? half : kF32ScoresLse);
  record.extra["lse_f64_relative"] =
      difference_bar(largest_relative_difference(want.f64.lse, got.lse),
                     2 * largest_relative_difference(want.f64.lse, want.recipe.lse) + half);
  return record;
}

}  // namespace

std::vector<io::Record> sqnr_records(const Device& device, const SqnrOptions& options,
                                     const std::function<void()>& done) {
  struct Work {
    std::string dataset;
    std::int64_t seqlen_k;
    bool half_scores;
  };
  std::vector<Work> works;
  for (const char* const dataset : kDatasets) {
    for (const std::int64_t seqlen_k : options.seqlens_k) {
      for (const bool half : options.half_scores) works.push_back({dataset, seqlen_k, half});
    }
  }
  std::vector<io::Record> records(2 * works.size());
  std::mutex device_mutex;
  core::parallel_for(std::ssize(works), [&](std::int64_t i) {
    const Work& work = works[static_cast<std::size_t>(i)];
    Sample sample{.dataset = work.dataset,
                  .seqlen_q = std::min<std::int64_t>(512, options.max_pairs / work.seqlen_k),
                  .seqlen_k = work.seqlen_k,
                  .inputs = {}};
    sample.inputs = reference::make_dataset(
        work.dataset, {.seqlen_q = sample.seqlen_q, .seqlen_k = work.seqlen_k});
    sample.inputs.dout = {};
    const Wanted want = wanted_of(sample, attention::native_recipe(device), work.half_scores);
    const std::lock_guard lock(device_mutex);
    for (const bool jagged : {false, true}) {
      const Call call{work.half_scores, jagged};
      records[static_cast<std::size_t>(2 * i + jagged)] =
          record_of(sample, call, run_on(device, sample, call), want, options.slack_db);
    }
    done();
  });
  return records;
}

bool all_pass(const std::vector<io::Record>& records) {
  return std::all_of(records.begin(), records.end(), [](const io::Record& record) {
    for (const io::SqnrRecord& one : record.sqnr) {
      if (one.verdict != "pass") return false;
    }
    return record.extra["lse_recipe_relative"]["verdict"] == "pass" &&
           record.extra["lse_f64_relative"]["verdict"] == "pass";
  });
}

}  // namespace mxfa::bench
