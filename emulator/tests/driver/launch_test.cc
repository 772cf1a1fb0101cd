#include <thread>

#include "fixture.h"

namespace mxfa::emu::test {
namespace {

CUlaunchAttribute cluster_of(unsigned x) {
  CUlaunchAttribute attribute = {};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim = {x, 1, 1};
  return attribute;
}

class LaunchTest : public DriverTest {
 protected:
  CUresult with_attribute(CUfunction f, CUlaunchConfig launch_config, CUlaunchAttribute attribute,
                          CUdeviceptr argument) {
    launch_config.attrs = &attribute;
    launch_config.numAttrs = 1;
    return launch(f, launch_config, argument);
  }
  void expect_sticky(CUresult code, const std::string& text) {
    EXPECT_CU(code, cuCtxSynchronize());
    const std::string report = last_report();
    EXPECT_NE(report.find(text), std::string::npos) << report;
    CUdeviceptr address = 0;
    CUstream made = nullptr;
    EXPECT_CU(code, cuMemAlloc(&address, 16));
    EXPECT_EQ(last_report(), report);
    EXPECT_CU(code, cuStreamCreate(&made, 0));
    EXPECT_CU(code, cuStreamSynchronize(nullptr));
    EXPECT_CU(code, cuModuleUnload(module_));
    // A new context is as good as new.
    close();
    open();
    EXPECT_CU(CUDA_SUCCESS, cuCtxSynchronize());
    const CUdeviceptr words = zeros(32);
    EXPECT_CU(CUDA_SUCCESS, add(words, 32, 1, nullptr));
    EXPECT_EQ(first_word(words, nullptr), 1u);
  }
};

TEST_F(LaunchTest, ArgumentsAreCopiedAtTheCall) {
  const CUdeviceptr words = zeros(64);
  CUdeviceptr p = words;
  std::uint32_t n = 64;
  std::uint32_t value = 5;
  void* pointers[] = {&p, &n, &value};
  const CUlaunchConfig launch_config = config(2, 32);
  ASSERT_CU(cuLaunchKernelEx(&launch_config, function("add"), pointers, nullptr));
  value = 1000;
  EXPECT_EQ(first_word(words, nullptr), 5u);
  EXPECT_EQ(first_word(words + 63 * 4, nullptr), 5u);
}

TEST_F(LaunchTest, ArgumentsInOneBuffer) {
  const CUdeviceptr words = zeros(32);
  struct {
    CUdeviceptr p;
    std::uint32_t n;
    std::uint32_t value;
  } buffer = {words, 32, 3};
  std::size_t size = sizeof buffer;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  const CUlaunchConfig launch_config = config(1, 32);
  ASSERT_CU(cuLaunchKernelEx(&launch_config, function("add"), nullptr, extra));
  EXPECT_EQ(first_word(words, nullptr), 3u);
  size = 12;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuLaunchKernelEx(&launch_config, function("add"), nullptr, extra));
  void* pointers[] = {&buffer, &buffer, &buffer};
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuLaunchKernelEx(&launch_config, function("add"), pointers, extra));
}

TEST_F(LaunchTest, ShapesAreChecked) {
  const CUdeviceptr words = zeros(32);
  const CUfunction f = function("rank");
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, launch(f, config(0, 32), words));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, launch(f, config(1, 0), words));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, launch(f, config(1, 1025), words));
  CUlaunchConfig deep = config(1, 1);
  deep.blockDimZ = 65;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, launch(f, deep, words));
  CUlaunchConfig tall = config(1, 1);
  tall.gridDimY = 65536;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, launch(f, tall, words));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, launch(function("bounded"), config(1, 65), words));
  EXPECT_CU(CUDA_SUCCESS, launch(function("bounded"), config(1, 64), words));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, launch(function("fixed_block"), config(1, 64), words));
  EXPECT_CU(CUDA_SUCCESS, launch(function("fixed_block"), config(1, 32), words));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, launch(nullptr, config(1, 32), words));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuLaunchKernelEx(nullptr, f, nullptr, nullptr));
  const CUlaunchConfig good = config(1, 32);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuLaunchKernelEx(&good, f, nullptr, nullptr));
  EXPECT_CU(CUDA_SUCCESS, cuCtxSynchronize());
}

TEST_F(LaunchTest, DynamicSharedMemory) {
  const CUfunction f = function("dynamic_shared");
  CUlaunchConfig launch_config = config(1, 32);
  launch_config.sharedMemBytes = 48 * 1024;
  EXPECT_CU(CUDA_SUCCESS, launch(f, launch_config));
  launch_config.sharedMemBytes = 227 * 1024;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, launch(f, launch_config));
  constexpr auto kMax = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuFuncSetAttribute(f, kMax, 227 * 1024 + 1));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuFuncSetAttribute(f, kMax, -1));
  ASSERT_CU(cuFuncSetAttribute(f, kMax, 227 * 1024));
  int value = 0;
  ASSERT_CU(cuFuncGetAttribute(&value, kMax, f));
  EXPECT_EQ(value, 227 * 1024);
  EXPECT_CU(CUDA_SUCCESS, launch(f, launch_config));
  EXPECT_CU(CUDA_SUCCESS, cuCtxSynchronize());
}

