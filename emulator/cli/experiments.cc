#include "experiments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/standard_streams.h"
#include "io/atomic_file.h"
#include "io/progress.h"
#include "mxemu/experiment.h"

/// The commands check and mutate.
namespace mxfa::emu::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kShownHazards = 10;
constexpr std::size_t kShownFailures = 3;

std::vector<Policy> parse_policies(const std::vector<std::string>& names) {
  std::vector<Policy> result;
  for (const std::string& name : names) {
    result.push_back(parse_policy(name, false));
  }
  return result;
}

/// Launches of one session: results are right where they equal those of the first launch, and
/// where --expect says so.
class Trial {
 public:
  Trial(ExperimentOptions& options, Session& session) : session_(session) {
    session.check_outputs({{"--json", options.json}});
    experiment_.ptx = session.ptx();
    experiment_.name = options.run.path;
    experiment_.entry = options.run.entry;
    experiment_.memory = &session.memory();
    experiment_.options = options.run.launch;
    experiment_.options.print = {};
    if (!options.policies.empty()) experiment_.policies = parse_policies(options.policies);
    experiment_.first_seed = options.run.seed;
    experiment_.seeds = options.run.seeds;
    experiment_.launch = [this](const Module& module, const LaunchOptions& launch) {
      session_.launch(module, launch);
      const std::uint64_t checksum = session_.checksum();
      if (!checksum_) checksum_ = checksum;
      return checksum == *checksum_ && session_.as_expected();
    };
  }

  const Experiment& experiment() const { return experiment_; }

  ExperimentResult run_intact() {
    io::Progress progress("as it stands", static_cast<std::int64_t>(experiment_.launches()));
    experiment_.on_launch = [&] { progress.advance(); };
    ExperimentResult result = run_experiment(experiment_, session_.module());
    experiment_.on_launch = {};
    session_.write_outputs();
    return result;
  }

 private:
  Session& session_;
  Experiment experiment_;
  std::optional<std::uint64_t> checksum_;
};

/// Of a mutation, or of what a wait was.
template <class Placed>
std::string source_text(const Placed& placed) {
  if (placed.source_line == 0) return {};
  return fmt::format("{}:{}{}{}", placed.source_file, placed.source_line,
                     placed.inlined_at.empty() ? "" : ", inlined at ", placed.inlined_at);
}

/// Statements that are known as waits, but that no launch came to.
std::vector<Mutation> waits_not_reached(const Experiment& experiment, const CheckReport& report) {
  std::vector<Mutation> result;
  for (const Mutation& mutation :
       find_mutations(experiment.ptx, experiment.name, experiment.entry)) {
    const bool seen = std::ranges::find(report.waits, mutation.line, &WaitCoverage::ptx_line) !=
                      report.waits.end();
    const bool listed = !result.empty() && result.back().line == mutation.line;
    if (mutation.kind == "wait" && !seen && !listed) result.push_back(mutation);
  }
  return result;
}

bool never_blocked(const WaitCoverage& wait) { return wait.blocked == 0; }

void print_waits(const Experiment& experiment, const CheckReport& report) {
  const auto quiet = std::ranges::count_if(report.waits, never_blocked);
  const std::vector<Mutation> unreached = waits_not_reached(experiment, report);
  if (quiet == 0 && unreached.empty()) {
    fmt::print("every wait ({}) had to wait at least once\n", report.waits.size());
    return;
  }
  fmt::print(
      "waits that never had to wait, so that nothing is known of what they protect (does "
      "every ring wrap twice?):\n  {:>9} {:>6}  {}\n",
      "PASSED", "LINE", "STATEMENT");
  for (const WaitCoverage& wait : report.waits) {
    if (!never_blocked(wait)) continue;
    const std::string source = source_text(wait);
    fmt::print("  {:>9} {:>6}  {}{}{}\n", wait.passed, wait.ptx_line, wait.ptx_text,
               source.empty() ? "" : "  ", source);
  }
  for (const Mutation& wait : unreached) {
    fmt::print("  {:>9} {:>6}  {}\n", "not run", wait.line, wait.statement);
  }
}

