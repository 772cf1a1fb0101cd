#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <string_view>

#include "support/machine.h"

namespace mxfa::testing {
namespace {

std::unique_ptr<Machine> opened;

// Throws Error where an option is unknown.
driver::DriverOptions parse(int argc, char** argv) {
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

}  // namespace mxfa::testing

/// device_tests [--driver cuda|emulator] [--arch sm_90a|sm_100a|sm_103a] [--policy P] [--seed N]
/// [--threads N] [--multiprocessors N] [--arithmetic A] [--checker on|off] [--strict on|off]
/// [--trace FOLDER] [--library FILE]: exit status 3 where there is no such device.
int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!::testing::GTEST_FLAG(list_tests)) {
    try {
      mxfa::testing::opened = std::make_unique<mxfa::testing::Machine>(
          mxfa::testing::parse(argc, argv), mxfa::testing::images());
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      return 3;
    }
    std::printf("device: %s\n", mxfa::testing::machine().device().name().c_str());
  }
  const int result = RUN_ALL_TESTS();
  mxfa::testing::opened.reset();
  return result;
}
