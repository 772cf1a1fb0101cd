#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <exception>
#include <limits>
#include <new>

#include "core/standard_streams.h"
#include "experiments.h"
#include "io/atomic_file.h"
#include "words.h"

/// ptxemu: run, trace, check or mutate PTX kernels. Exit status: 0 done, 1 the program is wrong
/// (fault, hazard, unknown opcode, results that differ between seeds), 2 bad input or usage.
namespace mxfa::emu::cli {
namespace {

constexpr std::uint64_t kMaxSeeds = 1'000'000;
/// A trace keeps the blocks up to the one that is shown.
constexpr std::uint64_t kMaxBlock = 1'000'000;

/// CLI11 itself would wrap what is too large or negative, and take 010 for 8.
CLI::Validator whole_number(std::uint64_t min, std::uint64_t max) {
  return {[=](std::string& text) -> std::string {
            std::uint64_t value = 0;
            const char* const end = text.data() + text.size();
            const auto parsed = std::from_chars(text.data(), end, value);
            if (parsed.ec != std::errc{} || parsed.ptr != end || value < min || value > max) {
              return fmt::format("expected a whole number of {} to {}, got '{}'", min, max, text);
            }
            text = std::to_string(value);
            return {};
          },
          ""};
}

/// A flag without a value is "true".
const CLI::Validator kSwitch{[](std::string& text) -> std::string {
                               if (text == "true" || text == "false") return {};
                               return fmt::format("expected no value, or true or false, got '{}'",
                                                  text);
                             },
                             ""};

struct TraceOptions {
  RunOptions run;
  TraceReport report;
  std::uint32_t block = 0;
  std::vector<std::string> roles;
  std::string json;
  std::string svg;
};

/// `seed`: of the last launch.
ExitStatus run_seeds(Session& session, const RunOptions& options, std::uint64_t& seed) {
  std::uint64_t first_checksum = 0;
  for (std::uint64_t i = 0; i < options.seeds; ++i) {
    LaunchOptions launch = options.launch;
    launch.seed = seed = options.seed + i;
    const auto start = std::chrono::steady_clock::now();
    const LaunchStats stats = session.launch(session.module(), launch);
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
      core::print_error(
          "ptxemu run: results of seed {} differ from {}\n", launch.seed,
          !same ? fmt::format("those of seed {}", options.seed) : "what --expect says");
      return kCheckFailed;
    }
  }
  return kDone;
}

ExitStatus run_command(RunOptions& options) {
  Session session(options);
  session.check_outputs({});
  std::uint64_t seed = 0;
  return run_seeds(session, options, seed);
}

// "producer=16" or "consumer=0-15".
TraceRole parse_role(const std::string& text) {
  const std::size_t equals = text.find('=');
  const bool named = equals != std::string::npos && equals > 0;
  core::expect(named, "--role", "NAME=WARP or NAME=FIRST-LAST", "'" + text + "'");
  const std::string what = "--role " + text;
  const std::string range = text.substr(equals + 1);
  const std::size_t dash = range.find('-');
  TraceRole role;
  role.name = text.substr(0, equals);
  role.first = parse_whole<std::uint32_t>(what, range.substr(0, dash));
  role.last = dash == std::string::npos
                  ? role.first
                  : parse_whole<std::uint32_t>(what, range.substr(dash + 1), role.first);
  return role;
}

// What could be found only after the launch.
void check_trace(const TraceOptions& options, const std::vector<TraceRole>& roles,
                 const Session& session) {
  core::expect(!options.json.empty() || !options.svg.empty(), "trace",
               "--json FILE, --svg FILE or both", "neither");
  core::expect(options.block < session.blocks(), "--show-block",
               fmt::format("a block of the grid, 0 to {}", session.blocks() - 1),
               std::to_string(options.block));
  for (const TraceRole& role : roles) {
    core::expect(role.last < session.warps(), "--role " + role.name,
                 fmt::format("warps of a block, 0 to {}", session.warps() - 1),
                 std::to_string(role.last));
  }
  session.check_outputs({{"--json", options.json}, {"--svg", options.svg}});
}

// Also of a launch that faults: the trace shows how it came to it.
ExitStatus trace_command(TraceOptions& options) {
  std::vector<TraceRole> roles;
  for (const std::string& role : options.roles) roles.push_back(parse_role(role));
  Session session(options.run);
  check_trace(options, roles, session);
  options.report.max_blocks = options.block + 1;
  options.run.launch.trace = &options.report;
  std::exception_ptr fault;
  ExitStatus status = kDone;
  std::uint64_t seed = 0;
  try {
    status = run_seeds(session, options.run, seed);
  } catch (const PtxError&) {
    fault = std::current_exception();
  }
  const auto write = [](const std::string& path, const std::string& content) {
    if (!path.empty()) io::write_text_file(path, content);
  };
  if (roles.empty()) roles = guess_roles(options.report);
  write(options.json, chrome_json(options.report));
  write(options.svg, timeline_svg(options.report, roles, options.block));
  if (options.run.seeds > 1) fmt::print("the trace is of seed {}\n", seed);
  if (fault) std::rethrow_exception(fault);
  return status;
}

ExitStatus lint_command(const std::vector<std::string>& paths) {
  ExitStatus status = kDone;
  for (const std::string& path : paths) {
    const std::string text = read_text(path, "lint");
    for (const LintFinding& finding : bad_input_of([&] { return lint(text, path); })) {
      fmt::print("{}:{}: {}: '{}'\n", path, finding.line, finding.reason, finding.opcode);
      status = kCheckFailed;
    }
  }
  return status;
}

void add_run_options(CLI::App& app, RunOptions& options) {
  add_launch_options(app, options);
  app.add_option_function<std::string>(
         "--policy",
         [&options](const std::string& name) { options.launch.policy = parse_policy(name, true); },
         policy_names(true))
      ->take_last();
  app.add_option("--threads", options.launch.threads, "host threads")
      ->transform(whole_number(1, 1024));
  app.add_flag("--perturb", options.launch.perturb,
               "approximate functions are off by up to the ISA's bound; seeds may then differ")
      ->check(kSwitch);
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
    tracing->add_option("--show-block", trace.block, "the block, by its linear index")
        ->transform(whole_number(0, kMaxBlock));
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

  /// Names a wrong word where the command belongs; CLI11 would say what is missing instead.
  void check_name(const std::string& word) {
    std::vector<std::string> names;
    for (const CLI::App* sub : app.get_subcommands({})) names.push_back(sub->get_name());
    core::expect(word.starts_with('-') || std::ranges::count(names, word) > 0, "command",
                 fmt::format("{}", fmt::join(names, ", ")), fmt::format("'{}'", word));
  }

  void files_are_read(const std::vector<std::string>& files) {
    for (RunOptions* options : {&run, &trace.run, &check.run, &mutate.run}) {
      options->word_files = files;
    }
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
    std::vector<std::string> files;
    std::vector<std::string> words = expand_files({argv + 1, argv + argc}, files);
    if (!words.empty()) commands.check_name(words.front());
    std::ranges::reverse(words);  // as parse() takes them
    commands.app.parse(std::move(words));
    commands.files_are_read(files);
    return commands.execute();
  } catch (const CLI::ParseError& error) {
    return commands.app.exit(error) == 0 ? kDone : kBadInput;
  } catch (const PtxError& error) {
    core::print_error("ptxemu: {}\n", error.what());
    return kCheckFailed;
  } catch (const std::exception& error) {
    core::print_error("ptxemu: {}\n", error.what());
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
  app.add_option("--smem", options.shared_bytes, "dynamic shared memory, bytes")
      ->take_last()
      ->transform(whole_number(0, std::numeric_limits<std::uint32_t>::max()));
  app.add_option("--arg", options.arguments, "an argument, in order; see below")
      ->allow_extra_args(false);
  app.add_option("--buffer", options.buffers, "NAME=TYPE:COUNT=PATTERN; see below")
      ->allow_extra_args(false);
  app.add_option("--out", options.outputs, "BUFFER=FILE: write a buffer after the first launch")
      ->allow_extra_args(false);
  app.add_option("--expect", options.expected,
                 "BUFFER=FILE: what a buffer must hold after every launch")
      ->allow_extra_args(false);
  app.add_option("--seed", options.seed, "first seed")
      ->take_last()
      ->transform(whole_number(0, std::numeric_limits<std::uint64_t>::max()));
  app.add_option("--seeds", options.seeds, "how many seeds; results must not differ")
      ->capture_default_str()
      ->take_last()
      ->transform(whole_number(1, kMaxSeeds));
  app.add_option("--resident", options.launch.resident_clusters, "clusters interleaved on a thread")
      ->transform(whole_number(1, 4096));
  app.add_flag("--strict", options.launch.strict,
               "what practice relies on although the ISA does not promise it is an error")
      ->check(kSwitch);
  app.add_flag("--keep-diverged", options.keep_diverged, "join diverged lanes only where they must")
      ->check(kSwitch);
  app.add_flag("--allow-uninitialised", options.allow_uninitialised,
               "reads of bytes that nobody wrote are no errors")
      ->check(kSwitch);
}

}  // namespace mxfa::emu::cli

int main(int argc, char** argv) {
  const int status = mxfa::emu::cli::main_checked(argc, argv);
  if (mxfa::core::output_written()) return status;
  mxfa::core::print_error("ptxemu: standard output: cannot write\n");
  return mxfa::emu::cli::kBadInput;
}
