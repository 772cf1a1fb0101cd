#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <memory>
#include <optional>

#include "command.h"
#include "core/check.h"
#include "core/standard_streams.h"
#include "dispatch/recipe_name.h"
#include "module/presets.h"
#include "module/report.h"
#include "module/tensors_file.h"

namespace mxfa::cli {
namespace {

using module::Preset;

struct ModuleArguments {
  std::string preset = "default";
  std::optional<std::int64_t> batch, seed_queries, dim, heads, max_kv;
  std::optional<double> sparsity;
  std::uint64_t seed = 0;
  std::string precision = "both";
  std::string recipe = "blackwell";
  bool queries_bf16 = false;
  std::string plot;
  std::string json;
  std::string tensors;
};

reference::CrossAttentionBatchOptions preset_options(const ModuleArguments& arguments) {
  const auto* preset = std::ranges::find(module::kPresets, arguments.preset, &Preset::name);
  core::expect(preset != module::kPresets.end(), "preset", "tiny, default or s30",
               fmt::format("'{}'", arguments.preset));
  return preset->options;
}

reference::CrossAttentionBatchOptions batch_options(const ModuleArguments& arguments) {
  reference::CrossAttentionBatchOptions options = preset_options(arguments);
  options.batch = arguments.batch.value_or(options.batch);
  options.seqlen_q = arguments.seed_queries.value_or(options.seqlen_q);
  options.dim = arguments.dim.value_or(options.dim);
  options.num_heads = arguments.heads.value_or(options.num_heads);
  options.max_seqlen_k = arguments.max_kv.value_or(options.max_seqlen_k);
  options.sparsity = arguments.sparsity.value_or(options.sparsity);
  options.seed = arguments.seed;
  return reference::checked(options);
}

/// --precision both needs something to compare; names what leaves nothing.
void expect_keys(const reference::CrossAttentionBatch& batch) {
  const std::string_view option = batch.options.batch == 0          ? "batch"
                                  : batch.options.max_seqlen_k == 0 ? "max-kv"
                                                                    : "sparsity";
  core::expect(batch.total_k() > 0, option,
               "keys, without which --precision both has nothing to compare", "none");
}

cross_attention::Options module_options(const ModuleArguments& arguments) {
  cross_attention::Options options;
  options.recipe = dispatch::recipe_of(arguments.recipe);
  options.queries_bf16 = arguments.queries_bf16;
  return options;
}

std::vector<attention::Precision> precisions(const ModuleArguments& arguments) {
  using enum attention::Precision;
  if (arguments.precision == "both") return {kMxfp8, kBf16};
  if (arguments.precision == "mxfp8") return {kMxfp8};
  core::expect(arguments.precision == "bf16", "precision", "mxfp8, bf16 or both",
               fmt::format("'{}'", arguments.precision));
  return {kBf16};
}

ExitStatus run_module(const ModuleArguments& arguments) {
  const reference::CrossAttentionBatchOptions sizes = batch_options(arguments);
  module::Report report;
  report.options = module_options(arguments);
  const std::vector<attention::Precision> wanted = precisions(arguments);
  const bool compared = wanted.size() == 2;
  core::expect(!arguments.queries_bf16 || arguments.precision != "bf16", "queries-bf16",
               "--precision mxfp8 or both, whose products it changes", "bf16");
  core::expect(compared || arguments.plot.empty(), "plot", "--precision both, which it compares",
               arguments.precision);
  core::expect(!compared || arguments.tensors.empty(), "tensors",
               "--precision mxfp8 or bf16, of which they are", arguments.precision);
  check_outputs(
      {{"json", arguments.json}, {"plot", arguments.plot}, {"tensors", arguments.tensors}});
  module::check_memory(sizes, preset_options(arguments));
  const reference::CrossAttentionBatch batch = make_cross_attention_batch(sizes);
  if (compared) expect_keys(batch);
  report.batch = &batch;
  {
    const std::int64_t runs = module::kMostRuns * std::ssize(wanted) + (compared ? 2 : 0);
    io::Progress progress("mxfa module", runs);
    for (const attention::Precision precision : wanted) {
      cross_attention::Options options = report.options;
      options.precision = precision;
      report.steps.push_back(module::measure(batch, options, progress));
    }
    if (compared) report.errors = module::compare(batch, report.options, progress);
  }
  fmt::print("{}", module::report_text(report));
  if (!arguments.tensors.empty()) {
    flush_report();
    cross_attention::Options options = report.options;
    options.precision = wanted.front();
    module::write_tensors(arguments.tensors, batch, options);
  }
  write_svg(arguments.plot, [&] { return module::report_svg(report); });
  write_json(arguments.json, module::report_records(report));
  if (!report.failed()) return kDone;
  core::print_error("mxfa module: check failed: a tensor is more than {:g} dB below its bar\n",
                    module::kBorderlineDb);
  return kCheckFailed;
}

void add_size_options(CLI::App& app, ModuleArguments& arguments) {
  app.add_option("--preset", arguments.preset, "tiny, default or s30")->capture_default_str();
  app.add_option("--batch", arguments.batch, "Sequences; this and what follows: of the preset");
  app.add_option("--seed-queries", arguments.seed_queries, "Queries, shared by all sequences");
  app.add_option("--dim", arguments.dim, "Width of the module, head_dim times heads");
  app.add_option("--heads", arguments.heads, "Heads of queries, keys and values");
  app.add_option("--max-kv", arguments.max_kv, "Longest sequence that may be drawn");
  app.add_option("--sparsity", arguments.sparsity,
                 "Empty share of the padded keys, 0 to 1; lengths are sums of two uniform draws")
      ->check(kFiniteNumber);
  app.add_option("--seed", arguments.seed, "Seed of the batch")
      ->capture_default_str()
      ->check(kWholeNumber);
}

}  // namespace

Command add_module(CLI::App& root) {
  CLI::App* app = root.add_subcommand("module", "Does the whole cross-attention module run here?");
  std::string presets;
  for (const Preset& preset : module::kPresets) {
    presets += fmt::format("  {:8} {}\n", preset.name, preset.what);
  }
  app->footer(fmt::format(
      "Runs one training step of the jagged cross-attention module (RMSNorm, projections,\n"
      "attention of shared seed queries over each sequence's keys, output projection, and every\n"
      "gradient) on a synthetic batch of unit variance, in MXFP8 and in BF16, and prints what\n"
      "MXFP8 changes in each of the step's 24 tensors, times, and memory. A tensor passes at its\n"
      "bar, is borderline down to {:g} dB below, and fails beneath (exit status 1).\n\n"
      "Presets:\n{}\n"
      "Examples:\n"
      "  mxfa module --plot module.svg --json module.json\n"
      "  mxfa module --preset s30 --batch 8 --recipe hopper\n"
      "  mxfa module --preset tiny --dim 256 --heads 4 --precision mxfp8",
      module::kBorderlineDb, presets));
  const auto arguments = std::make_shared<ModuleArguments>();
  add_size_options(*app, *arguments);
  app->add_option("--precision", arguments->precision, "mxfp8, bf16 or both")
      ->capture_default_str();
  app->add_option("--recipe", arguments->recipe, "Whose MXFP8 arithmetic: hopper or blackwell")
      ->capture_default_str();
  app->add_flag("--queries-bf16", arguments->queries_bf16,
                "BF16 for the products with few rows, of the seed queries and of the output");
  add_json_option(*app, arguments->json);
  add_svg_option(*app, "--plot", arguments->plot, "Bars by tensor");
  app->add_option("--tensors", arguments->tensors,
                  "Write the inputs and the 24 tensors of one precision")
      ->type_name("FILE.safetensors");
  return {app, [arguments] { return run_module(*arguments); }};
}

}  // namespace mxfa::cli
