#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <exception>
#include <map>

#include "arguments.h"

/// ptxemu: run, trace or check PTX files. Exit status: 0 done, 1 the program is wrong (fault,
/// unknown opcode, results that differ between seeds), 2 bad input or usage.
namespace mxfa::emu::cli {
namespace {

enum ExitStatus : int { kDone = 0, kCheckFailed = 1, kBadInput = 2 };

struct RunOptions {
  std::string path;
  std::string entry;
  std::string grid = "1";
  std::string block = "32";
  std::string cluster;
  std::uint32_t shared_bytes = 0;
  std::vector<std::string> arguments;
  std::vector<std::string> outputs;
  std::uint64_t seed = 0;
  std::uint64_t seeds = 1;
  LaunchOptions launch;
  bool keep_diverged = false;
  bool allow_uninitialised = false;
};

struct TraceOptions {
  RunOptions run;
  TraceReport report;
  std::uint32_t block = 0;
  std::vector<std::string> roles;
  std::string json;
  std::string svg;
};

/// The buffers of one launch.
class Run {
 public:
  explicit Run(const std::vector<ArgumentSpec>& specs) : specs_(specs) {
    for (const ArgumentSpec& spec : specs_) {
      const std::vector<std::byte> bytes = initial_bytes(spec);
      if (!spec.is_buffer) {
        arguments_.add_bytes(bytes.data(), bytes.size());
        buffers_.push_back(nullptr);
        continue;
      }
      std::byte* data = memory_.allocate(spec.bytes(), "argument " + spec.text);
      if (!bytes.empty()) {
        std::copy(bytes.begin(), bytes.end(), data);
        memory_.mark_initialised(data, bytes.size());
      }
      arguments_.add(data);
      buffers_.push_back(data);
    }
  }

  GlobalMemory& memory() { return memory_; }
  const Arguments& arguments() const { return arguments_; }
  const std::byte* buffer(std::size_t i) const {
    return i < buffers_.size() ? buffers_[i] : nullptr;
  }

  /// FNV-1a over all buffers.
  std::uint64_t checksum() const {
    std::uint64_t hash = 0xCBF29CE484222325u;
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      if (buffers_[i] == nullptr) continue;
      const std::uint64_t bytes = specs_[i].bytes();
      for (std::uint64_t b = 0; b < bytes; ++b) {
        hash = (hash ^ static_cast<std::uint64_t>(buffers_[i][b])) * 0x100000001B3u;
      }
    }
    return hash;
  }