void print_hazards(const CheckReport& report) {
  for (std::size_t i = 0; i < std::min(report.hazards.size(), kShownHazards); ++i) {
    fmt::print("{}\n", report.hazards[i].text());
  }
  if (report.hazards.size() > kShownHazards) {
    fmt::print("and {} more (all of them: --json FILE)\n", report.hazards.size() - kShownHazards);
  }
}

void print_failed(const std::vector<FailedLaunch>& failed) {
  for (std::size_t i = 0; i < std::min(failed.size(), kShownFailures); ++i) {
    fmt::print("failed: policy {}, seed {}: {}\n", policy_name(failed[i].policy), failed[i].seed,
               failed[i].message.empty()
                   ? "results differ from those of the first launch, or from --expect"
                   : failed[i].message);
  }
  if (failed.size() > kShownFailures) {
    fmt::print("and {} more failed launches\n", failed.size() - kShownFailures);
  }
}

void print_head(const Experiment& experiment) {
  std::vector<std::string> names;
  for (const Policy policy : experiment.policies) names.push_back(policy_name(policy));
  fmt::print("{}, kernel {}: {} launches ({} seeds from {} x {})\n", experiment.name,
             experiment.entry, experiment.launches(), experiment.seeds, experiment.first_seed,
             fmt::join(names, ", "));
}

Json site_json(const HazardSite& site) {
  return {{"ptx_line", site.ptx_line},
          {"ptx_text", site.ptx_text},
          {"source_file", site.source_file},
          {"source_line", site.source_line},
          {"inlined_at", site.inlined_at},
          {"who", site.who},
          {"what", site.what}};
}

Json head_json(const char* command, const Experiment& experiment) {
  Json policies = Json::array();
  for (const Policy policy : experiment.policies) policies.push_back(policy_name(policy));
  return {{"command", command},
          {"file", experiment.name},
          {"entry", experiment.entry},
          {"policies", policies},
          {"first_seed", experiment.first_seed},
          {"seeds", experiment.seeds}};
}

void add_result(Json& json, const ExperimentResult& result) {
  json["launches"] = result.launches;
  json["clean"] = result.clean();
  json["hazards"] = Json::array();
  for (const Hazard& hazard : result.report.hazards) {
    const char* level = hazard.level == HazardLevel::kError ? "error" : "warning";
    json["hazards"].push_back({{"level", level},
                               {"rule", hazard.rule},
                               {"where", hazard.where},
                               {"first", site_json(hazard.first)},
                               {"second", site_json(hazard.second)},
                               {"missing", hazard.missing},
                               {"count", hazard.count}});
  }
  json["waits"] = Json::array();
  for (const WaitCoverage& wait : result.report.waits) {
    json["waits"].push_back({{"ptx_line", wait.ptx_line},
                             {"ptx_text", wait.ptx_text},
                             {"source_file", wait.source_file},
                             {"source_line", wait.source_line},
                             {"inlined_at", wait.inlined_at},
                             {"passed", wait.passed},
                             {"blocked", wait.blocked},
                             {"initial", wait.initial}});
  }
  json["failed"] = Json::array();
  for (const FailedLaunch& failed : result.failed) {
    json["failed"].push_back({{"policy", policy_name(failed.policy)},
                              {"seed", failed.seed},
                              {"stuck", failed.stuck},
                              {"message", failed.message}});
  }
}

