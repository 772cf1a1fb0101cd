#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <exception>
#include <map>

#include "experiments.h"
#include "words.h"

/// ptxemu: run, trace, check or mutate PTX kernels. Exit status: 0 done, 1 the program is wrong
/// (fault, hazard, unknown opcode, results that differ between seeds), 2 bad input or usage.
namespace mxfa::emu::cli {
namespace {

struct TraceOptions {
  RunOptions run;
  TraceReport report;
  std::uint32_t block = 0;
  std::vector<std::string> roles;
  std::string json;
  std::string svg;
};

ExitStatus run_command(RunOptions& options) {
  Session session(options);
  const Module module(session.ptx(), options.path, session.memory());
  module.entry(options.entry);  // lowered here, so that the time below is the launch alone
  std::uint64_t first_checksum = 0;
  for (std::uint64_t i = 0; i < options.seeds; ++i) {
    LaunchOptions launch = options.launch;
    launch.seed = options.seed + i;
    const auto start = std::chrono::steady_clock::now();
    const LaunchStats stats = session.launch(module, launch);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const std::uint64_t checksum = session.checksum();
    fmt::print(
        "seed {}: {} thread, {} warp instructions in {:.3f} s ({:.3f} G/s), checksum {:016x}\n",
        launch.seed, stats.thread_instructions, stats.warp_instructions, seconds,
        static_cast<double>(stats.thread_instructions) / seconds * 1e-9, checksum);
    if (i == 0) {
      first_checksum = checksum;
      session.write_outputs();
    }
    const bool same = checksum == first_checksum || launch.perturb;
    if (!session.as_expected() || !same) {
      fmt::print(stderr, "ptxemu run: results of seed {} differ from {}\n", launch.seed,
                 !same ? fmt::format("those of seed {}", options.seed) : "what --expect says");
      return kCheckFailed;
    }
  }
  return kDone;
}

// "producer=16" or "consumer=0-15".
TraceRole parse_role(const std::string& text) {
  TraceRole role;
  const std::size_t equals = text.find('=');
  const std::string range = equals == std::string::npos ? "" : text.substr(equals + 1);
  const char* end = range.data() + range.size();
  const auto first = std::from_chars(range.data(), end, role.first);
  role.last = role.first;
  auto last = first;
  if (first.ec == std::errc{} && first.ptr != end && *first.ptr == '-') {
    last = std::from_chars(first.ptr + 1, end, role.last);
  }
  if (equals == 0 || last.ec != std::errc{} || last.ptr != end || role.last < role.first) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("--role: expected NAME=WARP or NAME=FIRST-LAST, got '{}'", text));
  }
  role.name = text.substr(0, equals);
  return role;
}

// Also of a launch that faults: the trace shows how it came to it.
ExitStatus trace_command(TraceOptions& options) {
  std::vector<TraceRole> roles;
  for (const std::string& role : options.roles) roles.push_back(parse_role(role));
  options.report.max_blocks = options.block + 1;
  options.run.launch.trace = &options.report;
  std::exception_ptr fault;
  ExitStatus status = kDone;
  try {
    status = run_command(options.run);
  } catch (const PtxError&) {
    fault = std::current_exception();
  }
  const auto write = [](const std::string& path, const std::string& content) {
    if (path.empty()) return;
    write_bytes(path, reinterpret_cast<const std::byte*>(content.data()), content.size());
  };
  if (roles.empty()) roles = guess_roles(options.report);
  write(options.json, chrome_json(options.report));
  write(options.svg, timeline_svg(options.report, roles, options.block));
  if (fault) std::rethrow_exception(fault);
  return status;
}

ExitStatus lint_command(const std::vector<std::string>& paths) {
  ExitStatus status = kDone;
  for (const std::string& path : paths) {
    for (const LintFinding& finding : lint(read_text(path), path)) {
      fmt::print("{}:{}: {}: '{}'\n", path, finding.line, finding.reason, finding.opcode);
      status = kCheckFailed;
    }
  }
  return status;
}

void add_run_options(CLI::App& app, RunOptions& options) {
  add_launch_options(app, options);
  const std::map<std::string, Policy> policies{
      {"random", Policy::kRandom}, {"earliest", Policy::kEarliest}, {"latest", Policy::kLatest},
      {"lifo", Policy::kLifo},     {"starve", Policy::kStarve},     {"timed", Policy::kTimed}};
  app.add_option("--policy", options.launch.policy, "random, earliest, latest, lifo, starve, timed")
      ->transform(CLI::CheckedTransformer(policies, CLI::ignore_case));
  app.add_option("--threads", options.launch.threads, "host threads")->check(CLI::Range(1, 1024));
  app.add_flag("--perturb", options.launch.perturb,
               "approximate functions are off by up to the ISA's bound; seeds may then differ");
}