 private:
  const std::vector<ArgumentSpec>& specs_;
  GlobalMemory memory_;
  Arguments arguments_;
  std::vector<std::byte*> buffers_;
};

void write_outputs(const Run& run, const std::vector<ArgumentSpec>& specs,
                   const std::vector<std::string>& outputs) {
  for (const std::string& output : outputs) {
    const std::size_t equals = output.find('=');
    const std::size_t index = equals == 1 && output[0] >= '0' && output[0] <= '9'
                                  ? static_cast<std::size_t>(output[0] - '0')
                                  : specs.size();
    if (run.buffer(index) == nullptr) {
      throw Error(ErrorKind::kInvalidArgument,
                  fmt::format("--out {}: expected NUMBER=FILE of a buffer argument", output));
    }
    write_bytes(output.substr(equals + 1), run.buffer(index), specs[index].bytes());
  }
}

LaunchConfig launch_config(const RunOptions& options) {
  LaunchConfig config;
  config.grid = parse_dim3(options.grid, "--grid");
  config.block = parse_dim3(options.block, "--block");
  if (!options.cluster.empty()) config.cluster = parse_dim3(options.cluster, "--cluster");
  config.dynamic_shared_bytes = options.shared_bytes;
  return config;
}

ExitStatus run_command(RunOptions& options) {
  const std::string text = read_text(options.path);
  std::vector<ArgumentSpec> specs;
  for (const std::string& argument : options.arguments) specs.push_back(parse_argument(argument));
  const LaunchConfig config = launch_config(options);
  options.launch.converge = !options.keep_diverged;
  options.launch.check_uninitialised = !options.allow_uninitialised;
  options.launch.print = [](const std::string& line) { fmt::print("{}", line); };
  std::uint64_t first_checksum = 0;
  for (std::uint64_t i = 0; i < options.seeds; ++i) {
    Run run(specs);
    const Module module(text, options.path, run.memory());
    const std::vector<std::string> entries = module.entries();
    if (options.entry.empty() && entries.size() == 1) options.entry = entries[0];
    if (options.entry.empty()) {
      throw Error(ErrorKind::kInvalidArgument,
                  fmt::format("--entry: expected one of {}", fmt::join(entries, ", ")));
    }
    module.entry(options.entry);  // lowered here, so that the time below is the launch alone
    options.launch.seed = options.seed + i;
    const auto start = std::chrono::steady_clock::now();
    const LaunchStats stats = module.launch(options.entry, config, run.arguments(), options.launch);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const std::uint64_t checksum = run.checksum();
    fmt::print(
        "seed {}: {} thread, {} warp instructions in {:.3f} s ({:.3f} G/s), checksum {:016x}\n",
        options.launch.seed, stats.thread_instructions, stats.warp_instructions, seconds,
        static_cast<double>(stats.thread_instructions) / seconds * 1e-9, checksum);
    if (i == 0) {
      first_checksum = checksum;
      write_outputs(run, specs, options.outputs);
    } else if (checksum != first_checksum) {
      fmt::print(stderr, "ptxemu run: results of seed {} differ from those of seed {}\n",
                 options.launch.seed, options.seed);
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
  app.add_option("file", options.path, "PTX text")->required();
  app.add_option("--entry", options.entry, "kernel; may be left out where the file has one");
  app.add_option("--grid", options.grid, "blocks, X[,Y[,Z]]");
  app.add_option("--block", options.block, "threads of a block, X[,Y[,Z]]");
  app.add_option("--cluster", options.cluster, "blocks of a cluster, X[,Y[,Z]]");
  app.add_option("--smem", options.shared_bytes, "dynamic shared memory, bytes");
  app.add_option("--arg", options.arguments,
                 "argument, in order: TYPE=VALUE, or a buffer TYPE:COUNT=PATTERN with zeros, ones, "
                 "iota, random[:SEED], out, @FILE")
      ->allow_extra_args(false);
  app.add_option("--out", options.outputs, "NUMBER=FILE: write a buffer argument afterwards");
  app.add_option("--seed", options.seed, "first seed");
  app.add_option("--seeds", options.seeds, "how many seeds; results must not differ")
      ->check(CLI::PositiveNumber);
  const std::map<std::string, Policy> policies{
      {"random", Policy::kRandom}, {"earliest", Policy::kEarliest}, {"latest", Policy::kLatest},
      {"lifo", Policy::kLifo},     {"starve", Policy::kStarve},     {"timed", Policy::kTimed}};
  app.add_option("--policy", options.launch.policy, "random, earliest, latest, lifo, starve, timed")
      ->transform(CLI::CheckedTransformer(policies, CLI::ignore_case));
  app.add_option("--threads", options.launch.threads, "host threads")->check(CLI::Range(1, 1024));
  app.add_option("--resident", options.launch.resident_clusters, "clusters interleaved on a thread")
      ->check(CLI::Range(1, 4096));
  app.add_flag("--keep-diverged", options.keep_diverged,
               "join diverged lanes only where they must");
  app.add_flag("--allow-uninitialised", options.allow_uninitialised,
               "reads of bytes that nobody wrote are no errors");
}

int main_checked(int argc, char** argv) {
  CLI::App app{"ptxemu: runs PTX kernels on the CPU"};
  app.require_subcommand(1);
  RunOptions options;
  CLI::App* run = app.add_subcommand("run", "run a kernel under one or more interleavings");
  add_run_options(*run, options);
  TraceOptions tracing;
  tracing.run.launch.policy = Policy::kTimed;
  CLI::App* trace = app.add_subcommand("trace", "run a kernel and record what happens when");
  add_run_options(*trace, tracing.run);
  trace->add_option("--json", tracing.json, "file for Chrome's trace format");
  trace->add_option("--svg", tracing.svg, "file for a timeline of one block");
  trace->add_option("--show-block", tracing.block, "the block, by its linear index");
  trace->add_option("--role", tracing.roles, "NAME=WARP or NAME=FIRST-LAST; left out: guessed")
      ->allow_extra_args(false);
  std::vector<std::string> paths;
  CLI::App* lint_app = app.add_subcommand("lint", "list opcodes that the emulator does not know");
  lint_app->add_option("files", paths, "PTX texts")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kDone : kBadInput;
  }
  try {
    if (run->parsed()) return run_command(options);
    return trace->parsed() ? trace_command(tracing) : lint_command(paths);
  } catch (const PtxError& error) {
    fmt::print(stderr, "ptxemu: {}\n", error.what());
    return kCheckFailed;
  } catch (const std::exception& error) {
    fmt::print(stderr, "ptxemu: {}\n", error.what());
    return kBadInput;
  }
}

}  // namespace
}  // namespace mxfa::emu::cli

int main(int argc, char** argv) { return mxfa::emu::cli::main_checked(argc, argv); }
