#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "support/machine.h"
#include "support/random_cases.h"
#ifdef MXFA_HAS_EMULATOR
#include "support/mutants.h"
#endif

namespace mxfa::testing {
namespace {

std::unique_ptr<Machine> opened;
std::optional<Range> random_range;

struct Options {
  driver::DriverOptions driver;
  std::optional<std::string> mutate;  ///< what --mutate names
  Range mutants;
};

/// "FIRST:COUNT"
Range parse_range(const std::string& value) {
  const std::size_t colon = value.find(':');
  if (colon == std::string::npos)
    throw Error(ErrorKind::kInvalidArgument, fmt::format("{}: expected FIRST:COUNT", value));
  return {std::stoll(value.substr(0, colon)), std::stoll(value.substr(colon + 1))};
}

// Throws Error where an option is unknown.
Options parse(int argc, char** argv) {
  Options parsed;
  driver::DriverOptions& options = parsed.driver;
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
      parsed.mutate = value == "all" ? "" : value;
    } else if (option == "--mutants") {
      parsed.mutants = parse_range(value);
    } else if (option == "--random") {
      random_range = parse_range(value);
    } else if (option == "--trace") {
      options.emulator.trace_folder = value;
    } else if (option == "--threads") {
      options.emulator.threads = std::stoi(value);
    } else {
      throw Error(ErrorKind::kInvalidArgument, fmt::format("{} {}: not known", option, value));
    }
  }
  return parsed;
}

}  // namespace

Machine& machine() { return *opened; }
Range random_cases(std::int64_t few) { return random_range.value_or(Range{0, few}); }

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
  const Options options = parse(argc, argv);
  if (!options.mutate) return run_tests(options.driver, images());
#ifdef MXFA_HAS_EMULATOR
  return run_mutants({options.driver, images(), *options.mutate, options.mutants, run_tests});
#else
  throw Error(ErrorKind::kUnsupported, "--mutate: this program was built without the emulator");
#endif
}

}  // namespace
}  // namespace mxfa::testing

/// device_tests [--driver cuda|emulator] [--arch sm_90a|sm_100a|sm_103a] [--policy P] [--seed N]
/// [--threads N] [--multiprocessors N] [--arithmetic A] [--checker on|off] [--strict on|off]
/// [--trace FOLDER] [--library FILE]: exit status 3 where there is no such device.
/// --random FIRST:COUNT: which drawn cases the tests named Random go through.
/// --mutate KERNEL|all, with the driver emulator and the checker on: what each wait, arrival, fence
/// and barrier of the kernels is for; see support/mutants.h. --mutants FIRST:COUNT: some of them.
int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  try {
    return mxfa::testing::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
}
