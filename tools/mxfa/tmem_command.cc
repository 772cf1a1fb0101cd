#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <map>
#include <memory>

#include "command.h"
#include "core/check.h"
#ifdef MXFA_HAS_DRIVER
#include "kernel/tensor_lives.h"
#endif

namespace mxfa::cli {
namespace {

struct TmemOptions {
  std::string kernel;
  std::string arch = "sm_100a";
  int head_dim = 128;
  std::string svg;
  std::string json;
};

#ifdef MXFA_HAS_DRIVER

using kernel::Life;

std::string columns_of(const Life& life) {
  return fmt::format("{} - {}", life.column, life.column + life.width - 1);
}

std::string guards_of(const Life& life) {
  std::string text;
  for (const kernel::Guard& guard : life.guards) {
    text += fmt::format("{}{} after {}: {}", text.empty() ? "" : "; ", guard.before, guard.reader,
                        guard.by);
  }
  return text.empty() ? "first use" : text;
}

void print_lives(const std::vector<Life>& lives) {
  std::map<std::vector<std::string>, int> kinds;
  std::vector<std::vector<std::string>> order;
  for (const Life& life : lives) {
    const std::vector<std::string> key{columns_of(life), life.what, life.writer, life.reader,
                                       guards_of(life)};
    if (kinds[key]++ == 0) order.push_back(key);
  }
  fmt::print("{:<11} {:<6} {:>5}  {:<11} {:<13} {}\n", "columns", "what", "times", "written by",
             "last used by", "what the writer had seen of the content before");
  for (const auto& key : order) {
    fmt::print("{:<11} {:<6} {:>5}  {:<11} {:<13} {}\n", key[0], key[1], kinds[key], key[2], key[3],
               key[4]);
  }
}

void print_sequence(const std::vector<Life>& lives) {
  fmt::print("\nIn the order of time (ticks of the emulator):\n");
  for (const Life& life : lives) {
    fmt::print("{:>8} - {:>8}  {:<11} {}\n", life.begin, life.end, columns_of(life), life.what);
  }
}

io::Json json_of(const Life& life) {
  io::Json guards = io::Json::array();
  for (const kernel::Guard& guard : life.guards) {
    guards.push_back({{"before", guard.before}, {"reader", guard.reader}, {"by", guard.by}});
  }
  return {{"what", life.what},     {"first_column", life.column},
          {"columns", life.width}, {"begin", life.begin},
          {"end", life.end},       {"writer", life.writer},
          {"reader", life.reader}, {"guards", guards}};
}

/// A content that was written without anything that orders it behind the one before.
bool unguarded(const Life& life) {
  for (const kernel::Guard& guard : life.guards) {
    if (guard.by == kernel::kNothing) return true;
  }
  return false;
}

ExitStatus run_tmem(const TmemOptions& options) {
  check_outputs({{"svg", options.svg}, {"json", options.json}});
  expect_one_of(options.arch, "arch", {"sm_100a", "sm_103a"});
  const kernel::TracedLaunch launch{.arch = options.arch, .head_dim = options.head_dim};
  const std::vector<Life> lives = kernel::tensor_lives(launch, kernel::trace_forward(launch));
  fmt::print("Tensor memory of the forward, {}, head_dim {}: {} queries, {} keys, one CTA\n\n",
             launch.arch, launch.head_dim, launch.seqlen_q, launch.seqlen_k);
  print_lives(lives);
  print_sequence(lives);
  write_svg(options.svg, [&] { return kernel::lives_svg(launch, lives); });
  io::Record record = base_record("tmem", "mxfa");
  record.extra = {{"kernel", options.kernel}, {"arch", launch.arch}, {"head_dim", launch.head_dim}};
  for (const Life& life : lives) record.extra["lives"].push_back(json_of(life));
  write_json(options.json, {record});
  return std::ranges::any_of(lives, unguarded) ? kCheckFailed : kDone;
}

#else

ExitStatus run_tmem(const TmemOptions&) {
  throw Error(ErrorKind::kDevice, "tmem: this build has no device code");
}

#endif

}  // namespace

Command add_tmem(CLI::App& root) {
  CLI::App* app =
      root.add_subcommand("tmem", "Where a Blackwell kernel keeps what, and why it may");
  app->footer(
      "Runs the kernel in the emulator and prints who owned which columns of tensor memory, when,\n"
      "and which barrier the next owner had waited for; --svg draws it. Exit status 1 where\n"
      "something was written that nothing orders behind its columns' last use.\n\n"
      "Examples:\n"
      "  mxfa tmem forward\n"
      "  mxfa tmem forward --arch sm_103a --svg tmem.svg --json tmem.json");
  const auto options = std::make_shared<TmemOptions>();
  add_blackwell_kernel_options(*app, options->kernel, options->arch, options->head_dim);
  add_svg_option(*app, "--svg", options->svg, "Write the picture");
  add_json_option(*app, options->json);
  return {app, [options] { return run_tmem(*options); }};
}

}  // namespace mxfa::cli
