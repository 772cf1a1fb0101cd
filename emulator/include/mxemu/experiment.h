#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "mxemu/emulator.h"
#include "mxemu/mutate.h"

/// One kernel under many interleavings with the hazard checker on: as it stands, and without one
/// piece of its synchronisation at a time.
namespace mxfa::emu {

struct Experiment {
  std::string ptx;
  std::string name;  ///< of the text, for messages
  std::string entry;
  GlobalMemory* memory = nullptr;  ///< which modules are loaded into
  /// Launches the entry once, with fresh buffers, and tells whether the results are right. What the
  /// launch throws may pass through.
  std::function<bool(const Module& module, const LaunchOptions& options)> launch;
  LaunchOptions options;  ///< of every launch; policy, seed and check are set for each
  std::vector<Policy> policies{std::begin(kAllPolicies), std::end(kAllPolicies)};
  std::uint64_t first_seed = 0;
  std::uint64_t seeds = 1;  ///< of each policy
  /// After each launch; may be empty.
  std::function<void()> on_launch;

  std::uint64_t launches() const { return policies.size() * seeds; }
};

/// A launch that ended in a fault or with wrong results.
struct FailedLaunch {
  Policy policy = Policy::kRandom;
  std::uint64_t seed = 0;
  bool stuck = false;   ///< deadlock or an endless loop
  std::string message;  ///< the fault; empty: wrong results
};

struct ExperimentResult {
  CheckReport report;  ///< of all launches together
  std::uint64_t launches = 0;
  std::vector<FailedLaunch> failed;

  bool clean() const { return report.clean() && failed.empty(); }
};

/// Every policy and seed. Throws PtxError where the text cannot be loaded.
ExperimentResult run_experiment(const Experiment& experiment);
/// Of a text that has been loaded.
ExperimentResult run_experiment(const Experiment& experiment, const Module& module);

/// What shows that a piece of synchronisation is gone.
enum class MutantVerdict : std::uint8_t {
  kReported,      ///< the checker reports an error, or the launch ends in a fault
  kWrongOutput,   ///< nothing but the results: the checker has missed it
  kHung,          ///< the launch cannot end
  kWarned,        ///< the checker warns: practice does without it, the ISA does not
  kRedundant,     ///< nothing, under any policy and seed: these launches do not need it
  kNotExercised,  ///< nothing, but it was not reached, or waited for a barrier's first phase only
  kIllegal,       ///< the text without it is not PTX that can be loaded
};
/// "reported", "wrong output", ...
const char* verdict_name(MutantVerdict verdict);

/// Of a mutant that nothing shows: redundant, or not exercised by launches whose statements of this
/// line were never reached, or which only ever waited for a barrier's first phase; `detail` tells.
MutantVerdict silent_verdict(const Mutation& mutation, bool reached,
                             const std::vector<WaitCoverage>& intact, std::string& detail);

struct MutantOutcome {
  Mutation mutation;
  MutantVerdict verdict = MutantVerdict::kRedundant;
  std::string detail;  ///< the rule and its two lines, or the fault
  std::uint64_t launches = 0;
};

/// Launches a mutant under every policy and seed until something shows. `intact` is what the
/// experiment gave as it stands: its waits tell which ones were exercised.
MutantOutcome try_mutant(const Experiment& experiment, const Mutation& mutation,
                         const ExperimentResult& intact);

}  // namespace mxfa::emu
