#include <unistd.h>

#include <filesystem>
#include <set>
#include <string>
#include <thread>

#include "fixture.h"

namespace mxfa::emu::test {
namespace {

TEST_F(DriverTest, DevicesAndAttributes) {
  int count = 0;
  int value = 0;
  char name[64] = {};
  std::size_t bytes = 0;
  ASSERT_CU(cuDeviceGetCount(&count));
  EXPECT_EQ(count, 1);
  ASSERT_CU(cuDeviceGetName(name, sizeof name, 0));
  EXPECT_STREQ(name, "mxemu sm_90a");
  ASSERT_CU(cuDeviceGetName(name, 6, 0));
  EXPECT_STREQ(name, "mxemu");
  ASSERT_CU(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
  EXPECT_EQ(value, 9);
  ASSERT_CU(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
  EXPECT_EQ(value, 132);
  ASSERT_CU(cuDeviceTotalMem(&bytes, 0));
  EXPECT_GT(bytes, std::size_t{1} << 28);
  ASSERT_CU(cuDriverGetVersion(&value));
  EXPECT_GE(value, 13000);

  EXPECT_CU(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetName(name, sizeof name, 1));
  EXPECT_CU(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetAttribute(&value, {}, -1));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(100000), 0));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuDeviceGetCount(nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuInit(1));
  CUdevice device = 0;
  EXPECT_CU(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&device, 7));
}

TEST_F(DriverTest, TheMachineChangesOnlyWhileNoContextIsInUse) {
  EXPECT_CU(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, mxemuSetArch("sm_100a"));
  EXPECT_CU(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, mxemuSetDeviceCount(2));
  EXPECT_CU(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, mxemuSetMultiprocessorCount(3));
  EXPECT_CU(CUDA_SUCCESS, mxemuSetArch("sm_90a"));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, mxemuSetArch("sm_80"));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, mxemuSetArch(nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, mxemuSetSchedule("soon", 0));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, mxemuSetSchedule(nullptr, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, mxemuSetArithmetic("fp8"));
  EXPECT_CU(CUDA_SUCCESS, mxemuSetArithmetic("exact"));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, mxemuSetThreads(0));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, mxemuSetDeviceCount(0));
  close();
  int value = 0;
  EXPECT_CU(CUDA_SUCCESS, mxemuSetArch("sm_103a"));
  EXPECT_CU(CUDA_SUCCESS, mxemuSetMultiprocessorCount(3));
  ASSERT_CU(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0));
  EXPECT_EQ(value, 3);
  ASSERT_CU(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
  EXPECT_EQ(value, 3);
  open();
}

TEST_F(DriverTest, ContextsAreAStackOfEachThread) {
  CUcontext current = nullptr;
  ASSERT_CU(cuCtxGetCurrent(&current));
  EXPECT_EQ(current, context_);
  std::thread([] {
    CUcontext other = nullptr;
    CUdeviceptr address = 0;
    EXPECT_CU(CUDA_SUCCESS, cuCtxGetCurrent(&other));
    EXPECT_EQ(other, nullptr);
    EXPECT_CU(CUDA_ERROR_INVALID_CONTEXT, cuCtxPopCurrent(&other));
    EXPECT_CU(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&address, 16));
    EXPECT_CU(CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize());
  }).join();
  EXPECT_CU(CUDA_ERROR_INVALID_CONTEXT, cuCtxPushCurrent(nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_CONTEXT, cuCtxPushCurrent(reinterpret_cast<CUcontext>(&current)));
}

TEST_F(DriverTest, ReleasedContextsTakeTheirObjectsWithThem) {
  const CUstream old_stream = stream();
  const CUevent old_event = event();
  const CUfunction old_function = function("add");
  const CUmodule old_module = module_;
  CUcontext again = nullptr;
  ASSERT_CU(cuDevicePrimaryCtxRetain(&again, 0));
  EXPECT_EQ(again, context_);
  ASSERT_CU(cuDevicePrimaryCtxRelease(0));
  EXPECT_CU(CUDA_SUCCESS, cuStreamSynchronize(old_stream));  // retained once more
  ASSERT_CU(cuDevicePrimaryCtxRelease(0));
  EXPECT_CU(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxSynchronize());
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize(old_stream));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuEventSynchronize(old_event));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuModuleUnload(old_module));
  int value = 0;
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE,
            cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, old_function));
  EXPECT_CU(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease(0));
  CUcontext popped = nullptr;
  ASSERT_CU(cuCtxPopCurrent(&popped));
  module_ = nullptr;
  open();
  EXPECT_NE(context_, again);
}

