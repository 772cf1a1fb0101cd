#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "support/machine.h"
#ifdef MXFA_HAS_EMULATOR
#include "support/mutants.h"
#endif

namespace mxfa::testing {
namespace {

std::unique_ptr<Machine> opened;

// Throws Error where an option is unknown. `mutate` receives what --mutate names.
driver::DriverOptions parse(int argc, char** argv, std::optional<std::string>& mutate) {
  driver::DriverOptions options;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view option = argv[i];
    if (i + 1 == argc)
      throw Error(ErrorKind::kInvalidArgument, fmt::format("{}: no value", option));
    const std::string value = argv[i + 1];
    if (option == "--driver" && (value == "cuda" || value == "emulator")) {
      options.kind = value == "cuda" ? driver::DriverKind::kCuda : driver::DriverKind::kEmulator;
    } else if (option == "--arch") {
      options.arch = value;
    } else if (option == "--library") {
      options.library = value;
    } else if (option == "--policy") {
      options.emulator.policy = value;
    } else if (option == "--seed") {
      options.emulator.seed = std::stoull(value);
    } else if (option == "--checker" && (value == "on" || value == "off")) {
      options.emulator.check_hazards = value == "on";
    } else if (option == "--strict" && (value == "on" || value == "off")) {
      options.emulator.strict = value == "on";
    } else if (option == "--arithmetic") {
      options.emulator.arithmetic = value;
    } else if (option == "--multiprocessors") {
      options.emulator.multiprocessors = std::stoi(value);
    } else if (option == "--mutate") {
      mutate = value == "all" ? "" : value;
    } else if (option == "--trace") {
      options.emulator.trace_folder = value;
    } else if (option == "--threads") {
      options.emulator.threads = std::stoi(value);
    } else {
      throw Error(ErrorKind::kInvalidArgument, fmt::format("{} {}: not known", option, value));
    }
  }
  return options;
}

}  // namespace

Machine& machine() { return *opened; }

namespace {

int run_tests(const driver::DriverOptions& options, std::vector<driver::KernelImage> kernels) {
  opened = std::make_unique<Machine>(options, std::move(kernels));
  std::printf("device: %s\n", opened->device().name().c_str());
  const int result = RUN_ALL_TESTS();
  opened.reset();
  return result;
}

int run(int argc, char** argv) {
  if (::testing::GTEST_FLAG(list_tests)) return RUN_ALL_TESTS();
  std::optional<std::string> mutate;
  const driver::DriverOptions options = parse(argc, argv, mutate);
  if (!mutate) return run_tests(options, images());
#ifdef MXFA_HAS_EMULATOR
  return run_mutants({options, images(), *mutate, run_tests});
#else
  throw Error(ErrorKind::kUnsupported, "--mutate: this program was built without the emulator");
#endif
}

}  // namespace
}  // namespace mxfa::testing

/// device_tests [--driver cuda|emulator] [--arch sm_90a|sm_100a|sm_103a] [--policy P] [--seed N]
/// [--threads N] [--multiprocessors N] [--arithmetic A] [--checker on|off] [--strict on|off]
/// [--trace FOLDER] [--library FILE]: exit status 3 where there is no such device.
/// --mutate KERNEL|all, with the driver emulator and the checker on: what each wait, arrival, fence
/// and barrier of the kernels is for; see support/mutants.h.
int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  try {
    return mxfa::testing::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
}
