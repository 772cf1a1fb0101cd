#include "state.h"

#include <unistd.h>

#include <algorithm>

namespace mxfa::emu::driver {
namespace {

constexpr Architecture kArchitectures[] = {
    {"sm_90a", 9, 0, 132, Fp8Mode::kHopper},
    {"sm_100a", 10, 0, 148, Fp8Mode::kBlackwell},
    {"sm_103a", 10, 3, 148, Fp8Mode::kBlackwell},
};

CUresult code_of(Fault fault) {
  switch (fault) {
    case Fault::kAddress:
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    case Fault::kAlignment:
      return CUDA_ERROR_MISALIGNED_ADDRESS;
    case Fault::kAssert:
      return CUDA_ERROR_ASSERT;
    case Fault::kStuck:
      return CUDA_ERROR_LAUNCH_TIMEOUT;
    default:
      return CUDA_ERROR_LAUNCH_FAILED;
  }
}

}  // namespace

State& state() {
  static State* const instance = new State;  // outlives every object that still uses it
  return *instance;
}
std::mutex& state_mutex() {
  static std::mutex* const instance = new std::mutex;
  return *instance;
}
std::string& report() {
  thread_local std::string text;
  return text;
}

void require_initialised(const State& s) {
  require(s.initialised, "cuInit was not called", CUDA_ERROR_NOT_INITIALIZED);
}

const Architecture* find_architecture(std::string_view name) {
  const auto* it = std::ranges::find(kArchitectures, name, &Architecture::name);
  return it == std::end(kArchitectures) ? nullptr : it;
}

// Fresh memory is filled, so the host must really have it.
std::size_t device_memory_bytes(const State& s) {
  const auto host = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
                    static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return host / 2 / static_cast<std::size_t>(s.settings.device_count);
}

bool any_context_active(const State& s) {
  return std::ranges::any_of(s.devices, [](const auto& device) { return device.retained > 0; });
}

std::vector<CUcontext>& context_stack() {
  thread_local std::vector<CUcontext> stack;
  return stack;
}

ContextPtr current_context_unchecked(State& s) {
  const auto& stack = context_stack();
  require(!stack.empty(), "no context is current", CUDA_ERROR_INVALID_CONTEXT);
  return s.contexts.get(stack.back(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

ContextPtr current_context(State& s) {
  ContextPtr context = current_context_unchecked(s);
  check_fault(*context);
  return context;
}

void check_fault(const Context& context) {
  if (context.fault) fail(context.fault->code, context.fault->report);
}

StreamPtr find_stream(State& s, CUstream handle) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY) return current_context(s)->legacy_stream;
  require(handle != CU_STREAM_PER_THREAD, "per-thread default streams are not emulated",
          CUDA_ERROR_NOT_SUPPORTED);
  const StreamPtr& stream = s.streams.get(handle);
  check_fault(*stream->context);
  return stream;
}

std::vector<OpPtr> predecessors(State& s, const Stream& stream) {
  std::vector<OpPtr> result{stream.last};
  if (!stream.blocking) return result;
  const Stream* legacy = stream.context->legacy_stream.get();
  if (&stream != legacy) {
    result.push_back(legacy->last);
    return result;
  }
  s.streams.for_each([&](const StreamPtr& other) {
    if (other->blocking && other->context == stream.context) result.push_back(other->last);
  });
  return result;
}

std::vector<std::shared_ptr<Capture>> captures_in(const State& s, const Context& context) {
  std::vector<std::shared_ptr<Capture>> result;
  s.streams.for_each([&](const StreamPtr& stream) {
    const bool counts = stream->capture != nullptr && stream->context.get() == &context;
    if (counts && std::ranges::find(result, stream->capture) == result.end()) {
      result.push_back(stream->capture);
    }
  });
  return result;
}

void require_no_capture(State& s) {
  bool forbidden = false;
  const auto self = std::this_thread::get_id();
  s.streams.for_each([&](const StreamPtr& stream) {
    if (stream->capture == nullptr) return;
    Capture& capture = *stream->capture;
    const bool mine = capture.thread == self;
    const bool forbids = mine ? capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED
                              : capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!forbids) return;
    capture.invalid = true;
    forbidden = true;
  });
  require(!forbidden, "a call that may wait for the device, while a stream is captured",
          CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

namespace {

// The legacy stream would have to wait for a stream that only records.
void require_no_implicit_capture(State& s, const Stream& stream) {
  if (&stream != stream.context->legacy_stream.get()) return;
  bool implicit = false;
  s.streams.for_each([&](const StreamPtr& other) {
    if (other->capture == nullptr || !other->blocking || other->context != stream.context) return;
    other->capture->invalid = true;
    implicit = true;
  });
  require(!implicit, "the legacy stream would wait for a stream that is captured",
          CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
}

}  // namespace

Work guarded(State& s, const ContextPtr& context, Work run) {
  if (!run) return {};
  return [&s, context, run = std::move(run)] {
    if (context->fault) return;
    try {
      run();
      return;
    } catch (const PtxError& error) {
      context->fault = {code_of(error.fault()), error.what()};
    } catch (const CallError& error) {
      context->fault = {error.code, error.report};
    } catch (const std::exception& error) {
      context->fault = {CUDA_ERROR_LAUNCH_FAILED, error.what()};
    }
    s.timeline.drop(context->number);
  };
}

void enqueue(State& s, Stream& stream, const Work& run) {
  if (stream.capture != nullptr) {
    require(!stream.capture->invalid, "the capture has become invalid",
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    auto& nodes = stream.capture->graph->nodes;
    nodes.push_back({run, stream.tail});
    stream.tail = {nodes.size() - 1};
    return;
  }
  require_no_implicit_capture(s, stream);
  const std::vector<OpPtr> after = predecessors(s, stream);
  stream.last = s.timeline.submit(stream.context->number, guarded(s, stream.context, run), after);
}

std::optional<Place> find_allocation(const State& s, std::uint64_t address, std::size_t bytes) {
  std::optional<Place> found;
  s.contexts.for_each([&](const ContextPtr& context) {
    auto it = context->allocations.upper_bound(address);
    if (it == context->allocations.begin()) return;
    const auto& [begin, allocation] = *--it;
    const bool inside = bytes <= allocation->bytes && address - begin <= allocation->bytes - bytes;
    if (inside && !allocation->freed) found = Place{context, allocation};
  });
  return found;
}

}  // namespace mxfa::emu::driver
