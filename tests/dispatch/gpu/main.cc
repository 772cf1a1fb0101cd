#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string_view>

#include "dispatch/gpu/device_call.h"

namespace mxfa::testing {
namespace {

std::unique_ptr<Device> opened;

/// Launches from now on run under the emulator's hazard checker; what practice relies on passes.
bool check_hazards() {
  void* const emulator = dlopen("libmxemu.so", RTLD_NOW);  // the library that the device has opened
  if (emulator == nullptr) return false;
  using Set = int (*)(int);
  const auto checker = reinterpret_cast<Set>(dlsym(emulator, "mxemuSetChecker"));
  const auto strict = reinterpret_cast<Set>(dlsym(emulator, "mxemuSetStrict"));
  return checker != nullptr && strict != nullptr && checker(1) == 0 && strict(0) == 0;
}

}  // namespace

const Device& device() { return *opened; }

}  // namespace mxfa::testing

/// dispatch_gpu_tests [--driver cuda|emulator] [--arch sm_90a|sm_100a|sm_103a] [--checker on|off]:
/// exit status 3 where there is no such device.
int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  bool emulated = false;
  bool checked = false;
  std::string arch = "sm_90a";
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view option = argv[i];
    if (option == "--driver") emulated = std::string_view(argv[i + 1]) == "emulator";
    if (option == "--checker") checked = std::string_view(argv[i + 1]) == "on";
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
    if (checked && !(emulated && mxfa::testing::check_hazards())) {
      std::fprintf(stderr, "--checker: expected the emulator\n");
      return 3;
    }
    std::printf("device: %s\n", mxfa::testing::device().name().c_str());
  }
  const int result = RUN_ALL_TESTS();
  mxfa::testing::opened.reset();
  return result;
}
