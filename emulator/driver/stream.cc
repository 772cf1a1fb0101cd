#include <cuda.h>

#include "capture.h"
#include "state.h"

/// Streams and events.
namespace mxfa::emu::driver {
namespace {

// Waiting for work that is only being recorded would never end.
void require_not_captured(const Stream& stream) {
  if (stream.capture == nullptr) return;
  stream.capture->invalid = true;
  fail(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "the stream is captured");
}

void require_not_captured(const Event& event) {
  if (event.capture == nullptr) return;
  event.capture->invalid = true;
  fail(CUDA_ERROR_CAPTURED_EVENT, "the event was last recorded in a capture");
}

const OpPtr& timed(const Event& event) {
  require(event.timing, "an event that keeps no time", CUDA_ERROR_INVALID_HANDLE);
  require_not_captured(event);
  require(event.recorded != nullptr, "an event that was never recorded", CUDA_ERROR_INVALID_HANDLE);
  require(event.recorded->done, "an event whose work has not ended yet", CUDA_ERROR_NOT_READY);
  return event.recorded;
}

}  // namespace
}  // namespace mxfa::emu::driver

using namespace mxfa::emu::driver;  // the calls below are the driver's, in the global namespace

CUresult cuStreamCreate(CUstream* result, unsigned int flags) {
  return call([&](State& s) {
    require(result != nullptr, "phStream: expected a pointer, got null");
    require(flags == CU_STREAM_DEFAULT || flags == CU_STREAM_NON_BLOCKING,
            "flags: expected CU_STREAM_DEFAULT or CU_STREAM_NON_BLOCKING");
    auto stream = std::make_shared<Stream>();
    stream->context = current_context(s);
    stream->blocking = flags == CU_STREAM_DEFAULT;
    *result = s.streams.add(std::move(stream));
  });
}

// What the stream was asked for still runs.
CUresult cuStreamDestroy(CUstream handle) {
  return call([&](State& s) {
    const StreamPtr stream = s.streams.get(handle);
    check_fault(*stream->context);
    if (stream->capture != nullptr) stream->capture->invalid = true;
    s.streams.remove(handle);
  });
}

CUresult cuStreamSynchronize(CUstream handle) {
  return call([&](State& s) {
    const StreamPtr stream = find_stream(s, handle);
    require_not_captured(*stream);
    const bool legacy = stream == stream->context->legacy_stream;
    const std::vector<OpPtr> ops =
        legacy ? predecessors(s, *stream) : std::vector<OpPtr>{stream->last};
    for (const OpPtr& op : ops) {
      if (op != nullptr) s.timeline.run_until(op);
    }
    check_fault(*stream->context);
  });
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned int flags) {
  return call([&](State& s) {
    const StreamPtr stream = find_stream(s, handle);
    const Event& event = *s.events.get(event_handle);
    require(flags == CU_EVENT_WAIT_DEFAULT, "Flags: expected CU_EVENT_WAIT_DEFAULT",
            flags == CU_EVENT_WAIT_EXTERNAL ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE);
    if (event.capture != nullptr || stream->capture != nullptr) {
      join_capture(*stream, event);
      return;
    }
    if (event.recorded == nullptr) return;
    std::vector<OpPtr> after = predecessors(s, *stream);
    after.push_back(event.recorded);
    stream->last = s.timeline.submit(stream->context->number, {}, after);
  });
}

CUresult cuEventCreate(CUevent* result, unsigned int flags) {
  return call([&](State& s) {
    require(result != nullptr, "phEvent: expected a pointer, got null");
    constexpr unsigned kKnown = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;
    require((flags & CU_EVENT_INTERPROCESS) == 0, "events between processes are not emulated",
            CUDA_ERROR_NOT_SUPPORTED);
    require((flags & ~kKnown) == 0, "Flags: expected CU_EVENT_BLOCKING_SYNC, _DISABLE_TIMING");
    auto event = std::make_shared<Event>();
    event->context = current_context(s);
    event->timing = (flags & CU_EVENT_DISABLE_TIMING) == 0;
    *result = s.events.add(std::move(event));
  });
}

CUresult cuEventDestroy(CUevent handle) {
  return call([&](State& s) {
    check_fault(*s.events.get(handle)->context);
    s.events.remove(handle);
  });
}

CUresult cuEventRecord(CUevent event_handle, CUstream handle) {
  return call([&](State& s) {
    Event& event = *s.events.get(event_handle);
    const StreamPtr stream = find_stream(s, handle);
    require(event.context == stream->context, "event and stream are of different contexts",
            CUDA_ERROR_INVALID_HANDLE);
    if (stream->capture != nullptr) {
      require_valid(*stream->capture);
      event.capture = stream->capture;
      event.tail = stream->tail;
      event.recorded.reset();
      return;
    }
    enqueue(s, *stream, {});
    event.recorded = stream->last;
    event.capture.reset();
    event.tail.clear();
  });
}

CUresult cuEventSynchronize(CUevent handle) {
  return call([&](State& s) {
    const Event& event = *s.events.get(handle);
    check_fault(*event.context);
    require_not_captured(event);
    if (event.recorded != nullptr) s.timeline.run_until(OpPtr(event.recorded));
    check_fault(*event.context);
  });
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent start_handle, CUevent end_handle) {
  return call([&](State& s) {
    require(milliseconds != nullptr, "pMilliseconds: expected a pointer, got null");
    const Event& start = *s.events.get(start_handle);
    const Event& end = *s.events.get(end_handle);
    check_fault(*start.context);
    require(start.context == end.context, "events of different contexts",
            CUDA_ERROR_INVALID_HANDLE);
    const std::chrono::duration<float, std::milli> elapsed =
        timed(end)->finished - timed(start)->finished;
    *milliseconds = elapsed.count();
  });
}
