#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <csignal>
#include <exception>
#include <new>

#include "command.h"
#include "core/standard_streams.h"
#include "io/safetensors.h"
#include "mxfa/error.h"
#include "mxfa/version.h"

namespace mxfa::cli {
namespace {

constexpr const char* kDescription =
    "mxfa: training attention in MXFP8.\n"
    "Answers, for your own tensors and your own machine, what 8-bit attention costs.\n";

constexpr const char* kFooter =
    "Exit status: 0 done, 1 a check failed, 2 bad input or usage (nothing is written),\n"
    "3 no suitable device.\n\n"
    "Examples:\n"
    "  mxfa sqnr --input dump.safetensors    will MXFP8 hurt your model?\n"
    "  mxfa module                           does the whole module run, and how far is it off?\n"
    "  mxfa tmem forward                     where do scales lie in tensor memory, and why so?\n"
    "  mxfa budget forward                   what limits a Blackwell kernel?\n"
    "  mxfa info                             what this build and this machine can do\n"
    "  mxfa COMMAND --help                   what a command is for, its options, examples";

constexpr AddCommand kCommands[] = {add_info,   add_quantize, add_dequantize, add_sqnr,
                                    add_module, add_bench,    add_tmem,       add_budget};

void report(const std::string& command, const std::string& message) {
  core::print_error("mxfa{}{}: error: {}\n", command.empty() ? "" : " ", command, message);
}

ExitStatus run(const Command& command, const std::string& name) {
  try {
    const ExitStatus status = command.run();
    flush_report();
    return status;
  } catch (const Error& error) {
    report(name, error.what());
    return error.kind() == ErrorKind::kDevice ? kNoDevice : kBadInput;
  } catch (const std::bad_alloc&) {
    report(name, "not enough memory for this input");
    return kBadInput;
  } catch (const std::exception& error) {
    report(name, error.what());
    return kBadInput;
  }
}

/// The subcommand that the user wrote, if any.
const Command* parsed_command(const std::vector<Command>& commands) {
  for (const Command& command : commands) {
    if (command.app->parsed()) return &command;
  }
  return nullptr;
}

/// The command as the user wrote it, its own commands included: "bench cpu".
std::string full_name(const CLI::App& root) {
  std::vector<std::string> names;
  const CLI::App* app = &root;
  for (auto parsed = app->get_subcommands(); !parsed.empty(); parsed = app->get_subcommands()) {
    app = parsed.front();
    names.push_back(app->get_name());
  }
  return fmt::format("{}", fmt::join(names, " "));
}

ExitStatus report_usage(const CLI::App& root, const CLI::ParseError& error) {
  const std::string name = full_name(root);
  // Help and version are errors of status 0 to CLI11; its other numbers mean nothing to a user.
  if (error.get_exit_code() == 0) {
    root.exit(error);
    if (core::output_written()) return kDone;
    report(name, "standard output: cannot write");
    return kBadInput;
  }
  report(name, error.what());
  core::print_error("See: mxfa{}{} --help\n", name.empty() ? "" : " ", name);
  return kBadInput;
}

/// Names a wrong word where a command belongs; CLI11 would say what is missing instead.
bool reports_unknown_command(CLI::App& root, int argc, char** argv) {
  CLI::App* app = &root;
  for (int i = 1; i < argc && argv[i][0] != '-'; ++i) {
    std::vector<std::string> names;
    CLI::App* next = nullptr;
    for (CLI::App* sub : app->get_subcommands([](CLI::App*) { return true; })) {
      names.push_back(sub->get_name());
      if (sub->get_name() == argv[i]) next = sub;
    }
    if (names.empty()) return false;
    if (next == nullptr) {
      report(app == &root ? "" : app->get_name(),
             fmt::format("unknown command '{}' (commands: {})", io::printable(argv[i]),
                         fmt::join(names, ", ")));
      return true;
    }
    app = next;
  }
  return false;
}

int main_checked(int argc, char** argv) {
  CLI::App root{kDescription, "mxfa"};
  root.footer(kFooter);
  root.require_subcommand(1);
  root.set_version_flag("--version", fmt::format("mxfa {}.{}.{}", MXFA_VERSION_MAJOR,
                                                 MXFA_VERSION_MINOR, MXFA_VERSION_PATCH));
  std::vector<Command> commands;
  for (const AddCommand add : kCommands) commands.push_back(add(root));
  if (reports_unknown_command(root, argc, argv)) return kBadInput;
  try {
    root.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return report_usage(root, error);
  }
  const Command* command = parsed_command(commands);
  return command == nullptr ? kBadInput : run(*command, full_name(root));
}

}  // namespace
}  // namespace mxfa::cli

int main(int argc, char** argv) {
  // A file size limit then fails the write, which is reported and cleaned up after.
  std::signal(SIGXFSZ, SIG_IGN);
  return mxfa::cli::main_checked(argc, argv);
}