struct Commands {
  CLI::App app{"runs PTX kernels on the CPU, and finds their races", "ptxemu"};
  RunOptions run;
  TraceOptions trace;
  ExperimentOptions check, mutate;
  std::vector<std::string> lint;

  void define() {
    app.require_subcommand(1);
    add_run_options(*app.add_subcommand("run", "run a kernel under one or more interleavings"),
                    run);
    CLI::App* tracing = app.add_subcommand("trace", "run a kernel and record what happens when");
    trace.run.launch.policy = Policy::kTimed;
    add_run_options(*tracing, trace.run);
    tracing->add_option("--json", trace.json, "file for Chrome's trace format");
    tracing->add_option("--svg", trace.svg, "file for a timeline of one block");
    tracing->add_option("--show-block", trace.block, "the block, by its linear index");
    tracing->add_option("--role", trace.roles, "NAME=WARP or NAME=FIRST-LAST; left out: guessed")
        ->allow_extra_args(false);
    check.run.seeds = 5;
    add_experiment_options(
        *app.add_subcommand("check",
                            "run a kernel under every policy with the hazard checker on: status 1 "
                            "where it finds an error, a launch fails or results differ"),
        check);
    mutate.run.seeds = 2;
    add_mutate_options(
        *app.add_subcommand("mutate",
                            "take away or weaken each wait, arrival, fence, commit, expect_tx and "
                            "barrier in turn, and tell what shows it: a report, a wrong output, a "
                            "hang, or nothing (redundant in these launches)"),
        mutate);
    app.add_subcommand("lint", "list opcodes that the emulator does not know")
        ->add_option("files", lint, "PTX texts")
        ->required();
  }

  ExitStatus execute() {
    if (app.got_subcommand("run")) return run_command(run);
    if (app.got_subcommand("trace")) return trace_command(trace);
    if (app.got_subcommand("check")) return check_command(check);
    if (app.got_subcommand("mutate")) return mutate_command(mutate);
    return lint_command(lint);
  }
};

int main_checked(int argc, char** argv) {
  Commands commands;
  commands.define();
  try {
    std::vector<std::string> words = expand_files({argv + 1, argv + argc});
    std::ranges::reverse(words);  // as parse() takes them
    commands.app.parse(std::move(words));
    return commands.execute();
  } catch (const CLI::ParseError& error) {
    return commands.app.exit(error) == 0 ? kDone : kBadInput;
  } catch (const PtxError& error) {
    fmt::print(stderr, "ptxemu: {}\n", error.what());
    return kCheckFailed;
  } catch (const std::exception& error) {
    fmt::print(stderr, "ptxemu: {}\n", error.what());
    return kBadInput;
  }
}

}  // namespace

void add_launch_options(CLI::App& app, RunOptions& options) {
  app.footer(kArgumentHelp);
  app.add_option("file", options.path, "PTX text")->required();
  app.add_option("--entry", options.entry, "kernel; may be left out where the file has one");
  app.add_option("--grid", options.grid, "blocks, X[,Y[,Z]]")->take_last();
  app.add_option("--block", options.block, "threads of a block, X[,Y[,Z]]")->take_last();
  app.add_option("--cluster", options.cluster, "blocks of a cluster, X[,Y[,Z]]");
  app.add_option("--smem", options.shared_bytes, "dynamic shared memory, bytes")->take_last();
  app.add_option("--arg", options.arguments, "an argument, in order; see below")
      ->allow_extra_args(false);
  app.add_option("--buffer", options.buffers, "NAME=TYPE:COUNT=PATTERN; see below")
      ->allow_extra_args(false);
  app.add_option("--out", options.outputs, "BUFFER=FILE: write a buffer after the first launch")
      ->allow_extra_args(false);
  app.add_option("--expect", options.expected,
                 "BUFFER=FILE: what a buffer must hold after every launch")
      ->allow_extra_args(false);
  app.add_option("--seed", options.seed, "first seed")->take_last();
  app.add_option("--seeds", options.seeds, "how many seeds; results must not differ")
      ->capture_default_str()
      ->take_last()
      ->check(CLI::PositiveNumber);
  app.add_option("--resident", options.launch.resident_clusters, "clusters interleaved on a thread")
      ->check(CLI::Range(1, 4096));
  app.add_flag("--strict", options.launch.strict,
               "what practice relies on although the ISA does not promise it is an error");
  app.add_flag("--keep-diverged", options.keep_diverged,
               "join diverged lanes only where they must");
  app.add_flag("--allow-uninitialised", options.allow_uninitialised,
               "reads of bytes that nobody wrote are no errors");
}

}  // namespace mxfa::emu::cli

int main(int argc, char** argv) { return mxfa::emu::cli::main_checked(argc, argv); }
