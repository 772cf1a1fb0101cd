#include "common.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "core/standard_streams.h"
#include "mxemu/experiment.h"

namespace mxfa::acceptance {
namespace {

using namespace mxfa::emu;

bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    const auto number = [&](const char* name, int& value) {
      if (text != name || i + 1 >= argc) return false;
      value = std::atoi(argv[++i]);
      return true;
    };
    if (number("--seeds", options.seeds) || number("--config", options.config) ||
        number("--m", options.m) || number("--n", options.n) || number("--k", options.k)) {
      continue;
    }
    if (text == "--mutate" && i + 1 < argc) {
      options.mutate = argv[++i];
      continue;
    }
    options.check |= text == "--check";
    if (text == "--check") continue;
    if (!options.ptx.empty() || text[0] == '-') return false;
    options.ptx = text;
  }
  return !options.ptx.empty();
}

/// The number of runs that are wrong, of every policy with every seed.
int run_case(const Case& kernel, const Module& module, int seeds) {
  int bad = 0;
  for (const Policy policy : kAllPolicies) {
    for (int seed = 0; seed < seeds; ++seed) {
      LaunchOptions launch = kernel.options;
      launch.policy = policy;
      launch.seed = static_cast<std::uint64_t>(seed);
      launch.warn = [](const std::string& text) { fmt::print("warning: {}\n", text); };
      if (policy != kAllPolicies[0] || seed > 0) launch.warn = {};
      try {
        const int wrong = kernel.run(module, launch);
        if (wrong == 0) continue;
        fmt::print("{}: policy {} seed {}: {} wrong outputs\n", kernel.name, policy_name(policy),
                   seed, wrong);
      } catch (const Error& error) {
        fmt::print("{}: policy {} seed {}: {}\n", kernel.name, policy_name(policy), seed,
                   error.what());
      }
      ++bad;
    }
  }
  fmt::print("{}: {} of {} runs wrong\n", kernel.name, bad, seeds * std::ssize(kAllPolicies));
  return bad;
}

/// The number of launches that are wrong, and of errors.
int check_config(const Experiment& experiment, const char* name) {
  const ExperimentResult result = run_experiment(experiment);
  for (const Hazard& hazard : result.report.hazards) fmt::print("{}\n", hazard.text());
  for (const FailedLaunch& failed : result.failed) {
    fmt::print("policy {} seed {}: {}\n", policy_name(failed.policy), failed.seed,
               failed.message.empty() ? "wrong outputs" : failed.message);
  }
  const auto idle = std::ranges::count(result.report.waits, 0u, &WaitCoverage::blocked);
  fmt::print("{}: {} of {} launches wrong; {} errors, {} warnings; {} of {} waits never blocked\n",
             name, result.failed.size(), result.launches, result.report.errors(),
             result.report.warnings(), idle, result.report.waits.size());
  return static_cast<int>(result.failed.size() + result.report.errors());
}

/// Of one mutant: what shows it in the first of the experiments where anything does.
MutantOutcome try_all(const std::vector<Experiment>& experiments,
                      const std::vector<ExperimentResult>& intact, const Mutation& mutation) {
  MutantOutcome outcome;
  outcome.verdict = MutantVerdict::kNotExercised;
  for (std::size_t i = 0; i < experiments.size(); ++i) {
    const MutantOutcome next = try_mutant(experiments[i], mutation, intact[i]);
    if (next.verdict != MutantVerdict::kNotExercised || i == 0) outcome = next;
    const bool silent = outcome.verdict == MutantVerdict::kNotExercised ||
                        outcome.verdict == MutantVerdict::kRedundant;
    if (!silent) break;
  }
  return outcome;
}

