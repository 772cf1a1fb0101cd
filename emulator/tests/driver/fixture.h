#pragma once

#include <cuda.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "mxemu/driver.h"

/// Tests of libmxemu.so through its calls alone, as a program sees a driver.
namespace mxfa::emu::test {

inline std::string name_of(CUresult code) {
  const char* name = nullptr;
  cuGetErrorName(code, &name);
  return name == nullptr ? std::to_string(static_cast<int>(code)) : name;
}
inline std::string last_report() {
  const char* text = nullptr;
  mxemuGetReport(&text);
  return text;
}

#define EXPECT_CU(expected, call)                                                   \
  do {                                                                              \
    const CUresult code_ = (call);                                                  \
    EXPECT_EQ(name_of(code_), name_of(expected)) << #call << ": " << last_report(); \
  } while (false)
#define ASSERT_CU(call)                                                          \
  do {                                                                           \
    const CUresult code_ = (call);                                               \
    ASSERT_EQ(name_of(code_), "CUDA_SUCCESS") << #call << ": " << last_report(); \
  } while (false)

/// Kernels of the tests. add(p, n, value): p[i] += value for i < n, each thread one.
inline const char* const kKernels = R"(
.version 9.0
.target sm_90a
.address_size 64
.visible .entry add(.param .u64 p, .param .u32 n, .param .u32 value)
{
  .reg .b32 r<9>; .reg .b64 d<9>; .reg .pred q<3>;
  mov.u32 r1, %ctaid.x; mov.u32 r2, %ntid.x; mov.u32 r3, %tid.x;
  mad.lo.u32 r1, r1, r2, r3;
  ld.param.u32 r4, [n];
  setp.ge.u32 q1, r1, r4;
  @q1 bra done;
  ld.param.u64 d1, [p]; mul.wide.u32 d2, r1, 4; add.u64 d1, d1, d2;
  ld.param.u32 r5, [value];
  ld.global.u32 r6, [d1]; add.u32 r6, r6, r5; st.global.u32 [d1], r6;
done:
  ret;
}
// Writes the CTA's rank in its cluster.
.visible .entry rank(.param .u64 p)
{
  .reg .b32 r<9>; .reg .b64 d<9>;
  mov.u32 r1, %ctaid.x; mov.u32 r2, %cluster_ctarank;
  ld.param.u64 d1, [p]; mul.wide.u32 d2, r1, 4; add.u64 d1, d1, d2;
  st.global.u32 [d1], r2;
  ret;
}
.visible .entry misaligned(.param .u64 p)
{
  .reg .b32 r<9>; .reg .b64 d<9>;
  ld.param.u64 d1, [p]; ld.global.u32 r1, [d1+2];
  ret;
}
// Every warp writes the same words.
.visible .entry race(.param .u64 p)
{
  .reg .b32 r<9>; .reg .b64 d<9>;
  mov.u32 r1, %laneid; mov.u32 r2, %warpid;
  ld.param.u64 d1, [p]; mul.wide.u32 d2, r1, 4; add.u64 d1, d1, d2;
  st.global.u32 [d1], r2;
  ret;
}
.visible .entry spin() { again: bra again; }
.visible .entry traps() { trap; ret; }
.visible .entry bounded(.param .u64 p) .maxntid 64 { ret; }
.visible .entry fixed_block(.param .u64 p) .reqntid 32 { ret; }
.visible .entry fixed_cluster() .explicitcluster .reqnctapercluster 2 { ret; }
.visible .entry dynamic_shared() { ret; }
.extern .shared .align 16 .b8 dynamic[];
// Cooperative: every CTA waits for all of them.
.visible .entry meet(.param .u64 p, .param .u32 n)
{
  .reg .b32 r<9>; .reg .b64 d<9>; .reg .pred q<3>;
  ld.param.u64 d1, [p]; ld.param.u32 r4, [n];
  atom.global.add.u32 r1, [d1], 1;
wait:
  ld.relaxed.gpu.global.u32 r2, [d1];
  setp.lt.u32 q1, r2, r4;
  @q1 bra wait;
  ret;
}
)";

class DriverTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_CU(mxemuSetArch("sm_90a"));
    ASSERT_CU(mxemuSetDeviceCount(1));
    ASSERT_CU(mxemuSetMultiprocessorCount(0));
    ASSERT_CU(mxemuSetSchedule("random", 0));
    ASSERT_CU(mxemuSetThreads(1));
    ASSERT_CU(mxemuSetMemory(1, 1));
    ASSERT_CU(mxemuSetArithmetic("native"));
    ASSERT_CU(mxemuSetStrict(1));
    ASSERT_CU(mxemuSetChecker(0));
    ASSERT_CU(mxemuSetTrace(nullptr));
    ASSERT_CU(cuInit(0));
    open();
  }
  void TearDown() override { close(); }

  void open() {
    ASSERT_CU(cuDevicePrimaryCtxRetain(&context_, 0));
    ASSERT_CU(cuCtxPushCurrent(context_));
  }
  void close() {
    CUcontext popped = nullptr;
    ASSERT_CU(cuCtxPopCurrent(&popped));
    ASSERT_CU(cuDevicePrimaryCtxRelease(0));
    module_ = nullptr;
  }

  CUfunction function(const char* name) {
    if (module_ == nullptr) EXPECT_CU(CUDA_SUCCESS, cuModuleLoadData(&module_, kKernels));
    CUfunction result = nullptr;
    EXPECT_CU(CUDA_SUCCESS, cuModuleGetFunction(&result, module_, name));
    return result;
  }
  static CUdeviceptr allocate(std::size_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_CU(CUDA_SUCCESS, cuMemAlloc(&address, bytes));
    return address;
  }
  /// `count` words of zero.
  static CUdeviceptr zeros(std::size_t count) {
    const CUdeviceptr address = allocate(count * 4);
    EXPECT_CU(CUDA_SUCCESS, cuMemsetD8Async(address, 0, count * 4, nullptr));
    EXPECT_CU(CUDA_SUCCESS, cuStreamSynchronize(nullptr));
    return address;
  }
  static CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream result = nullptr;
    EXPECT_CU(CUDA_SUCCESS, cuStreamCreate(&result, flags));
    return result;
  }
  static CUevent event(unsigned flags = CU_EVENT_DEFAULT) {
    CUevent result = nullptr;
    EXPECT_CU(CUDA_SUCCESS, cuEventCreate(&result, flags));
    return result;
  }

  static CUlaunchConfig config(unsigned grid, unsigned block, CUstream on = nullptr) {
    CUlaunchConfig result = {};
    result.gridDimX = grid;
    result.blockDimX = block;
    result.gridDimY = result.gridDimZ = result.blockDimY = result.blockDimZ = 1;
    result.hStream = on;
    return result;
  }
  template <class... Args>
  static CUresult launch(CUfunction function, const CUlaunchConfig& config, Args... args) {
    void* pointers[] = {static_cast<void*>(&args)..., nullptr};
    return cuLaunchKernelEx(&config, function, pointers, nullptr);
  }
  /// value added to `count` words.
  CUresult add(CUdeviceptr words, std::uint32_t count, std::uint32_t value, CUstream on) {
    return launch(function("add"), config((count + 31) / 32, 32, on), words, count, value);
  }
  /// The first word, after the stream has ended.
  static std::uint32_t first_word(CUdeviceptr words, CUstream after) {
    std::uint32_t value = 0;
    EXPECT_CU(CUDA_SUCCESS, cuStreamSynchronize(after));
    EXPECT_CU(CUDA_SUCCESS, cuMemcpyDtoHAsync(&value, words, 4, after));
    EXPECT_CU(CUDA_SUCCESS, cuStreamSynchronize(after));
    return value;
  }

  CUcontext context_ = nullptr;
  CUmodule module_ = nullptr;
};

}  // namespace mxfa::emu::test
