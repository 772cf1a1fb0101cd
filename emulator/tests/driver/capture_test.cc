#include <thread>

#include "fixture.h"

namespace mxfa::emu::test {
namespace {

constexpr std::uint32_t kWords = 32;
constexpr auto kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL;

class CaptureTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    words_ = zeros(kWords);
    s_ = stream();
    other_ = stream();
    function("add");  // loaded before any capture
  }
  CUgraphExec instantiate(CUgraph graph) {
    CUgraphExec exec = nullptr;
    EXPECT_CU(CUDA_SUCCESS, cuGraphInstantiate(&exec, graph, 0));
    EXPECT_CU(CUDA_SUCCESS, cuGraphDestroy(graph));
    return exec;
  }
  CUstreamCaptureStatus status(CUstream s) {
    CUstreamCaptureStatus result = CU_STREAM_CAPTURE_STATUS_NONE;
    EXPECT_CU(CUDA_SUCCESS, cuStreamIsCapturing(s, &result));
    return result;
  }
  CUdeviceptr words_ = 0;
  CUstream s_ = nullptr;
  CUstream other_ = nullptr;
};

TEST_F(CaptureTest, RecordedOnceRunManyTimes) {
  CUgraph graph = nullptr;
  ASSERT_CU(cuStreamBeginCapture(s_, kGlobal));
  EXPECT_EQ(status(s_), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(status(other_), CU_STREAM_CAPTURE_STATUS_NONE);
  ASSERT_CU(add(words_, kWords, 1, s_));
  ASSERT_CU(add(words_, kWords, 10, s_));
  ASSERT_CU(cuStreamEndCapture(s_, &graph));
  EXPECT_EQ(status(s_), CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(first_word(words_, s_), 0u) << "capturing ran the work";
  const CUgraphExec exec = instantiate(graph);
  ASSERT_CU(cuGraphLaunch(exec, s_));
  EXPECT_EQ(first_word(words_, s_), 11u);
  ASSERT_CU(cuGraphLaunch(exec, s_));
  ASSERT_CU(cuGraphLaunch(exec, other_));  // launches of one graph do not overlap
  ASSERT_CU(add(words_, kWords, 100, other_));
  ASSERT_CU(cuStreamSynchronize(s_));
  EXPECT_EQ(first_word(words_, other_), 133u);
  ASSERT_CU(cuGraphExecDestroy(exec));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuGraphLaunch(exec, s_));
}

TEST_F(CaptureTest, ForksAndJoins) {
  for (const char* policy : {"random", "latest", "lifo", "earliest"}) {
    ASSERT_CU(mxemuSetSchedule(policy, 1));
    const CUdeviceptr words = zeros(2 * kWords);
    const CUevent fork = event();
    const CUevent join = event();
    CUgraph graph = nullptr;
    ASSERT_CU(cuStreamBeginCapture(s_, kGlobal));
    ASSERT_CU(add(words, 2 * kWords, 1, s_));
    ASSERT_CU(cuEventRecord(fork, s_));
    ASSERT_CU(cuStreamWaitEvent(other_, fork, 0));
    EXPECT_EQ(status(other_), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    ASSERT_CU(add(words, kWords, 2, s_));
    ASSERT_CU(cuMemcpyDtoDAsync(words + 4 * kWords, words + 4 * kWords + 4, 4, other_));
    ASSERT_CU(cuEventRecord(join, other_));
    ASSERT_CU(cuStreamWaitEvent(s_, join, 0));
    ASSERT_CU(cuMemcpyDtoDAsync(words, words + 4 * kWords, 4, s_));  // after both branches
    ASSERT_CU(cuStreamEndCapture(s_, &graph));
    EXPECT_EQ(status(other_), CU_STREAM_CAPTURE_STATUS_NONE);
    const CUgraphExec exec = instantiate(graph);
    ASSERT_CU(cuGraphLaunch(exec, s_));
    EXPECT_EQ(first_word(words, s_), 1u) << policy;
    EXPECT_EQ(first_word(words + 4, s_), 3u) << policy;
  }
}

TEST_F(CaptureTest, BranchesMustBeJoined) {
  const CUevent fork = event();
  CUgraph graph = nullptr;
  ASSERT_CU(cuStreamBeginCapture(s_, kGlobal));
  ASSERT_CU(cuEventRecord(fork, s_));
  ASSERT_CU(cuStreamWaitEvent(other_, fork, 0));
  ASSERT_CU(add(words_, kWords, 1, other_));
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cuStreamEndCapture(other_, &graph));
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(s_, &graph));
  EXPECT_EQ(graph, nullptr);
  EXPECT_EQ(status(other_), CU_STREAM_CAPTURE_STATUS_NONE);
}