TEST_F(LaunchTest, FunctionAttributes) {
  int value = 0;
  ASSERT_CU(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function("add")));
  EXPECT_EQ(value, 1024);
  ASSERT_CU(
      cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function("bounded")));
  EXPECT_EQ(value, 64);
  ASSERT_CU(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH,
                               function("fixed_cluster")));
  EXPECT_EQ(value, 2);
  EXPECT_CU(CUDA_ERROR_NOT_SUPPORTED,
            cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, function("add")));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuFuncGetAttribute(&value, static_cast<CUfunction_attribute>(999), function("add")));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuFuncSetAttribute(function("add"), CU_FUNC_ATTRIBUTE_NUM_REGS, 1));
}

TEST_F(LaunchTest, ResidentClusters) {
  const CUfunction f = function("rank");
  const auto resident = [&](unsigned cluster, unsigned threads) {
    CUlaunchConfig shape = config(cluster, threads);
    CUlaunchAttribute attribute = cluster_of(cluster);
    shape.attrs = &attribute;
    shape.numAttrs = 1;
    int count = 0;
    EXPECT_CU(CUDA_SUCCESS, cuOccupancyMaxActiveClusters(&count, f, &shape));
    return count;
  };
  // 132 multiprocessors: 7 groups of 18, and 6.
  EXPECT_EQ(resident(1, 1024), 264);
  EXPECT_EQ(resident(2, 1024), 132);
  EXPECT_EQ(resident(8, 1024), 7 * (36 / 8) + 12 / 8);
  const CUlaunchConfig shape = config(1, 32);
  int count = 0;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuOccupancyMaxActiveClusters(nullptr, f, &shape));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuOccupancyMaxActiveClusters(&count, f, nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuOccupancyMaxActiveClusters(&count, nullptr, &shape));
}

TEST_F(LaunchTest, Clusters) {
  const CUdeviceptr words = zeros(32);
  const CUfunction f = function("rank");
  ASSERT_CU(with_attribute(f, config(32, 32), cluster_of(4), words));
  EXPECT_EQ(first_word(words + 4 * 7, nullptr), 3u);
  EXPECT_CU(CUDA_ERROR_INVALID_CLUSTER_SIZE,
            with_attribute(f, config(30, 32), cluster_of(4), words));
  EXPECT_CU(CUDA_ERROR_INVALID_CLUSTER_SIZE,
            with_attribute(f, config(32, 32), cluster_of(16), words));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, with_attribute(f, config(32, 32), cluster_of(0), words));
  ASSERT_CU(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
  ASSERT_CU(with_attribute(f, config(32, 32), cluster_of(16), words));
  EXPECT_EQ(first_word(words + 4 * 31, nullptr), 15u);
  EXPECT_CU(CUDA_ERROR_INVALID_CLUSTER_SIZE,
            with_attribute(f, config(32, 32), cluster_of(32), words));
  EXPECT_CU(CUDA_ERROR_INVALID_CLUSTER_SIZE, launch(function("fixed_cluster"), config(3, 32)));
  EXPECT_CU(CUDA_SUCCESS, launch(function("fixed_cluster"), config(4, 32)));
  EXPECT_CU(CUDA_SUCCESS, cuCtxSynchronize());
}

TEST_F(LaunchTest, CooperativeGridsAreResidentAtOnce) {
  CUlaunchAttribute cooperative = {};
  cooperative.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  cooperative.value.cooperative = 1;
  const CUdeviceptr counter = zeros(1);
  CUlaunchConfig launch_config = config(40, 32);
  launch_config.attrs = &cooperative;
  launch_config.numAttrs = 1;
  ASSERT_CU(launch(function("meet"), launch_config, counter, 40u * 32u));
  EXPECT_EQ(first_word(counter, nullptr), 40u * 32u);
  launch_config.gridDimX = 132 * 32 + 1;
  EXPECT_CU(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
            launch(function("meet"), launch_config, counter, 40u));
}

TEST_F(LaunchTest, UnknownAttributesAreRefused) {
  CUlaunchAttribute attribute = {};
  attribute.id = CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT;
  EXPECT_CU(CUDA_ERROR_NOT_SUPPORTED,
            with_attribute(function("rank"), config(1, 32), attribute, zeros(1)));
  attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  EXPECT_CU(CUDA_SUCCESS, with_attribute(function("rank"), config(1, 32), attribute, zeros(1)));
}

TEST_F(LaunchTest, IllegalAddress) {
  const CUdeviceptr words = zeros(32);
  ASSERT_CU(add(words, 64, 1, nullptr));
  expect_sticky(CUDA_ERROR_ILLEGAL_ADDRESS, "ld.global.u32 r6, [d1]");
}

