#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>

#include "support/machine.h"

namespace mxfa::testing {
namespace {

std::unique_ptr<Machine> opened;

}  // namespace

Machine& machine() { return *opened; }

}  // namespace mxfa::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  mxfa::driver::DriverOptions options;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--driver") == 0) {
      options.kind = std::strcmp(argv[i + 1], "emulator") == 0 ? mxfa::driver::DriverKind::kEmulator
                                                               : mxfa::driver::DriverKind::kCuda;
    } else if (std::strcmp(argv[i], "--arch") == 0) {
      options.arch = argv[i + 1];
    } else if (std::strcmp(argv[i], "--library") == 0) {
      options.library = argv[i + 1];
    }
  }
  if (!::testing::GTEST_FLAG(list_tests)) {
    try {
      mxfa::testing::opened = std::make_unique<mxfa::testing::Machine>(options);
    } catch (const mxfa::Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      return 3;
    }
    std::printf("device: %s\n", mxfa::testing::machine().device().name().c_str());
  }
  const int result = RUN_ALL_TESTS();
  mxfa::testing::opened.reset();
  return result;
}