TEST_F(CaptureTest, WaitingForTheDeviceEndsACapture) {
  const CUevent recorded = event();
  CUdeviceptr address = 0;
  CUgraph graph = nullptr;
  const auto expect_ended = [&](CUresult want, CUresult got, const char* what) {
    EXPECT_EQ(name_of(got), name_of(want)) << what;
    EXPECT_EQ(status(s_), CU_STREAM_CAPTURE_STATUS_INVALIDATED) << what;
    EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, add(words_, kWords, 1, s_));
    EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(s_, &graph));
    EXPECT_EQ(graph, nullptr);
    ASSERT_CU(cuStreamBeginCapture(s_, kGlobal));
    ASSERT_CU(cuEventRecord(recorded, s_));
  };
  ASSERT_CU(cuStreamBeginCapture(s_, kGlobal));
  ASSERT_CU(cuEventRecord(recorded, s_));
  constexpr auto kUnsupported = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  expect_ended(kUnsupported, cuStreamSynchronize(s_), "cuStreamSynchronize");
  expect_ended(kUnsupported, cuCtxSynchronize(), "cuCtxSynchronize");
  expect_ended(kUnsupported, cuMemAlloc(&address, 16), "cuMemAlloc");
  expect_ended(kUnsupported, cuMemFree(words_), "cuMemFree");
  expect_ended(CUDA_ERROR_CAPTURED_EVENT, cuEventSynchronize(recorded), "cuEventSynchronize");
  ASSERT_CU(cuStreamEndCapture(s_, &graph));
  ASSERT_CU(cuGraphDestroy(graph));
}

TEST_F(CaptureTest, OtherStreamsMayBeWaitedFor) {
  CUgraph graph = nullptr;
  ASSERT_CU(cuStreamBeginCapture(s_, kGlobal));
  ASSERT_CU(add(words_, kWords, 1, other_));
  EXPECT_EQ(first_word(words_, other_), 1u);
  ASSERT_CU(cuStreamEndCapture(s_, &graph));
}

TEST_F(CaptureTest, ModesSayWhomTheyForbid) {
  const auto alloc_elsewhere = [this] {
    CUresult result = CUDA_SUCCESS;
    std::thread([&] {
      CUdeviceptr address = 0;
      CUcontext popped = nullptr;
      cuCtxPushCurrent(context_);
      result = cuMemAlloc(&address, 16);
      cuCtxPopCurrent(&popped);
    }).join();
    return result;
  };
  CUdeviceptr address = 0;
  CUgraph graph = nullptr;
  ASSERT_CU(cuStreamBeginCapture(s_, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_CU(CUDA_SUCCESS, cuMemAlloc(&address, 16));
  EXPECT_CU(CUDA_SUCCESS, alloc_elsewhere());
  ASSERT_CU(cuStreamEndCapture(s_, &graph));
  ASSERT_CU(cuStreamBeginCapture(s_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  EXPECT_CU(CUDA_SUCCESS, alloc_elsewhere());
  ASSERT_CU(cuStreamEndCapture(s_, &graph));
  ASSERT_CU(cuStreamBeginCapture(s_, kGlobal));
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, alloc_elsewhere());
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(s_, &graph));
}

TEST_F(CaptureTest, TheLegacyStream) {
  CUgraph graph = nullptr;
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamBeginCapture(nullptr, kGlobal));
  const CUstream blocking = stream(CU_STREAM_DEFAULT);
  ASSERT_CU(cuStreamBeginCapture(blocking, kGlobal));
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, add(words_, kWords, 1, nullptr));
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(blocking, &graph));
  ASSERT_CU(cuStreamBeginCapture(s_, kGlobal));  // not ordered with the legacy stream
  EXPECT_CU(CUDA_SUCCESS, add(words_, kWords, 1, nullptr));
  ASSERT_CU(cuStreamEndCapture(s_, &graph));
}

TEST_F(CaptureTest, CapturesKeepToThemselves) {
  const CUevent outside = event();
  const CUevent first = event();
  CUgraph graph = nullptr;
  ASSERT_CU(cuEventRecord(outside, other_));
  ASSERT_CU(cuStreamBeginCapture(s_, kGlobal));
  EXPECT_CU(CUDA_ERROR_ILLEGAL_STATE, cuStreamBeginCapture(s_, kGlobal));
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cuStreamWaitEvent(s_, outside, 0));
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(s_, &graph));
  ASSERT_CU(cuStreamBeginCapture(s_, kGlobal));
  ASSERT_CU(cuEventRecord(first, s_));
  ASSERT_CU(cuStreamBeginCapture(other_, kGlobal));
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_MERGE, cuStreamWaitEvent(other_, first, 0));
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(other_, &graph));
  EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(s_, &graph));
  EXPECT_CU(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(s_, &graph));
  EXPECT_CU(CUDA_ERROR_CAPTURED_EVENT, cuStreamWaitEvent(s_, first, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuStreamBeginCapture(s_, static_cast<CUstreamCaptureMode>(9)));
}

TEST_F(CaptureTest, EndsInItsThread) {
  CUgraph graph = nullptr;
  ASSERT_CU(cuStreamBeginCapture(s_, kGlobal));
  std::thread([&] {
    EXPECT_CU(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, cuStreamEndCapture(s_, &graph));
  }).join();
  ASSERT_CU(cuStreamEndCapture(s_, &graph));
}

TEST_F(CaptureTest, FaultsOfGraphsAreFaults) {
  CUgraph graph = nullptr;
  ASSERT_CU(cuStreamBeginCapture(s_, kGlobal));
  ASSERT_CU(add(words_, kWords + 1, 1, s_));
  ASSERT_CU(cuStreamEndCapture(s_, &graph));
  const CUgraphExec exec = instantiate(graph);
  ASSERT_CU(cuGraphLaunch(exec, s_));
  EXPECT_CU(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(s_));
}

}  // namespace
}  // namespace mxfa::emu::test
