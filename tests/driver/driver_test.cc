#include "driver/driver.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "driver/device.h"
#include "driver/kernel.h"

/// The driver's wrappers on the emulator.
namespace mxfa::driver {
namespace {

constexpr const char* kPtx = R"(.version 9.0
.target sm_90a
.address_size 64
.visible .entry store(.param .u64 p)
{
  .reg .b64 d<2>;
  ld.param.u64 d1, [p];
  st.global.u32 [d1], 7;
  ret;
}
)";

DriverOptions emulator(const std::string& arch = "sm_90a") {
  DriverOptions options;
  options.kind = DriverKind::kEmulator;
  options.arch = arch;
  options.library = MXFA_EMULATOR_LIBRARY;
  return options;
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kDevice);
    return error.what();
  }
  ADD_FAILURE() << "expected an Error";
  return {};
}

void expect_text(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
  }
}

TEST(DriverOnEmulator, OneDeviceOfTheArchitectureAskedFor) {
  for (const char* arch : {"sm_90a", "sm_100a", "sm_103a"}) {
    const auto driver = std::make_shared<const Driver>(emulator(arch));
    EXPECT_EQ(driver->device_count(), 1);
    const Device device(driver, 0);
    EXPECT_EQ(device.arch(), arch);
    EXPECT_EQ(device.name(), std::string("mxemu ") + arch);
  }
}

TEST(DriverOnEmulator, OptionsReachTheMachine) {
  DriverOptions options = emulator();
  options.emulator.device_count = 3;
  options.emulator.multiprocessors = 5;
  options.emulator.poison_memory = false;
  const auto driver = std::make_shared<const Driver>(options);
  EXPECT_EQ(driver->device_count(), 3);
  const Device device(driver, 2);
  EXPECT_EQ(device.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), 5);
  std::uint32_t word = 1;
  DeviceBuffer(device, 4).download(&word, 4);
  EXPECT_EQ(word, 0u);
}

TEST(DriverOnEmulator, WrongOptionsAreNamed) {
  const auto message_of = [](const DriverOptions& options) {
    return error_of([&] { const Driver driver(options); });
  };
  expect_text(message_of(emulator("sm_80")), {"mxemuSetArch(sm_80)", "sm_103a"});
  DriverOptions options = emulator();
  options.emulator.policy = "never";
  expect_text(message_of(options), {"mxemuSetSchedule(never, 0)", "starve"});
  options = emulator();
  options.library = "libnothing.so";
  expect_text(message_of(options), {"libnothing.so"});
  const auto in_use = std::make_shared<const Driver>(emulator());
  const Device device(in_use, 0);
  expect_text(message_of(emulator("sm_100a")), {"mxemuSetArch(sm_100a)", "in use"});
}

TEST(DriverOnEmulator, ErrorsCarryTheEmulatorsReport) {
  const auto driver = std::make_shared<const Driver>(emulator());
  const Device device(driver, 0);
  const KernelImage images[] = {{"store", "sm_90a", {}, kPtx}};
  KernelCache kernels(device, images);
  const Kernel kernel = kernels.get("store", "store");
  const DeviceBuffer buffer(device, 4);
  kernel.launch(nullptr, {}, buffer.address());
  device.synchronize();
  std::uint32_t word = 0;
  buffer.download(&word, 4);
  EXPECT_EQ(word, 7u);
  kernel.launch(nullptr, {}, buffer.address() + 4);
  expect_text(error_of([&] { device.synchronize(); }),
              {"cuCtxSynchronize", "CUDA_ERROR_ILLEGAL_ADDRESS", "st.global.u32 [d1], 7",
               "byte 4 of buffer", "kernel store", "launch seed"});
}

/// The driver's own answer for each shape, whatever its grid, and one question for it.
TEST(DriverOnEmulator, ResidentClustersAreAskedForOnce) {
  DriverOptions options = emulator();
  options.emulator.multiprocessors = 12;
  const auto driver = std::make_shared<Driver>(options);
  static int asked;
  static FunctionTable original;
  asked = 0;
  original = driver->calls();
  const_cast<FunctionTable&>(driver->calls()).cuOccupancyMaxActiveClusters =
      [](int* count, CUfunction function, const CUlaunchConfig* config) {
        ++asked;
        return original.cuOccupancyMaxActiveClusters(count, function, config);
      };
  const Device device(driver, 0);
  const KernelImage images[] = {{"store", "sm_90a", {}, kPtx}};
  KernelCache kernels(device, images);
  const auto clusters = [&](unsigned cluster, unsigned threads) {
    LaunchShape shape;
    shape.grid[0] = static_cast<unsigned>(asked + 1) * cluster;
    shape.block[0] = threads;
    shape.cluster[0] = cluster;
    return kernels.resident_clusters("store", "store", {}, shape);
  };
  const int twos = clusters(2, 1024), fours = clusters(4, 1024), thin = clusters(2, 512);
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(twos, 12);  // two CTAs of 1024 threads on each of 12 multiprocessors, in pairs
  EXPECT_EQ(fours, 6);
  EXPECT_EQ(thin, 24);
  EXPECT_EQ(clusters(4, 1024), fours);
  EXPECT_EQ(clusters(2, 512), thin);
  EXPECT_EQ(clusters(2, 1024), twos);
  EXPECT_EQ(asked, 3);
}

TEST(DriverOnEmulator, BadLaunchesAndModulesAreNamed) {
  const auto driver = std::make_shared<const Driver>(emulator());
  const Device device(driver, 0);
  const KernelImage images[] = {{"store", "sm_90a", {}, kPtx}, {"other", "sm_100a", {}, kPtx}};
  KernelCache kernels(device, images);
  expect_text(error_of([&] { kernels.get("other", "store"); }), {"other", "sm_90a", "sm_100a"});
  expect_text(error_of([&] { kernels.get("store", "load"); }),
              {"CUDA_ERROR_NOT_FOUND", "no entry load"});
  LaunchShape shape;
  shape.block[0] = 2000;
  expect_text(
      error_of([&] { kernels.get("store", "store").launch(nullptr, shape, CUdeviceptr{0}); }),
      {"cuLaunchKernelEx", "CUDA_ERROR_INVALID_VALUE", "block (2000,1,1)"});
}

}  // namespace
}  // namespace mxfa::driver
