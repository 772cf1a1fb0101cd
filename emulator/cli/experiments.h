#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "session.h"

namespace CLI {
class App;
}  // namespace CLI

namespace mxfa::emu::cli {

/// 0 done, 1 the program is wrong, 2 bad input or usage.
enum ExitStatus : int { kDone = 0, kCheckFailed = 1, kBadInput = 2 };

/// Of the commands check and mutate.
struct ExperimentOptions {
  RunOptions run;
  std::vector<std::string> policies;  ///< empty: all
  std::vector<std::string> kinds;     ///< of mutants; empty: all
  std::string json;
};

/// What check, mutate and run have in common: the file, the launch, its arguments.
void add_launch_options(CLI::App& app, RunOptions& options);
void add_experiment_options(CLI::App& app, ExperimentOptions& options);
void add_mutate_options(CLI::App& app, ExperimentOptions& options);

ExitStatus check_command(ExperimentOptions& options);
ExitStatus mutate_command(ExperimentOptions& options);

}  // namespace mxfa::emu::cli