/// The number of mutants that only wrong outputs tell, which the checker has missed.
int mutate_config(const std::vector<Experiment>& experiments, const Options& options,
                  const char* name) {
  std::vector<ExperimentResult> intact;
  for (const Experiment& experiment : experiments) {
    intact.push_back(run_experiment(experiment));
    if (!intact.back().clean()) return check_config(experiment, name);
  }
  int missed = 0;
  std::map<std::string, int> totals;
  const Experiment& first = experiments[0];
  for (const Mutation& mutation : find_mutations(first.ptx, first.name, first.entry)) {
    if (mutation.kind != options.mutate) continue;
    const MutantOutcome outcome = try_all(experiments, intact, mutation);
    const std::string opcode = mutation.statement.substr(0, mutation.statement.find(' '));
    fmt::print("{:>6}  {:<22}  {:<13}  {}  {}\n", mutation.line, mutation.change,
               verdict_name(outcome.verdict), opcode.substr(0, opcode.find('[')), outcome.detail);
    std::fflush(stdout);
    ++totals[mutation.change + ", " + verdict_name(outcome.verdict)];
    missed += outcome.verdict == MutantVerdict::kWrongOutput ? 1 : 0;
  }
  for (const auto& total : totals) fmt::print("{}: {}: {}\n", name, total.first, total.second);
  return missed;
}

Experiment experiment_of(const Case& kernel, const Options& options, GlobalMemory& memory,
                         const std::string& text) {
  Experiment experiment;
  experiment.ptx = text;
  experiment.name = options.ptx;
  experiment.entry = kernel.entry;
  experiment.memory = &memory;
  experiment.options = kernel.options;
  experiment.seeds = static_cast<std::uint64_t>(options.seeds);
  experiment.launch = [run = kernel.run](const Module& module, const LaunchOptions& launch) {
    return run(module, launch) == 0;
  };
  return experiment;
}

}  // namespace

model::TensorMapRecord make_map(const MapSpec& spec) {
  const std::uint64_t dims[] = {static_cast<std::uint64_t>(spec.inner),
                                static_cast<std::uint64_t>(spec.outer)};
  const std::uint64_t strides[] = {static_cast<std::uint64_t>(spec.inner) *
                                   static_cast<std::uint64_t>(spec.elem_bytes)};
  const std::uint32_t box[] = {static_cast<std::uint32_t>(spec.box_inner),
                               static_cast<std::uint32_t>(spec.box_outer)};
  const std::uint32_t steps[] = {1, 1};
  model::TiledArguments arguments;
  arguments.data_type = spec.type;
  arguments.rank = 2;
  arguments.global_address = reinterpret_cast<std::uint64_t>(spec.data);
  arguments.global_dim = dims;
  arguments.global_strides = strides;
  arguments.box_dim = box;
  arguments.element_strides = steps;
  arguments.swizzle = spec.swizzle == 128 ? 3 : spec.swizzle == 64 ? 2 : 0;
  return model::encode_tiled(arguments);
}

int run_program(int argc, char** argv, int cases, const MakeCase& make) {
  Options options;
  if (!parse(argc, argv, options)) {
    core::print_error(
        "usage: {} PTX [--check | --mutate KIND] [--seeds N] [--config I] [--m M] [--n N] "
        "[--k K]\n",
        argv[0]);
    return 2;
  }
  std::ifstream file(options.ptx);
  std::stringstream text;
  text << file.rdbuf();
  GlobalMemory memory;
  try {
    const Module module(text.str(), options.ptx, memory);
    int bad = 0;
    for (int i = 0; i < cases; ++i) {
      if (options.config >= 0 && options.config != i) continue;
      const Case kernel = make(options, module, memory, i);
      if (!options.check && options.mutate.empty()) {
        bad += run_case(kernel, module, options.seeds);
        continue;
      }
      const Experiment first = experiment_of(kernel, options, memory, text.str());
      if (options.check) {
        bad += check_config(first, kernel.name.c_str());
        continue;
      }
      // Another number of K blocks, modulo the ring, for the other tail of unrolled loops.
      Options longer = options;
      longer.k += 256;
      const Case other = make(longer, module, memory, i);
      bad += mutate_config({first, experiment_of(other, longer, memory, text.str())}, options,
                           kernel.name.c_str());
    }
    return bad == 0 ? 0 : 1;
  } catch (const Error& error) {
    core::print_error("{}\n", error.what());
    return 2;
  }
}

}  // namespace mxfa::acceptance