TEST_F(DriverTest, TheFolderOfTracesIsMadeOrRefused) {
  const auto folder = std::filesystem::temp_directory_path() /
                      ("mxemu_trace_" + std::to_string(::getpid())) / "new";
  EXPECT_CU(CUDA_SUCCESS, mxemuSetTrace(folder.c_str()));
  EXPECT_TRUE(std::filesystem::is_directory(folder));
  std::filesystem::remove_all(folder.parent_path());
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, mxemuSetTrace("/dev/null/new"));
  EXPECT_CU(CUDA_SUCCESS, mxemuSetTrace(nullptr));
}

TEST_F(DriverTest, DevicesShareNothing) {
  close();
  ASSERT_CU(mxemuSetDeviceCount(2));
  open();
  CUcontext second = nullptr;
  ASSERT_CU(cuDevicePrimaryCtxRetain(&second, 1));
  const CUdeviceptr here = zeros(32);
  const CUfunction add_here = function("add");
  ASSERT_CU(cuCtxPushCurrent(second));
  const CUdeviceptr there = zeros(32);
  const CUstream stream_there = stream();
  CUevent event_there = event();
  int ordinal = -1;
  ASSERT_CU(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, there));
  EXPECT_EQ(ordinal, 1);
  ASSERT_CU(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, here));
  EXPECT_EQ(ordinal, 0);
  // A function and an event of another context.
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE,
            launch(add_here, config(1, 32, stream_there), there, 32u, 1u));
  CUcontext popped = nullptr;
  ASSERT_CU(cuCtxPopCurrent(&popped));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(event_there, nullptr));
  // Copies reach across; events order them.
  ASSERT_CU(add(here, 32, 7, nullptr));
  const CUevent added = event();
  ASSERT_CU(cuEventRecord(added, nullptr));
  ASSERT_CU(cuStreamWaitEvent(stream_there, added, CU_EVENT_WAIT_DEFAULT));
  ASSERT_CU(cuMemcpyDtoDAsync(there, here, 128, stream_there));
  EXPECT_EQ(first_word(there, stream_there), 7u);
  // Kernels do not.
  ASSERT_CU(add(there, 32, 1, nullptr));
  EXPECT_CU(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
  // The fault is the first device's alone.
  ASSERT_CU(cuCtxPushCurrent(second));
  EXPECT_CU(CUDA_SUCCESS, cuCtxSynchronize());
  ASSERT_CU(cuCtxPopCurrent(&popped));
  ASSERT_CU(cuDevicePrimaryCtxRelease(1));
}

TEST_F(DriverTest, ErrorsHaveNames) {
  const char* text = nullptr;
  ASSERT_CU(cuGetErrorName(CUDA_ERROR_INVALID_CLUSTER_SIZE, &text));
  EXPECT_STREQ(text, "CUDA_ERROR_INVALID_CLUSTER_SIZE");
  ASSERT_CU(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
  EXPECT_STREQ(text, "out of memory");
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuGetErrorName(static_cast<CUresult>(12345), &text));
  EXPECT_EQ(text, nullptr);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuGetErrorString(CUDA_SUCCESS, nullptr));
}

TEST_F(DriverTest, ReportsSayWhatWasWrong) {
  CUdeviceptr address = 0;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(&address, 0));
  EXPECT_NE(last_report(), "");
  EXPECT_CU(CUDA_SUCCESS, cuMemAlloc(&address, 16));
  EXPECT_EQ(last_report(), "");
}

}  // namespace
}  // namespace mxfa::emu::test
