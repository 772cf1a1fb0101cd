#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string_view>

#include "dispatch/gpu/device_call.h"

namespace mxfa::testing {
namespace {

std::unique_ptr<Device> opened;

}  // namespace

const Device& device() { return *opened; }

}  // namespace mxfa::testing

/// dispatch_gpu_tests [--driver cuda|emulator] [--arch sm_90a|sm_100a|sm_103a]: exit status 3 where
/// there is no such device.
int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  bool emulated = false;
  std::string arch = "sm_90a";
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view option = argv[i];
    if (option == "--driver") emulated = std::string_view(argv[i + 1]) == "emulator";
    if (option == "--arch") arch = argv[i + 1];
  }
  mxfa::DeviceOptions options;
  if (emulated) options.emulated_arch = arch;
  if (!::testing::GTEST_FLAG(list_tests)) {
    try {
      mxfa::testing::opened = std::make_unique<mxfa::Device>(options);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      return 3;
    }
    std::printf("device: %s\n", mxfa::testing::device().name().c_str());
  }
  const int result = RUN_ALL_TESTS();
  mxfa::testing::opened.reset();
  return result;
}
