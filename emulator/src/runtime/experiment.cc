#include "mxemu/experiment.h"

#include <fmt/format.h>

#include <algorithm>

namespace mxfa::emu {
namespace {

LaunchOptions options_of(const Experiment& experiment, Policy policy, std::uint64_t seed) {
  LaunchOptions options = experiment.options;
  options.policy = policy;
  options.seed = seed;
  return options;
}

/// Calls visit(policy, seed) until it returns false.
template <class Visit>
void for_launches(const Experiment& experiment, const Visit& visit) {
  for (std::uint64_t seed = 0; seed < experiment.seeds; ++seed) {
    for (const Policy policy : experiment.policies) {
      if (!visit(policy, experiment.first_seed + seed)) return;
    }
  }
}

std::string summary(const Hazard& hazard) {
  std::string text = hazard.rule;
  if (hazard.second.ptx_line == 0) return text;
  if (hazard.first.ptx_line == 0) return fmt::format("{}, line {}", text, hazard.second.ptx_line);
  return fmt::format("{}, lines {} and {}", text, hazard.first.ptx_line, hazard.second.ptx_line);
}

/// The report's first hazard of a level that the intact program does not have; null: none.
const Hazard* news(const CheckReport& report, const CheckReport& intact, HazardLevel level) {
  const auto known = [&](const Hazard& hazard) {
    return std::ranges::any_of(intact.hazards, [&](const Hazard& other) {
      return other.level == hazard.level && other.rule == hazard.rule &&
             other.first.ptx_line == hazard.first.ptx_line &&
             other.second.ptx_line == hazard.second.ptx_line;
    });
  };
  const auto found = std::ranges::find_if(report.hazards, [&](const Hazard& hazard) {
    return hazard.level == level && !known(hazard);
  });
  return found == report.hazards.end() ? nullptr : &*found;
}

/// What one launch of a mutant shows; kRedundant: nothing.
void try_once(const Experiment& experiment, const Module& module, LaunchOptions options,
              const CheckReport& intact, MutantOutcome& outcome, std::string& warned) {
  CheckReport report;
  options.check = &report;
  bool right = true;
  bool stuck = false;
  std::string fault;
  try {
    right = experiment.launch(module, options);
  } catch (const PtxError& error) {
    stuck = error.fault() == Fault::kStuck;
    const std::string& reason = error.reason();
    fault =
        fmt::format("{}{}", reason.substr(0, reason.find('\n')),
                    error.location().line == 0 ? std::string()
                                               : fmt::format(", line {}", error.location().line));
  }
  ++outcome.launches;
  if (const Hazard* hazard = news(report, intact, HazardLevel::kError)) {
    outcome.verdict = MutantVerdict::kReported;
    outcome.detail = summary(*hazard);
  } else if (!fault.empty()) {
    outcome.verdict = stuck ? MutantVerdict::kHung : MutantVerdict::kReported;
    outcome.detail = fault;
  } else if (!right) {
    outcome.verdict = MutantVerdict::kWrongOutput;
    outcome.detail = fmt::format("policy {}, seed {}", policy_name(options.policy), options.seed);
  } else if (const Hazard* warning = news(report, intact, HazardLevel::kWarning)) {
    // Looked for further: another launch may show more.
    warned = summary(*warning);
  }
}

/// Whether any launch comes to the statement: a trap in its place shows.
bool reached(const Experiment& experiment, const Mutation& mutation) {
  const Module module(with_trap(experiment.ptx, mutation), experiment.name, *experiment.memory);
  bool found = false;
  for_launches(experiment, [&](Policy policy, std::uint64_t seed) {
    try {
      experiment.launch(module, options_of(experiment, policy, seed));
    } catch (const PtxError&) {
      found = true;
    }
    return !found;
  });
  return found;
}

}  // namespace

const char* verdict_name(MutantVerdict verdict) {
  constexpr const char* kNames[] = {"reported",  "wrong output",  "hung",   "warned",
                                    "redundant", "not exercised", "illegal"};
  return kNames[static_cast<int>(verdict)];
}

MutantVerdict silent_verdict(const Mutation& mutation, bool reached,
                             const std::vector<WaitCoverage>& intact, std::string& detail) {
  const auto wait = std::ranges::find(intact, mutation.line, &WaitCoverage::ptx_line);
  const bool waited =
      mutation.kind != "wait" || wait == intact.end() || wait->passed > wait->initial;
  if (reached && waited) return MutantVerdict::kRedundant;
  detail = reached ? "waits for the first phase only" : "not reached";
  return MutantVerdict::kNotExercised;
}

ExperimentResult run_experiment(const Experiment& experiment) {
  return run_experiment(experiment, Module(experiment.ptx, experiment.name, *experiment.memory));
}

ExperimentResult run_experiment(const Experiment& experiment, const Module& module) {
  module.entry(experiment.entry);
  ExperimentResult result;
  for_launches(experiment, [&](Policy policy, std::uint64_t seed) {
    LaunchOptions options = options_of(experiment, policy, seed);
    options.check = &result.report;
    try {
      if (!experiment.launch(module, options)) result.failed.push_back({policy, seed, false, {}});
    } catch (const PtxError& error) {
      const bool stuck = error.fault() == Fault::kStuck;
      result.failed.push_back({policy, seed, stuck, error.what()});
    }
    ++result.launches;
    if (experiment.on_launch) experiment.on_launch();
    return true;
  });
  return result;
}

MutantOutcome try_mutant(const Experiment& experiment, const Mutation& mutation,
                         const ExperimentResult& intact) {
  MutantOutcome outcome;
  outcome.mutation = mutation;
  std::unique_ptr<Module> module;
  try {
    module = std::make_unique<Module>(mutated(experiment.ptx, mutation), experiment.name,
                                      *experiment.memory);
    module->entry(experiment.entry);
  } catch (const PtxError& error) {
    outcome.verdict = MutantVerdict::kIllegal;
    outcome.detail = error.what();
    return outcome;
  }
  std::string warned;
  for_launches(experiment, [&](Policy policy, std::uint64_t seed) {
    try_once(experiment, *module, options_of(experiment, policy, seed), intact.report, outcome,
             warned);
    if (experiment.on_launch) experiment.on_launch();
    return outcome.verdict == MutantVerdict::kRedundant;
  });
  if (outcome.verdict != MutantVerdict::kRedundant) return outcome;
  if (!warned.empty()) {
    outcome.verdict = MutantVerdict::kWarned;
    outcome.detail = warned;
  } else {
    outcome.verdict = silent_verdict(mutation, reached(experiment, mutation), intact.report.waits,
                                     outcome.detail);
  }
  return outcome;
}

}  // namespace mxfa::emu
