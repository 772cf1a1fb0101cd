#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <memory>

#include "command.h"
#include "core/check.h"
#include "core/standard_streams.h"
#include "reference/datasets.h"
#include "sqnr/report.h"

namespace mxfa::cli {
namespace {

/// Eight schemes on this many (query, key) pairs of head_dim 128 take about a minute on two cores.
constexpr std::int64_t kDefaultMaxPairs = 20'000'000;

struct SqnrArguments {
  std::string input;
  sqnr::TensorNames names;
  sqnr::SyntheticOptions synthetic;
  std::uint64_t seed = 0;
  bool causal = false;
  std::string causal_alignment = "bottom-right";
  std::vector<int> window;
  std::optional<double> softmax_scale;
  std::vector<std::string> schemes;
  std::string reference = "f64";
  std::string require;
  std::int64_t max_pairs = kDefaultMaxPairs;
  std::string json;
  std::string plot;
};

sqnr::MaskOptions mask_of(const SqnrArguments& arguments) {
  sqnr::MaskOptions options{.mask = {}, .softmax_scale = arguments.softmax_scale};
  options.mask.causal = arguments.causal;
  core::expect(
      arguments.causal_alignment == "bottom-right" || arguments.causal_alignment == "top-left",
      "causal-alignment", "bottom-right or top-left",
      fmt::format("'{}'", arguments.causal_alignment));
  options.mask.alignment = arguments.causal_alignment == "top-left" ? CausalAlignment::kTopLeft
                                                                    : CausalAlignment::kBottomRight;
  if (!arguments.window.empty()) {
    options.mask.window_left = arguments.window[0];
    options.mask.window_right = arguments.window[1];
  }
  return options;
}

std::vector<sqnr::Scheme> schemes_of(const SqnrArguments& arguments) {
  std::vector<std::string> names = arguments.schemes;
  if (names.empty()) names = sqnr::default_schemes(arguments.causal);
  if (names == std::vector<std::string>{"all"}) names = sqnr::all_schemes(arguments.causal);
  const std::size_t listed = names.size();
  if (!arguments.require.empty()) names.push_back(arguments.require);
  std::vector<sqnr::Scheme> schemes;
  for (std::size_t i = 0; i < names.size(); ++i) {
    sqnr::Scheme scheme = sqnr::parse_scheme(names[i], i < listed ? "schemes" : "require");
    const bool known = std::any_of(schemes.begin(), schemes.end(),
                                   [&](const sqnr::Scheme& s) { return s.name == scheme.name; });
    if (!known) schemes.push_back(std::move(scheme));
  }
  return schemes;
}

sqnr::Input input_of(const SqnrArguments& arguments, const sqnr::MaskOptions& mask) {
  core::expect(arguments.input.empty() != arguments.synthetic.name.empty(), "input",
               "either --input FILE or --synthetic NAME",
               arguments.input.empty() ? "neither" : "both");
  if (arguments.input.empty()) {
    return sqnr::make_synthetic(arguments.synthetic, mask, arguments.seed);
  }
  return sqnr::load_file(arguments.input, arguments.names, mask, arguments.seed);
}

/// Whether the scheme of `--require` is safe; true where none was asked for.
bool requirement_met(const SqnrArguments& arguments, const sqnr::Measurement& measurement,
                     const sqnr::Verdict& verdict) {
  if (arguments.require.empty()) return true;
  const std::string name = sqnr::parse_scheme(arguments.require).name;
  for (std::size_t s = 0; s < measurement.schemes.size(); ++s) {
    if (measurement.schemes[s].scheme.name == name) {
      return verdict.grades[s].grade == sqnr::Grade::kPass;
    }
  }
  return false;
}

ExitStatus run_sqnr(const SqnrArguments& arguments) {
  core::expect(arguments.reference == "f64" || arguments.reference == "kern", "reference",
               "f64 or kern", fmt::format("'{}'", arguments.reference));
  const bool with_kern = arguments.reference == "kern";
  const sqnr::MaskOptions mask = mask_of(arguments);
  const std::vector<sqnr::Scheme> schemes = schemes_of(arguments);
  check_outputs({{"json", arguments.json}, {"plot", arguments.plot}}, arguments.input);
  const sqnr::Input input = input_of(arguments, mask);
  const sqnr::Sample sample = sqnr::choose_units(input.problem, arguments.max_pairs);
  sqnr::Measurement measurement;
  {
    const auto steps = static_cast<std::int64_t>(sample.units.size() * (schemes.size() + 1));
    io::Progress progress("mxfa sqnr", steps);
    measurement = sqnr::measure(input, sample, schemes, with_kern, progress);
  }
  const sqnr::Verdict verdict = sqnr::judge(measurement, sample);
  const sqnr::Report report{.input = &input,
                            .sample = &sample,
                            .measurement = &measurement,
                            .verdict = &verdict,
                            .max_pairs = arguments.max_pairs,
                            .with_kern = with_kern};
  fmt::print("{}", sqnr::report_text(report));
  write_svg(arguments.plot, [&] { return sqnr::report_svg(report); });
  write_json(arguments.json, sqnr::report_records(report));
  if (requirement_met(arguments, measurement, verdict)) return kDone;
  core::print_error("mxfa sqnr: check failed: {} is not safe for these tensors\n",
                    arguments.require);
  return kCheckFailed;
}

void add_input_options(CLI::App& app, SqnrArguments& arguments) {
  app.add_option("--input", arguments.input, "Your tensors: q, k, v, dout, cu_seqlens_q, ..._k")
      ->type_name("FILE");
  app.add_option("--q", arguments.names.q, "Name of the tensor in the file")->capture_default_str();
  app.add_option("--k", arguments.names.k, "Likewise")->capture_default_str();
  app.add_option("--v", arguments.names.v, "Likewise")->capture_default_str();
  app.add_option("--dout", arguments.names.dout, "Likewise; drawn from N(0, 1) where absent")
      ->capture_default_str();
  app.add_option("--cu-seqlens-q", arguments.names.cu_seqlens_q,
                 "Likewise, offsets of packed sequences; or one 'cu_seqlens' for both sides")
      ->capture_default_str();
  app.add_option("--cu-seqlens-k", arguments.names.cu_seqlens_k, "Likewise")->capture_default_str();
  app.add_option("--synthetic", arguments.synthetic.name,
                 fmt::format("Instead of a file, a data set: {}",
                             fmt::join(reference::dataset_names(), ", ")))
      ->type_name("NAME");
  app.add_option("--seqlen-q", arguments.synthetic.seqlen_q, "Queries of the data set")
      ->check(kWholeNumber)
      ->capture_default_str();
  app.add_option("--seqlen-k", arguments.synthetic.seqlen_k, "Keys of the data set")
      ->check(kWholeNumber)
      ->capture_default_str();
  app.add_option("--head-dim", arguments.synthetic.head_dim, "head_dim of the data set")
      ->check(kWholeNumber)
      ->capture_default_str();
  app.add_option("--seed", arguments.seed, "Seed of the data set and of a dout that is drawn")
      ->check(kWholeNumber)
      ->capture_default_str();
  for (const char* option : {"--seqlen-q", "--seqlen-k", "--head-dim"}) {
    app.get_option(option)->needs("--synthetic");
  }
  for (const char* option : {"--q", "--k", "--v", "--dout", "--cu-seqlens-q", "--cu-seqlens-k"}) {
    app.get_option(option)->needs("--input");
  }
}

void add_attention_options(CLI::App& app, SqnrArguments& arguments) {
  app.add_flag("--causal", arguments.causal, "A query sees no later key");
  app.add_option("--causal-alignment", arguments.causal_alignment,
                 "Where the diagonal ends if lengths differ: bottom-right or top-left")
      ->capture_default_str();
  app.add_option("--window", arguments.window,
                 "Keys further LEFT or RIGHT of the diagonal are hidden, -1: unbounded")
      ->expected(2)
      ->type_name("LEFT RIGHT");
  app.add_option("--softmax-scale", arguments.softmax_scale, "Default 1/sqrt(head_dim)")
      ->check(kFiniteNumber);
}

}  // namespace

Command add_sqnr(CLI::App& root) {
  CLI::App* app = root.add_subcommand("sqnr", "Will MXFP8 attention hurt your model?");
  app->footer(fmt::format(
      "Runs one forward and backward attention step on your own tensors in each scheme, with the\n"
      "arithmetic of the machine that has it, and compares every tensor of the step with float64\n"
      "attention: SQNR = 10 log10(sum ref^2 / sum (ref - x)^2). Then a verdict: which scheme is\n"
      "safe (O, dV, dQ, dK at {:g} dB or more), which tensor limits it, why, what to switch on.\n\n"
      "File: q, k, v and optionally dout in F32, F16 or BF16, all of one dtype. Either\n"
      "[batch, seqlen, num_heads, head_dim], or packed [total, num_heads, head_dim] with int32 or\n"
      "int64 offsets cu_seqlens_q, cu_seqlens_k [batch + 1]. K and V may have fewer heads.\n"
      "head_dim: a multiple of 8 up to 128. F32 and F16 are rounded to BF16, as the operands of\n"
      "BF16 attention would be, before they are quantized; float64 attention takes them as "
      "given.\n\n"
      "Schemes: a base and dials joined by '+', such as 32xD+smooth-k+qk-bf16.\n{}\n"
      "Examples:\n"
      "  mxfa sqnr --input dump.safetensors --causal --plot sqnr.svg --json sqnr.json\n"
      "  mxfa sqnr --synthetic kbias --seqlen-q 256 --seqlen-k 1024 --schemes 32x32,smooth-k\n"
      "  mxfa sqnr --input dump.safetensors --require 32x32    (status 1 where it is not safe)",
      sqnr::kBars[0].safe_db, sqnr::scheme_help()));
  const auto arguments = std::make_shared<SqnrArguments>();
  add_input_options(*app, *arguments);
  add_attention_options(*app, *arguments);
  add_names_option(*app, "--schemes", arguments->schemes, "'all', or names separated by commas");
  app->add_option("--reference", arguments->reference,
                  "f64; kern: also against float64 attention on the dequantized inputs")
      ->capture_default_str();
  app->add_option("--require", arguments->require,
                  "Scheme that must be safe: exit status 1 where it is not")
      ->type_name("NAME");
  app->add_option("--max-pairs", arguments->max_pairs,
                  "(query, key) pairs to measure at most; more are sampled by a fixed rule")
      ->check(kWholeNumber)
      ->capture_default_str();
  add_json_option(*app, arguments->json);
  add_svg_option(*app, "--plot", arguments->plot, "Bars by tensor and scheme");
  return {app, [arguments] { return run_sqnr(*arguments); }};
}

}  // namespace mxfa::cli
