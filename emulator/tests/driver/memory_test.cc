#include <cstring>

#include "fixture.h"

namespace mxfa::emu::test {
namespace {

TEST_F(DriverTest, AllocationsAreAlignedPoisonedAndBounded) {
  const CUdeviceptr address = allocate(100);
  EXPECT_EQ(address % 256, 0u);
  std::vector<std::uint8_t> bytes(100, 0);
  ASSERT_CU(cuMemcpyDtoHAsync(bytes.data(), address, 100, nullptr));
  ASSERT_CU(cuStreamSynchronize(nullptr));
  EXPECT_EQ(bytes, std::vector<std::uint8_t>(100, 0xFF));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoHAsync(bytes.data(), address + 1, 100, nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoDAsync(address - 1, bytes.data(), 1, nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemsetD8Async(address, 0, 101, nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoDAsync(address, address + 60, 41, nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoHAsync(nullptr, address, 1, nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoDAsync(address, nullptr, 1, nullptr));
  EXPECT_CU(CUDA_SUCCESS, cuMemcpyHtoDAsync(address, nullptr, 0, nullptr));
  ASSERT_CU(mxemuSetMemory(0, 1));
  const CUdeviceptr zeroed = allocate(4);
  std::uint32_t word = 1;
  ASSERT_CU(cuMemcpyDtoHAsync(&word, zeroed, 4, nullptr));
  ASSERT_CU(cuStreamSynchronize(nullptr));
  EXPECT_EQ(word, 0u);
}

TEST_F(DriverTest, MemoryRunsOut) {
  std::size_t total = 0;
  ASSERT_CU(cuDeviceTotalMem(&total, 0));
  CUdeviceptr address = 0;
  EXPECT_CU(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&address, total + 1));
  EXPECT_CU(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&address, SIZE_MAX));
  const CUdeviceptr small = allocate(4096);
  EXPECT_CU(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&address, total - 4095));
  EXPECT_NE(last_report().find("4096"), std::string::npos) << last_report();
  ASSERT_CU(cuMemFree(small));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(&address, 0));
}

TEST_F(DriverTest, FreesAreChecked) {
  const CUdeviceptr address = allocate(64);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemFree(address + 16));
  EXPECT_CU(CUDA_SUCCESS, cuMemFree(address));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemFree(address));
  EXPECT_CU(CUDA_SUCCESS, cuMemFree(0));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemsetD8Async(address, 0, 1, nullptr));
}

TEST_F(DriverTest, FreeWaitsForWorkThatWasAskedFor) {
  const CUdeviceptr words = zeros(32);
  const CUdeviceptr other = zeros(32);
  const CUstream s = stream();
  ASSERT_CU(add(words, 32, 5, s));
  ASSERT_CU(cuMemcpyDtoDAsync(other, words, 128, s));
  ASSERT_CU(cuMemFree(words));
  EXPECT_EQ(first_word(other, nullptr), 5u);
}

TEST_F(DriverTest, StreamOrderedMemory) {
  const CUstream s = stream();
  CUdeviceptr address = 0;
  ASSERT_CU(cuMemAllocAsync(&address, 128, s));
  ASSERT_CU(cuMemsetD8Async(address, 0, 128, s));
  ASSERT_CU(add(address, 32, 9, s));
  EXPECT_EQ(first_word(address, s), 9u);
  ASSERT_CU(cuMemFreeAsync(address, s));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemsetD8Async(address, 0, 1, s));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(address, s));
  ASSERT_CU(cuStreamSynchronize(s));
}

TEST_F(DriverTest, StreamOrderedMemoryIsNotThereBeforeItsAllocation) {
  ASSERT_CU(mxemuSetSchedule("lifo", 0));  // the newest first
  const CUstream a = stream();
  const CUstream b = stream();
  CUdeviceptr address = 0;
  ASSERT_CU(cuMemAllocAsync(&address, 128, a));
  ASSERT_CU(cuMemsetD8Async(address, 0, 128, b));  // no event orders it after the allocation
  EXPECT_CU(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
  EXPECT_NE(last_report().find("not ordered after"), std::string::npos) << last_report();
}

TEST_F(DriverTest, UnwrittenBytesAreFoundThroughCopies) {
  const CUdeviceptr unwritten = allocate(256);
  const CUdeviceptr copy = zeros(64);
  ASSERT_CU(cuMemsetD8Async(unwritten + 8, 1, 120, nullptr));
  ASSERT_CU(cuMemcpyDtoDAsync(copy, unwritten, 256, nullptr));
  ASSERT_CU(add(copy + 8, 30, 1, nullptr));
  EXPECT_CU(CUDA_SUCCESS, cuCtxSynchronize());
  // The copy's other bytes stay what they were: written by the fill of zeros().
  ASSERT_CU(add(copy, 64, 1, nullptr));
  EXPECT_CU(CUDA_SUCCESS, cuCtxSynchronize());
  ASSERT_CU(add(unwritten, 32, 1, nullptr));
  EXPECT_CU(CUDA_ERROR_LAUNCH_FAILED, cuCtxSynchronize());
  EXPECT_NE(last_report().find("nobody wrote"), std::string::npos) << last_report();
}

TEST_F(DriverTest, UncheckedMemoryMayBeReadUnwritten) {
  ASSERT_CU(mxemuSetMemory(1, 0));
  const CUdeviceptr words = allocate(128);
  ASSERT_CU(add(words, 32, 2, nullptr));
  EXPECT_EQ(first_word(words, nullptr), 1u);  // 0xFFFFFFFF + 2
}

TEST_F(DriverTest, PointerAttributes) {
  const CUdeviceptr address = allocate(100);
  CUdeviceptr start = 0;
  std::size_t size = 0;
  CUcontext owner = nullptr;
  CUmemorytype type = CU_MEMORYTYPE_HOST;
  ASSERT_CU(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address + 99));
  ASSERT_CU(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address + 99));
  ASSERT_CU(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, address));
  ASSERT_CU(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
  EXPECT_EQ(start, address);
  EXPECT_EQ(size, 100u);
  EXPECT_EQ(owner, context_);
  EXPECT_EQ(type, CU_MEMORYTYPE_DEVICE);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address + 100));
  int local = 0;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                                            reinterpret_cast<CUdeviceptr>(&local)));
}

TEST_F(DriverTest, HostMemory) {
  void* memory = nullptr;
  ASSERT_CU(cuMemAllocHost(&memory, 64));
  std::memset(memory, 3, 64);
  const CUdeviceptr address = allocate(64);
  std::uint8_t back[64] = {};
  ASSERT_CU(cuMemcpyHtoDAsync(address, memory, 64, nullptr));
  ASSERT_CU(cuMemFreeHost(memory));  // waits for the copy
  ASSERT_CU(cuMemcpyDtoHAsync(back, address, 64, nullptr));
  ASSERT_CU(cuStreamSynchronize(nullptr));
  EXPECT_EQ(back[63], 3);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(memory));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemAllocHost(&memory, 0));
}

}  // namespace
}  // namespace mxfa::emu::test