void write_json(const std::string& path, const Json& json) {
  if (path.empty()) return;
  io::write_text_file(path, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

Json mutant_json(const MutantOutcome& outcome) {
  const Mutation& mutation = outcome.mutation;
  return {{"line", mutation.line},
          {"source_file", mutation.source_file},
          {"source_line", mutation.source_line},
          {"inlined_at", mutation.inlined_at},
          {"kind", mutation.kind},
          {"statement", mutation.statement},
          {"change", mutation.change},
          {"verdict", verdict_name(outcome.verdict)},
          {"detail", outcome.detail},
          {"launches", outcome.launches}};
}

/// One line, at most so long.
std::string shortened(std::string text, std::size_t length) {
  std::ranges::replace(text, '\n', ' ');
  return text.size() <= length ? text : text.substr(0, length - 3) + "...";
}

void print_mutants(const std::vector<MutantOutcome>& outcomes) {
  fmt::print("{:>6}  {:<9}  {:<22}  {:<13}  {}\n", "LINE", "KIND", "CHANGE", "VERDICT", "DETAIL");
  std::map<MutantVerdict, std::size_t> totals;
  for (const MutantOutcome& outcome : outcomes) {
    const Mutation& mutation = outcome.mutation;
    fmt::print("{:>6}  {:<9}  {:<22}  {:<13}  {}\n", mutation.line, mutation.kind, mutation.change,
               verdict_name(outcome.verdict), shortened(outcome.detail, 100));
    if (outcome.verdict != MutantVerdict::kReported) {
      const std::string source = source_text(mutation);
      fmt::print("{:>6}  {}{}{}\n", "", shortened(mutation.statement, 100),
                 source.empty() ? "" : "  ", source);
    }
    ++totals[outcome.verdict];
  }
  fmt::print("{} mutants:", outcomes.size());
  const char* separator = " ";
  for (const auto& [verdict, count] : totals) {
    fmt::print("{}{} {}", separator, count, verdict_name(verdict));
    separator = ", ";
  }
  fmt::print("\n");
}

std::vector<Mutation> chosen_mutations(const ExperimentOptions& options,
                                       const Experiment& experiment) {
  std::vector<Mutation> all = find_mutations(experiment.ptx, experiment.name, experiment.entry);
  if (options.kinds.empty()) return all;
  std::erase_if(all, [&](const Mutation& mutation) {
    return std::ranges::find(options.kinds, mutation.kind) == options.kinds.end();
  });
  return all;
}

}  // namespace

ExitStatus check_command(ExperimentOptions& options) {
  Session session(options.run);
  Trial trial(options, session);
  const Experiment& experiment = trial.experiment();
  print_head(experiment);
  const auto start = std::chrono::steady_clock::now();
  const ExperimentResult result = trial.run_intact();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  print_hazards(result.report);
  print_failed(result.failed);
  print_waits(experiment, result.report);
  fmt::print("{}: {} errors, {} warnings, {} of {} launches failed, {:.1f} s\n",
             result.clean() ? "clean" : "not clean", result.report.errors(),
             result.report.warnings(), result.failed.size(), result.launches, seconds.count());
  Json json = head_json("check", experiment);
  add_result(json, result);
  write_json(options.json, json);
  return result.clean() ? kDone : kCheckFailed;
}

ExitStatus mutate_command(ExperimentOptions& options) {
  Session session(options.run);
  Trial trial(options, session);
  const Experiment& experiment = trial.experiment();
  const std::vector<Mutation> mutations = chosen_mutations(options, experiment);
  print_head(experiment);
  const ExperimentResult intact = trial.run_intact();
  if (!intact.clean()) {
    print_hazards(intact.report);
    print_failed(intact.failed);
    core::print_error("ptxemu mutate: the kernel is not clean as it stands\n");
    return kCheckFailed;
  }
  std::vector<MutantOutcome> outcomes;
  {
    io::Progress progress("mutants", std::ssize(mutations));
    for (const Mutation& mutation : mutations) {
      outcomes.push_back(try_mutant(experiment, mutation, intact));
      progress.advance();
    }
  }
  print_mutants(outcomes);
  Json json = head_json("mutate", experiment);
  add_result(json, intact);
  json["mutants"] = Json::array();
  for (const MutantOutcome& outcome : outcomes) json["mutants"].push_back(mutant_json(outcome));
  write_json(options.json, json);
  return kDone;
}

void add_experiment_options(CLI::App& app, ExperimentOptions& options) {
  add_launch_options(app, options.run);
  app.add_option("--policy", options.policies,
                 fmt::format("only these of {}; left out: all", policy_names(false)))
      ->allow_extra_args(false);
  app.add_option("--json", options.json, "file for everything that was found");
}

void add_mutate_options(CLI::App& app, ExperimentOptions& options) {
  add_experiment_options(app, options);
  const std::vector<std::string> kinds{"wait",   "arrive",  "expect_tx", "fence",
                                       "commit", "barrier", "order"};
  app.add_option("--kind", options.kinds, fmt::format("only mutants of {}", fmt::join(kinds, ", ")))
      ->check(CLI::IsMember(kinds))
      ->allow_extra_args(false);
}

}  // namespace mxfa::emu::cli
