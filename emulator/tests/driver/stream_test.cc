#include <algorithm>

#include "fixture.h"

namespace mxfa::emu::test {
namespace {

constexpr std::uint32_t kWords = 32;

/// What happens when nothing orders two streams, or an event does, under each policy.
class StreamOrder : public DriverTest, public testing::WithParamInterface<const char*> {
 protected:
  /// The second stream reads what the first one adds; one bit a seed: did it see the sum?
  std::uint32_t seen(bool ordered) {
    std::uint32_t bits = 0;
    for (std::uint32_t seed = 0; seed < 16; ++seed) {
      EXPECT_CU(CUDA_SUCCESS, mxemuSetSchedule(GetParam(), seed));
      const CUdeviceptr words = zeros(kWords);
      const CUstream writer = stream();
      const CUstream reader = stream();
      const CUevent written = event();
      std::uint32_t value = 0;
      EXPECT_CU(CUDA_SUCCESS, add(words, kWords, 1, writer));
      EXPECT_CU(CUDA_SUCCESS, cuEventRecord(written, writer));
      if (ordered) EXPECT_CU(CUDA_SUCCESS, cuStreamWaitEvent(reader, written, 0));
      EXPECT_CU(CUDA_SUCCESS, cuMemcpyDtoHAsync(&value, words, 4, reader));
      EXPECT_CU(CUDA_SUCCESS, cuStreamSynchronize(reader));
      bits |= value << seed;
      EXPECT_CU(CUDA_SUCCESS, cuStreamDestroy(writer));
      EXPECT_CU(CUDA_SUCCESS, cuStreamDestroy(reader));
      EXPECT_CU(CUDA_SUCCESS, cuCtxSynchronize());
      EXPECT_EQ(first_word(words, nullptr), 1u) << "work of a destroyed stream did not run";
    }
    return bits;
  }
};

TEST_P(StreamOrder, EventsOrder) { EXPECT_EQ(seen(true), 0xFFFFu); }

TEST_P(StreamOrder, NothingElseDoes) {
  const std::uint32_t bits = seen(false);
  const std::string policy = GetParam();
  if (policy == "earliest") {
    EXPECT_EQ(bits, 0xFFFFu);
  } else if (policy == "random") {
    EXPECT_NE(bits, 0u);
    EXPECT_NE(bits, 0xFFFFu);
  } else {
    EXPECT_EQ(bits, 0u);
  }
  EXPECT_EQ(seen(false), bits) << "the same seeds, another order";
}

TEST_P(StreamOrder, WithinAStreamAllIsInOrder) {
  ASSERT_CU(mxemuSetSchedule(GetParam(), 3));
  const CUdeviceptr words = zeros(kWords);
  const CUstream s = stream();
  std::uint32_t before = 99;
  std::uint32_t after = 99;
  ASSERT_CU(cuMemcpyDtoHAsync(&before, words, 4, s));
  ASSERT_CU(add(words, kWords, 1, s));
  ASSERT_CU(add(words, kWords, 2, s));
  ASSERT_CU(cuMemcpyDtoHAsync(&after, words, 4, s));
  ASSERT_CU(cuMemsetD8Async(words, 0, 4, s));
  ASSERT_CU(cuStreamSynchronize(s));
  EXPECT_EQ(before, 0u);
  EXPECT_EQ(after, 3u);
  EXPECT_EQ(first_word(words, s), 0u);
}

TEST_P(StreamOrder, TheLegacyStreamWaitsForBlockingStreamsAndTheyForIt) {
  ASSERT_CU(mxemuSetSchedule(GetParam(), 5));
  const CUdeviceptr words = zeros(kWords);
  const CUstream a = stream(CU_STREAM_DEFAULT);
  const CUstream b = stream(CU_STREAM_DEFAULT);
  std::uint32_t middle = 0;
  std::uint32_t last = 0;
  ASSERT_CU(add(words, kWords, 1, a));
  ASSERT_CU(cuMemcpyDtoHAsync(&middle, words, 4, nullptr));
  ASSERT_CU(add(words, kWords, 1, CU_STREAM_LEGACY));
  ASSERT_CU(cuMemcpyDtoHAsync(&last, words, 4, b));
  ASSERT_CU(cuStreamSynchronize(b));
  EXPECT_EQ(middle, 1u);
  EXPECT_EQ(last, 2u);
}

INSTANTIATE_TEST_SUITE_P(Policies, StreamOrder,
                         testing::Values("random", "earliest", "latest", "lifo", "starve"),
                         [](const auto& spec) { return std::string(spec.param); });

TEST_F(DriverTest, NothingIsDoneBeforeSomebodyWaits) {
  const CUdeviceptr words = zeros(kWords);
  const CUstream s = stream();
  std::uint32_t value = 99;
  ASSERT_CU(add(words, kWords, 4, s));
  ASSERT_CU(cuMemcpyDtoHAsync(&value, words, 4, s));
  EXPECT_EQ(value, 99u);
  ASSERT_CU(cuStreamSynchronize(s));
  EXPECT_EQ(value, 4u);
}

TEST_F(DriverTest, EventsStandForTheirLatestRecord) {
  const CUdeviceptr words = zeros(kWords);
  const CUstream a = stream();
  const CUstream b = stream();
  const CUevent e = event();
  EXPECT_CU(CUDA_SUCCESS, cuEventSynchronize(e));  // never recorded: nothing to wait for
  EXPECT_CU(CUDA_SUCCESS, cuStreamWaitEvent(b, e, 0));
  ASSERT_CU(add(words, kWords, 1, a));
  ASSERT_CU(cuEventRecord(e, a));
  ASSERT_CU(cuStreamWaitEvent(b, e, 0));  // the record of now, not the one that follows
  ASSERT_CU(add(words, kWords, 1, b));
  ASSERT_CU(cuEventRecord(e, b));
  ASSERT_CU(cuEventSynchronize(e));
  EXPECT_EQ(first_word(words, b), 2u);
  ASSERT_CU(cuEventDestroy(e));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(e, a));
}

TEST_F(DriverTest, TimesOfEvents) {
  const CUstream s = stream();
  const CUevent start = event();
  const CUevent end = event();
  const CUevent untimed = event(CU_EVENT_DISABLE_TIMING);
  float ms = -1.0f;
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, start, end));
  const CUdeviceptr words = zeros(kWords);
  ASSERT_CU(cuEventRecord(start, s));
  ASSERT_CU(add(words, kWords, 1, s));
  ASSERT_CU(cuEventRecord(end, s));
  EXPECT_CU(CUDA_ERROR_NOT_READY, cuEventElapsedTime(&ms, start, end));
  ASSERT_CU(cuEventSynchronize(end));
  ASSERT_CU(cuEventElapsedTime(&ms, start, end));
  EXPECT_GT(ms, 0.0f);
  ASSERT_CU(cuEventRecord(untimed, s));
  ASSERT_CU(cuStreamSynchronize(s));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&ms, start, untimed));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuEventElapsedTime(nullptr, start, end));
}

TEST_F(DriverTest, StreamsAndEventsAreChecked) {
  CUstream s = nullptr;
  CUevent e = nullptr;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(&s, 77));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(nullptr, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuEventCreate(&e, 0x100));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy(nullptr));
  s = stream();
  ASSERT_CU(cuStreamDestroy(s));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy(s));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize(s));
  e = event();
  // A live stream: the address of one that is gone may be the event's by now.
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(reinterpret_cast<CUevent>(stream()), nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuStreamWaitEvent(nullptr, e, 8));
  EXPECT_CU(CUDA_ERROR_NOT_SUPPORTED, cuStreamSynchronize(CU_STREAM_PER_THREAD));
}

}  // namespace
}  // namespace mxfa::emu::test