TEST_F(LaunchTest, MisalignedAddress) {
  ASSERT_CU(launch(function("misaligned"), config(1, 32), zeros(32)));
  expect_sticky(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned");
}

TEST_F(LaunchTest, Trap) {
  ASSERT_CU(launch(function("traps"), config(1, 32)));
  expect_sticky(CUDA_ERROR_LAUNCH_FAILED, "kernel traps");
}

TEST_F(LaunchTest, EndlessLoop) {
  ASSERT_CU(launch(function("spin"), config(1, 32)));
  expect_sticky(CUDA_ERROR_LAUNCH_TIMEOUT, "endless loop");
}

TEST_F(LaunchTest, HazardsAreFaultsUnderTheChecker) {
  const CUdeviceptr words = zeros(32);
  // Two warps add to the same words, and nothing orders them.
  ASSERT_CU(launch(function("race"), config(1, 64), words));
  EXPECT_CU(CUDA_SUCCESS, cuCtxSynchronize());
  ASSERT_CU(mxemuSetChecker(1));
  ASSERT_CU(add(words, 32, 1, nullptr));
  EXPECT_CU(CUDA_SUCCESS, cuCtxSynchronize());
  ASSERT_CU(launch(function("race"), config(1, 64), words));
  expect_sticky(CUDA_ERROR_LAUNCH_FAILED, "race");
}

TEST_F(LaunchTest, WorkBehindAFaultDoesNotRun) {
  const CUdeviceptr words = zeros(32);
  const CUstream s = stream();
  std::uint32_t value = 99;
  ASSERT_CU(launch(function("traps"), config(1, 32, s)));
  ASSERT_CU(cuMemcpyDtoHAsync(&value, words, 4, s));
  EXPECT_CU(CUDA_ERROR_LAUNCH_FAILED, cuStreamSynchronize(s));
  EXPECT_EQ(value, 99u);
}

TEST_F(LaunchTest, Modules) {
  CUmodule module = nullptr;
  CUfunction f = nullptr;
  EXPECT_CU(CUDA_ERROR_INVALID_PTX, cuModuleLoadData(&module, "no PTX at all"));
  EXPECT_NE(last_report().find(":1:"), std::string::npos) << last_report();
  EXPECT_CU(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleLoadData(&module, "\x7F\x45LF and so on"));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuModuleLoadData(&module, nullptr));
  const std::string head = "\n.address_size 64\n.visible .entry k() { frob.u32 1; ret; }";
  EXPECT_CU(CUDA_ERROR_INVALID_PTX,
            cuModuleLoadData(&module, (".version 9.0\n.target sm_100a" + head).c_str()));
  EXPECT_NE(last_report().find("sm_100a"), std::string::npos) << last_report();
  EXPECT_CU(CUDA_ERROR_INVALID_PTX,
            cuModuleLoadData(&module, (".version 9.0\n.target sm_100" + head).c_str()));
  ASSERT_CU(cuModuleLoadData(&module, (".version 9.0\n.target sm_80" + head).c_str()));
  EXPECT_CU(CUDA_ERROR_INVALID_PTX, cuModuleGetFunction(&f, module, "k"));
  EXPECT_NE(last_report().find("frob.u32"), std::string::npos) << last_report();
  EXPECT_CU(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&f, module, "j"));
  EXPECT_CU(CUDA_SUCCESS, cuModuleUnload(module));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuModuleUnload(module));
}

TEST_F(LaunchTest, LaunchesOutliveTheirModule) {
  const CUdeviceptr words = zeros(32);
  const CUfunction f = function("add");
  EXPECT_EQ(function("add"), f);
  ASSERT_CU(add(words, 32, 6, nullptr));
  ASSERT_CU(cuModuleUnload(module_));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, launch(f, config(1, 32), words, 32u, 1u));
  EXPECT_EQ(first_word(words, nullptr), 6u);
}

TEST_F(LaunchTest, FewMultiprocessorsAndSeveralThreads) {
  ASSERT_CU(mxemuSetThreads(4));
  const CUdeviceptr words = zeros(4096);
  for (std::uint32_t i = 0; i < 8; ++i) ASSERT_CU(add(words, 4096, 1, nullptr));
  EXPECT_EQ(first_word(words + 4 * 4095, nullptr), 8u);
}

TEST_F(LaunchTest, HostThreadsShareADevice) {
  const CUfunction f = function("add");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, f] {
      CUcontext popped = nullptr;
      EXPECT_CU(CUDA_SUCCESS, cuCtxPushCurrent(context_));
      const CUstream s = stream();
      const CUdeviceptr words = zeros(32);
      for (std::uint32_t i = 0; i < 20; ++i) {
        EXPECT_CU(CUDA_SUCCESS, launch(f, config(1, 32, s), words, 32u, 1u));
      }
      EXPECT_EQ(first_word(words, s), 20u);
      EXPECT_CU(CUDA_SUCCESS, cuMemFree(words));
      EXPECT_CU(CUDA_SUCCESS, cuCtxPopCurrent(&popped));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace mxfa::emu::test
